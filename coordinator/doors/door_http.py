"""The HTTP gateway for clients of every API: translates in, calls the service, translates out.

Judges what can be judged before anything is parsed: method, path, size, kind. Every routed request
is ended on every path. `relay` carries the answer; the other `door_` modules answer what generates
nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from coordinator.apis import COUNT_TOKENS, PATHS, api_of
from coordinator.attempts import Attempt, Repeat
from coordinator.attempts import Fault as ProviderFault
from coordinator.canonical import BadRequest, Canonical
from coordinator.config import Timeouts
from coordinator.discovery import NOT_ASKED
from coordinator.dispatch import Dispatcher, forwarded
from coordinator.doors.asides import Asides
from coordinator.doors.calls import JSON, Call
from coordinator.doors.cross_origin import CrossOrigin
from coordinator.doors.door_counts import CountsDoor
from coordinator.doors.door_models import ModelsDoor
from coordinator.doors.door_responses import ResponsesDoor
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing
from coordinator.doors.malformed import BROKEN_BODY, MalformedDoor
from coordinator.doors.parsing import joined, parsed, request_id_of
from coordinator.doors.relay import Limit, NotBegun, Relay
from coordinator.limits import NOBODY
from coordinator.refusal import (
    BodyTimeout,
    BodyTooLarge,
    Draining,
    Fault,
    MethodNotAllowed,
    NotFound,
    Refusal,
    blamed,
)
from coordinator.service import Refused, Routed
from coordinator.targets import Reach
from coordinator.watch import WatchedService
from lineside import logs

log = logs.get("coordinator.doors.door_http")

FIRST_LOOK_S = 1.0
"""From the first request of all, for discovery to ask every engine once; early ones wait for it."""

FIRST_LOOK_POLL_S = 0.005

_STORED = "/v1/responses/{id}"
_METHODS = {"/v1/models": "GET", COUNT_TOKENS: "POST"} | dict.fromkeys(PATHS, "POST")

Handler = Callable[[Call], Awaitable[web.StreamResponse]]
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """The gateway's handlers."""

    def __init__(
        self,
        *,
        service: WatchedService,
        dispatcher: Dispatcher,
        asides: Asides,
        holding: Holding,
        listing: Listing,
        timeouts: Timeouts,
        body_limit_bytes: int,
        cross_origin: CrossOrigin,
    ) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._timeouts = timeouts
        self._body_limit = body_limit_bytes
        self._cross_origin = cross_origin
        self._holding = holding
        self.malformed = MalformedDoor(service)
        """Answers what never gets to a handler."""
        self._models = ModelsDoor(listing)
        self._counts = CountsDoor(service, asides)
        self._responses = ResponsesDoor(service, asides, holding, timeouts)
        self._look_until: float | None = None
        self._open: set[Limit] = set()
        self._calls = 0

    def application(self) -> web.Application:
        """Return what an aiohttp runner serves. It must cancel handlers of clients that left."""
        app = web.Application(client_max_size=self._body_limit)
        self._cross_origin.install(app)
        for path in (*PATHS, COUNT_TOKENS):
            handler = self._boundary(self._counted(self._asked))
            app.router.add_post(path, handler, expect_handler=self._expected)
        stored = self._boundary(self._counted(self._responses.pass_on))
        app.router.add_get(_STORED, stored, allow_head=False)
        app.router.add_delete(_STORED, stored)
        app.router.add_post(f"{_STORED}/cancel", stored)
        app.router.add_get("/v1/models", self._boundary(self._after_first_look(self._models.all)))
        one = self._boundary(self._after_first_look(self._models.one))
        app.router.add_get("/v1/models/{id:.+}", one)
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
            request_id = request_id_of(request.headers.get("x-request-id", ""))
            call = Call(request, request_id)
            try:
                return await handler(call)
            except Exception:  # noqa: BLE001  the one place: a fault ends its request only
                log.fault("request failed", request_id=request_id, path=request.path)
                return call.refusal(Fault(request_id))

        return handle

    def _counted(self, handler: Handler) -> Handler:
        """Count calls that a coordinator waits for before it stops."""

        async def handle(call: Call) -> web.StreamResponse:
            self._calls += 1
            try:
                if self._service.draining:
                    return self._refused(call, Draining())
                return await handler(call)
            finally:
                self._calls -= 1

        return handle

    def _after_first_look(self, handler: Handler) -> Handler:
        async def handle(call: Call) -> web.StreamResponse:
            await self._first_look()
            return await handler(call)

        return handle

    async def _asked(self, call: Call) -> web.StreamResponse:
        body = await self._body(call.request)
        if not isinstance(body, bytes):
            return self._refused(call, body)
        api = api_of(call.request.path)
        assert api is not None  # the router knows no others
        headers = joined(call.request.headers.items())
        canonical = await parsed(api, headers, body, self._service.heavy)
        if isinstance(canonical, BadRequest):
            return self._refused(call, canonical)
        await self._first_look(canonical.model)
        if call.request.path == COUNT_TOKENS:
            return await self._counts.count(call, canonical)
        return await self._routed(call, canonical)

    async def _routed(self, call: Call, canonical: Canonical) -> web.StreamResponse:
        subset = await self._holding.subset(canonical.previous_response, NOBODY)
        if not (subset is None or isinstance(subset, frozenset)):
            return self._refused(call, subset)
        routed = await self._service.route(canonical, NOBODY, call.id, Reach(subset))
        if isinstance(routed, Refused):
            return call.refusal(routed.refusal, routed.record.id)
        relay = Relay(self._service, call, routed, self._holding.holders)
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
            if model is not None and cluster.is_served(model):
                return
            if not any(view.away == NOT_ASKED for view in cluster.snapshot(now).engines):
                return
            await clock.sleep(FIRST_LOOK_POLL_S)

    async def _body(self, request: web.Request) -> bytes | Refusal:
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
            return BROKEN_BODY
        if "content-type" in request.headers and request.content_type != JSON:
            return BadRequest(f"send JSON, and say so: `content-type: {JSON}`", None)
        return body

    async def _expected(self, request: web.Request) -> web.StreamResponse | None:
        """Ask for a body (`expect: 100-continue`), unless it is refused before it is sent."""
        if (request.content_length or 0) > self._body_limit:
            return await self._boundary(self._counted(self._asked))(request)
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
            refusal = blamed(refusal, routed.candidate.type)
            self._service.failed(routed, refusal)
            if relay.response is None:
                return call.refusal(refusal, routed.record.id)
            await relay.cut(refusal)
        # A client that left before its answer began gets none.
        return relay.response or web.Response()

    async def _exchange(
        self, call: Call, routed: Routed, relay: Relay, limit: Limit
    ) -> Refusal | None:
        """Try backends until one has answered, or none may be tried any more."""
        headers = forwarded(call.request.headers.items(), call.id)
        while True:
            if routed.request.stream:
                limit.enter("first_token")
            upstream = await self._dispatcher.send(routed, call.request.path, headers)
            if not isinstance(upstream, aiohttp.ClientResponse):
                return upstream
            try:
                ended = await relay.run(upstream, limit)
            finally:
                if not upstream.content.at_eof():
                    upstream.close()  # the engine stops when its client hangs up
            if not isinstance(ended, NotBegun):
                return ended
            if not self._elsewhere_after(routed, ended):
                await relay.refuse(ended, limit)
                return None

    def _elsewhere_after(self, routed: Routed, ended: NotBegun) -> bool:
        """Move on from a backend that took a request, and then said that it does not run it."""
        kind = routed.candidate.type
        if not ended.is_safe(kind == "engine"):
            return False
        reason = f"the {kind} began a stream, and said {ended.status} before any content"
        busy = ProviderFault.BUSY
        attempt = Attempt(routed.target.id, Repeat.SAFE, reason, fault=busy)
        return self._service.fallback(routed, attempt)

    async def _elsewhere(self, call: Call) -> web.StreamResponse:
        if (allowed := self._cross_origin.preflight(call.request)) is not None:
            return allowed
        if method := _METHODS.get(call.request.path):
            return call.refusal(MethodNotAllowed(method))
        return call.refusal(NotFound())

    def _refused(self, call: Call, refusal: Refusal) -> web.Response:
        refused = self._service.refuse(refusal, NOBODY, call.id)
        return call.refusal(refusal, refused.record.id)
