"""The HTTP gateway for OpenAI clients: translates in, calls the service, translates out.

Judges what can be judged before anything is parsed: method, path, size, kind. Every routed request
is ended on every path. `relay` carries the answer.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from coordinator.canonical import Api, BadRequest, parse
from coordinator.config import Timeouts
from coordinator.discovery import NOT_ASKED
from coordinator.dispatch import Dispatcher, forwarded
from coordinator.engines import Engine, ServedModel
from coordinator.refusal import (
    BodyTimeout,
    BodyTooLarge,
    Draining,
    Fault,
    MethodNotAllowed,
    NotFound,
    Refusal,
    to_reply,
)
from coordinator.relay import Limit, Relay
from coordinator.service import Refused, Routed
from coordinator.watch import WatchedService
from lineside import logs
from lineside.ids import TenantId

log = logs.get("coordinator.door_http")

ANONYMOUS = TenantId("default")
"""Whose requests these are, until tenants are configured."""

FIRST_LOOK_S = 1.0
"""From the first request of all, for discovery to ask every engine once; early ones wait for it."""

FIRST_LOOK_POLL_S = 0.005

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
_APIS = {"/v1/chat/completions": Api.OPENAI_CHAT, "/v1/completions": Api.OPENAI_COMPLETIONS}
_JSON = "application/json"

Handler = Callable[["Call"], Awaitable[web.StreamResponse]]
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the door, with the id that its client and our log know it by."""

    request: web.Request
    id: str


