"""The HTTP gateway for OpenAI clients: translates in, calls the service, translates out.

Streams pass through as bytes. Until an engine's first content has come nothing is sent, so that a
failure before it is a proper error; after it the client's connection is cut rather than ended as
if the answer were complete. Every routed request is ended on every path.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from coordinator.canonical import Api, BadRequest, parse
from coordinator.cluster import Engine, ServedModel
from coordinator.config import Timeouts
from coordinator.dispatch import HOP_BY_HOP, Dispatcher, Limit, forwarded
from coordinator.limits import Usage
from coordinator.refusal import (
    BodyTooLarge,
    Fault,
    MethodNotAllowed,
    NotFound,
    Refusal,
    UpstreamBroken,
    to_reply,
)
from coordinator.service import Refused, Routed, Service
from coordinator.sse import Stream, read_answer
from lineside import logs
from lineside.ids import TenantId

log = logs.get("coordinator.door_http")

ANONYMOUS = TenantId("default")
"""Whose requests these are, until tenants are configured."""

ANSWER_BYTES = 64 * 2**20
"""A larger answer that is not streamed counts as broken off."""

HELD_BYTES = 2**16
"""A stream that brings more than this before any content is sent on as it is."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
_APIS = {"/v1/chat/completions": Api.OPENAI_CHAT, "/v1/completions": Api.OPENAI_COMPLETIONS}
_ENDS_HERE = HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}

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
        self, service: Service, dispatcher: Dispatcher, timeouts: Timeouts, body_limit_bytes: int
    ) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._timeouts = timeouts
        self._body_limit = body_limit_bytes
        self._created = int(service.clock.unix())

    def application(self) -> web.Application:
        """Return what an aiohttp runner serves. It must cancel handlers of clients that left."""
        app = web.Application(client_max_size=self._body_limit)
        for path in _APIS:
            app.router.add_post(path, self._boundary(self._completion))
        app.router.add_get("/v1/models", self._boundary(self._models))
        app.router.add_route("*", "/{path:.*}", self._boundary(self._elsewhere))
        return app

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
        body = await self._body(call.request)
        if not isinstance(body, bytes):
            return self._refused(call, body)
        headers = {name.lower(): value for name, value in call.request.headers.items()}
        canonical = parse(_APIS[call.request.path], headers, body)
        if isinstance(canonical, BadRequest):
            return self._refused(call, canonical)
        routed = await self._service.route(canonical, ANONYMOUS, call.id)
        if isinstance(routed, Refused):
            return self._refusal(call, routed.refusal, routed.record.id)
        try:
            return await self._answer(call, routed)
        except asyncio.CancelledError:  # the client left, or we stop
            self._service.aborted(routed, Usage())
            raise
        finally:
            # Only a fault gets here without an end; whatever comes, the lease is released.
            self._service.failed(routed, Fault(call.id))

    async def _body(self, request: web.Request) -> bytes | BodyTooLarge | BadRequest:
        if (request.content_length or 0) > self._body_limit:
            return BodyTooLarge(self._body_limit)
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            return BodyTooLarge(self._body_limit)
        except web.RequestPayloadError:
            return BadRequest("the body does not match its `content-encoding`", None)

    async def _answer(self, call: Call, routed: Routed) -> web.StreamResponse:
        relay = _Relay(self._service, call, routed)
        limit = None
        try:
            async with asyncio.timeout(None) as timer:
                limit = Limit(timer, self._timeouts)
                refusal = await self._exchange(relay, limit)
        except TimeoutError:
            assert limit is not None
            if relay.drop_stalled_client():
                self._service.aborted(routed, Usage())
            refusal = limit.refusal()
        except ConnectionResetError:  # the client left while it was written to
            self._service.aborted(routed, Usage())
            refusal = None
        if refusal is not None:
            self._service.failed(routed, refusal)
            if relay.response is None:
                return self._refusal(call, refusal, routed.record.id)
            await relay.cut(refusal)
        assert relay.response is not None
        return relay.response

    async def _exchange(self, relay: "_Relay", limit: Limit) -> Refusal | None:
        call, routed = relay.call, relay.routed
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
        now = self._service.clock.monotonic()
        cards = {
            served.name: _card(view.engine, served, self._created)
            for view in self._service.cluster.snapshot(now).engines
            if not view.away
            for served in view.engine.models
        }
        data = [cards[name] for name in sorted(cards)]
        return web.json_response(
            {"object": "list", "data": data}, headers={"x-request-id": call.id}
        )

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
        return web.Response(
            status=reply.status,
            body=reply.openai_body(),
            content_type="application/json",
            headers=headers,
        )