class Door:
    """The gateway's handlers."""

    def __init__(
        self,
        service: WatchedService,
        dispatcher: Dispatcher,
        timeouts: Timeouts,
        body_limit_bytes: int,
    ) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._timeouts = timeouts
        self._body_limit = body_limit_bytes
        self._created = int(service.clock.unix())
        self._look_until: float | None = None
        self._open: set[Limit] = set()
        self._calls = 0

    def application(self) -> web.Application:
        """Return what an aiohttp runner serves. It must cancel handlers of clients that left."""
        app = web.Application(client_max_size=self._body_limit)
        for path in _APIS:
            handler = self._boundary(self._completion)
            app.router.add_post(path, handler, expect_handler=self._expected)
        app.router.add_get("/v1/models", self._boundary(self._models))
        app.router.add_route("*", "/{path:.*}", self._boundary(self._elsewhere))
        return app

    @property
    def calls(self) -> int:
        """Requests that are being answered, listings apart."""
        return self._calls

    def stop(self) -> None:
        """End what is being answered, each stream with an error event."""
        for limit in list(self._open):
            limit.stop(Draining())

    def _boundary(self, handler: Handler) -> Served:
        async def handle(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("x-request-id", "")
            request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
            call = Call(request, request_id)
            try:
                return await handler(call)
            except Exception:  # noqa: BLE001  the one place: a fault ends its request only
                log.fault("request failed", request_id=request_id, path=request.path)
                return self._refusal(call, Fault(request_id))

        return handle

    async def _completion(self, call: Call) -> web.StreamResponse:
        self._calls += 1
        try:
            return await self._routed(call)
        finally:
            self._calls -= 1

    async def _routed(self, call: Call) -> web.StreamResponse:
        if self._service.draining:
            return self._refused(call, Draining())
        body = await self._body(call.request)
        if not isinstance(body, bytes):
            return self._refused(call, body)
        headers = _joined(call.request.headers.items())
        canonical = parse(_APIS[call.request.path], headers, body)
        if isinstance(canonical, BadRequest):
            return self._refused(call, canonical)
        await self._first_look(canonical.model)
        routed = await self._service.route(canonical, ANONYMOUS, call.id)
        if isinstance(routed, Refused):
            return self._refusal(call, routed.refusal, routed.record.id)
        relay = Relay(self._service, call.request, call.id, routed)
        try:
            return await self._answer(call, routed, relay)
        except asyncio.CancelledError:  # the client left
            self._service.aborted(routed, relay.seen)
            raise
        finally:
            # Only a fault gets here without an end; whatever comes, the lease is released.
            self._service.failed(routed, Fault(call.id))

    async def _first_look(self, model: str | None = None) -> None:
        """Wait at first until an engine serves the model, or all were asked: no 503 until then.

        One that takes long to ask holds up nobody whose model another serves, and nobody for long.
        """
        cluster, clock = self._service.cluster, self._service.clock
        if self._look_until is None:
            self._look_until = clock.monotonic() + FIRST_LOOK_S
        while (now := clock.monotonic()) < self._look_until:
            if model is not None and cluster.reachable(model):
                return
            if not any(view.away == NOT_ASKED for view in cluster.snapshot(now).engines):
                return
            await clock.sleep(FIRST_LOOK_POLL_S)

    async def _body(self, request: web.Request) -> bytes | BodyTooLarge | BodyTimeout | BadRequest:
        if (request.content_length or 0) > self._body_limit:
            return BodyTooLarge(self._body_limit)
        try:
            async with asyncio.timeout(self._timeouts.receive_s):
                body = await request.read()
        except TimeoutError:
            return BodyTimeout(self._timeouts.receive_s)
        except web.HTTPRequestEntityTooLarge:
            return BodyTooLarge(self._body_limit)
        except web.RequestPayloadError:
            return BadRequest("the body does not match its `content-encoding`", None)
        if "content-type" in request.headers and request.content_type != _JSON:
            return BadRequest(f"send JSON, and say so: `content-type: {_JSON}`", None)
        return body

    async def _expected(self, request: web.Request) -> web.StreamResponse | None:
        """Ask for a body (`expect: 100-continue`), unless it is refused before it is sent."""
        if (request.content_length or 0) > self._body_limit:
            return await self._boundary(self._completion)(request)
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer, which has not begun
        return None

    async def _answer(self, call: Call, routed: Routed, relay: Relay) -> web.StreamResponse:
        limit = None
        try:
            async with asyncio.timeout(None) as timer:
                limit = Limit(timer, self._timeouts)
                self._open.add(limit)
                refusal = await self._exchange(call, routed, relay, limit)
        except TimeoutError:
            assert limit is not None
            if relay.drop_stalled_client():
                self._service.aborted(routed, relay.seen)
            refusal = limit.refusal()
        except ConnectionResetError:  # the client left while it was written to
            self._service.aborted(routed, relay.seen)
            refusal = None
        finally:
            if limit is not None:
                self._open.discard(limit)
        if refusal is not None:
            self._service.failed(routed, refusal)
            if relay.response is None:
                return self._refusal(call, refusal, routed.record.id)
            await relay.cut(refusal)
        # A client that left before its answer began gets none.
        return relay.response or web.Response()

    async def _exchange(
        self, call: Call, routed: Routed, relay: Relay, limit: Limit
    ) -> Refusal | None:
        headers = forwarded(call.request.headers.items(), call.id)
        if routed.request.stream:
            limit.enter("first_token")
        upstream = await self._dispatcher.send(routed, call.request.path, headers)
        if not isinstance(upstream, aiohttp.ClientResponse):
            return upstream
        try:
            return await relay.run(upstream, limit)
        finally:
            if not upstream.content.at_eof():
                upstream.close()  # the engine stops when its client hangs up

    async def _models(self, call: Call) -> web.StreamResponse:
        await self._first_look()
        now = self._service.clock.monotonic()
        cards: dict[str, dict[str, Any]] = {
            served.name: _card(view.engine, served, self._created)
            for view in self._service.cluster.snapshot(now).engines
            if not view.away
            for served in view.engine.models
        }
        cards |= self._meant(cards)
        data = [cards[name] for name in sorted(cards)]
        return web.json_response(
            {"object": "list", "data": data}, headers={"x-request-id": call.id}
        )

    def _meant(self, cards: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return cards of the other names that requests may use: aliases, classes, providers'."""
        others: dict[str, dict[str, Any]] = {}
        for model in self._service.decider.rules.bench().layout.inventory.models.values():
            card = cards.get(model.name) or _foreign_card(model.name, self._created)
            for name in model.all_names - cards.keys():
                others.setdefault(name, {**card, "id": name})
        return others

    async def _elsewhere(self, call: Call) -> web.StreamResponse:
        if call.request.path in _APIS:
            return self._refusal(call, MethodNotAllowed("POST"))
        if call.request.path == "/v1/models":
            return self._refusal(call, MethodNotAllowed("GET"))
        return self._refusal(call, NotFound())

    def _refused(self, call: Call, refusal: Refusal) -> web.Response:
        refused = self._service.refuse(refusal, ANONYMOUS, call.id)
        return self._refusal(call, refusal, refused.record.id)

    def _refusal(self, call: Call, refusal: Refusal, record_id: str | None = None) -> web.Response:
        reply = to_reply(refusal)
        headers = {**reply.headers, "x-request-id": call.id}
        if record_id is not None:
            headers["x-lineside-decision"] = record_id
        response = web.Response(
            status=reply.status,
            body=reply.openai_body(),
            content_type="application/json",
            headers=headers,
        )
        if "connection" in headers:
            response.force_close()
        return response


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name; those of one name are one list."""
    joined: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _foreign_card(name: str, created: int) -> dict[str, Any]:
    """Return the card of a model that no engine of ours serves now."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "lineside"}
    return {**card, "root": name, "parent": None, "max_model_len": None}


def _card(engine: Engine, served: ServedModel, created: int) -> dict[str, Any]:
    base = next((model.name for model in engine.models if model.lora is None), None)
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "lineside",
        "root": engine.group if served.lora is None else served.lora,
        "parent": None if served.lora is None else base,
        "max_model_len": served.max_model_len,
    }