class _Relay:
    """One answer on its way from an engine to a client."""

    def __init__(self, service: Service, call: Call, routed: Routed) -> None:
        self.call = call
        self.routed = routed
        self.response: web.StreamResponse | None = None
        self._service = service

    async def run(self, upstream: aiohttp.ClientResponse, limit: Limit) -> Refusal | None:
        """Relay all of it; return what went wrong, if the engine did not come to its end."""
        if self.routed.request.stream and upstream.content_type == "text/event-stream":
            return await self._stream(upstream, limit)
        limit.enter("total")
        body = await _read(upstream)
        if body is None:
            return UpstreamBroken()
        usage, finish = read_answer(body) if upstream.status == 200 else (Usage(), None)
        self._service.finished(self.routed, upstream.status, usage, finish)
        self.response = web.Response(
            status=upstream.status, body=body, headers=self._headers(upstream)
        )
        return None

    async def _stream(self, upstream: aiohttp.ClientResponse, limit: Limit) -> Refusal | None:
        stream = Stream(strip_usage=not self.routed.request.usage_asked)
        held, response, readany = b"", None, upstream.content.readany
        while True:
            try:
                chunk = await readany()
            except aiohttp.ClientError:
                return UpstreamBroken()
            out = stream.feed(chunk) if chunk else stream.close()
            if response is not None:
                if out:
                    await response.write(out)
            else:
                held += out
                if stream.has_content:
                    self._service.first_token(self.routed)
                elif chunk and not stream.done and len(held) <= HELD_BYTES:
                    continue
                response = await self._start(upstream, held)
                limit.enter("idle")
            if not chunk:
                break
            limit.touch()
        if stream.failed:
            self._service.failed(self.routed, UpstreamBroken())
        else:
            self._service.finished(self.routed, upstream.status, stream.usage, stream.finish)
        await response.write_eof()
        return None

    async def _start(self, upstream: aiohttp.ClientResponse, first: bytes) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=self._headers(upstream))
        await response.prepare(self.call.request)
        self.response = response
        await response.write(first)
        return response

    def _headers(self, upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
        headers = CIMultiDict(
            (name, value)
            for name, value in upstream.headers.items()
            if name.lower() not in _ENDS_HERE
        )
        headers["x-request-id"] = self.call.id
        headers["x-lineside-decision"] = self.routed.record.id
        headers["x-lineside-engine"] = self.routed.engine.id
        return headers

    def drop_stalled_client(self) -> bool:
        """Hang up on a client that has bytes to read and does not take them."""
        transport = self.call.request.transport
        if transport is None or not transport.get_write_buffer_size():
            return False
        transport.abort()
        return True

    async def cut(self, refusal: Refusal) -> None:
        """End a stream that cannot be completed: an error event, then no proper end."""
        if self.response is not None:
            with contextlib.suppress(ConnectionResetError):
                await self.response.write(b"data: " + to_reply(refusal).openai_body() + b"\n\n")
        if self.call.request.transport is not None:
            self.call.request.transport.close()


async def _read(upstream: aiohttp.ClientResponse) -> bytes | None:
    """Return a whole answer; `None` when it broke off or is beyond the bound."""
    parts, size = [], 0
    try:
        while part := await upstream.content.readany():
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES:
                return None
    except aiohttp.ClientError:
        return None
    return b"".join(parts)


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
