"""One backend's answer on its way to a client, and the one timer of a request.

Streams pass through as bytes. Until the first content has come nothing is sent, so that a
failure before it is a proper error; after it the client's connection is cut rather than ended as
if the answer were complete.
"""

import asyncio
import contextlib
import zlib
from dataclasses import dataclass

import aiohttp
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from coordinator import error_shapes
from coordinator.answer_parts import response_id
from coordinator.apis import Api
from coordinator.candidates import Provider, spoken
from coordinator.config import Timeouts
from coordinator.dispatch import PROVIDER_UNAVAILABLE, UNAVAILABLE
from coordinator.doors.calls import JSON, Call
from coordinator.doors.carriers import Carriage
from coordinator.doors.outlet import Outlet
from coordinator.doors.sse import Carried, stream_of
from coordinator.doors.stored import Holder, Holders
from coordinator.limits import Usage
from coordinator.providers.keys import KEPT_HEADERS
from coordinator.refusal import (
    KEY_REFUSED,
    RETRY_SOON,
    NotServed,
    Refusal,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    to_reply,
)
from coordinator.service import Routed
from coordinator.watch import WatchedService
from policies.reserved import HOP_BY_HOP

ANSWER_BYTES = 64 * 2**20
"""A larger answer that is not streamed counts as broken off."""

HELD_BYTES = 2**20
"""A stream that brings more than this before any content is sent on as it is: what announces a
response repeats its instructions and tools, twice."""

TOUCH_S = 1.0
"""How often at most the timer of a stream that flows is moved: a wait may end that much early."""

CUT_S = 0.5
"""What a client gets to take the error event in, before it is cut off."""

STREAMS = frozenset(
    {
        *("text/event-stream", "application/vnd.amazon.eventstream"),
        *("application/octet-stream", "text/plain"),  # nothing said, or not the truth
    }
)
"""What a stream that was asked for is called."""

_UNPACK_ANY = 47
"""For zlib: whatever is packed by it, in either wrapping."""

_ENDS_HERE = HOP_BY_HOP | {"content-length", "date", "server", "x-request-id", "request-id"}


def ends_here(name: str) -> bool:
    """Whether an engine's header is not for clients; who decided, and who may call, is our word."""
    name = name.lower()
    return name in _ENDS_HERE or name.startswith(("access-control-", "x-lineside-"))


@dataclass(frozen=True, slots=True)
class NotBegun:
    """A stream that brought an error and nothing else: it can still be an answer with a status."""

    status: int
    body: bytes
    """In the client's shape."""

    def is_safe(self, is_engine: bool) -> bool:
        """Whether the backend says that it did not run the request."""
        return self.status in (UNAVAILABLE if is_engine else PROVIDER_UNAVAILABLE)


class Limit:
    """The phase that a request is in, and its end in any case."""

    def __init__(self, timer: asyncio.Timeout, timeouts: Timeouts) -> None:
        self._timer = timer
        self._timeouts = timeouts
        self._now = asyncio.get_running_loop().time
        self._last = self._now() + timeouts.total_s
        self._total_s, self._end = timeouts.total_s, self._last
        self._phase = ""
        self._touched = 0.0
        self._grain_s = TOUCH_S
        self._stopped: Refusal | None = None
        self.enter("total")

    def enter(self, phase: str) -> None:
        """Start to wait for what a phase brings."""
        self._phase = phase
        self._touched = self._now()
        self._grain_s = min(TOUCH_S, self._seconds() / 8)
        self._arm()

    def within(self, total_s: float | None, past_s: float) -> None:
        """Let an answer take no longer than its backend may, of which a part is past."""
        before = self._end
        self._total_s, self._end = self._timeouts.total_s, self._last
        if total_s is not None and (end := self._now() + total_s - past_s) < self._last:
            self._total_s, self._end = total_s, end
        if self._end != before:
            self._arm()

    def touch(self) -> bool:
        """Note that something came. Cheap: the timer moves once in a while, and then it is true."""
        if self._now() - self._touched <= self._grain_s:
            return False
        self.enter(self._phase)
        return True

    def stop(self, why: Refusal) -> None:
        """End the request now."""
        self._stopped = self._stopped or why
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._timer.reschedule(self._now())

    def refusal(self) -> Refusal:
        """Say which wait was too long, or why it was ended."""
        if self._stopped is not None:
            return self._stopped
        if self._now() >= self._end:
            return UpstreamTimeout("total", self._total_s)
        return UpstreamTimeout(self._phase, self._seconds())

    def _arm(self) -> None:
        if self._stopped is None:
            self._timer.reschedule(min(self._end, self._touched + self._seconds()))

    def _seconds(self) -> float:
        seconds: float = getattr(self._timeouts, f"{self._phase}_s")
        return seconds


class _Stream(web.StreamResponse):
    """A stream whose head goes out with its first bytes, which are there: one write, not two."""

    _send_headers_immediately = False


class Relay:
    """Carries one answer."""

    def __init__(
        self, service: WatchedService, call: Call, routed: Routed, holders: Holders
    ) -> None:
        self.response: web.StreamResponse | None = None
        """What the client is being sent; `None`: nothing yet."""
        self._service = service
        self._request = call.request
        self._call = call
        self._routed = routed
        self._holders = holders
        self._passed: Carried | None = None

    @property
    def seen(self) -> Usage:
        """What passed of an answer that was broken off."""
        if self._passed is None:
            return Usage(partial=True)
        said = self._passed.usage.completion_tokens
        return Usage(completion_tokens=said or self._passed.pieces, partial=True)

    async def run(
        self, upstream: aiohttp.ClientResponse, limit: Limit
    ) -> Refusal | NotBegun | None:
        """Relay all of it; return what went wrong, if the backend did not come to its end."""
        target, past_s = self._routed.target, self._service.clock.monotonic() - self._routed.decided
        limit.within(target.timeout_s if isinstance(target, Provider) else None, past_s)
        if upstream.status in KEY_REFUSED:
            return UpstreamError(upstream.status)
        is_good = upstream.status == 200
        if self._routed.request.stream and is_good and upstream.content_type in STREAMS:
            return await self._stream(upstream, limit)
        if 300 <= upstream.status < 400:  # nobody is sent on to an address that we do not know
            return UpstreamError(upstream.status)
        limit.enter("total")
        body = await _read(upstream)
        if self._is_foreign:
            body = await _unpacked(body, upstream)
        if body is None or (self._is_foreign and 200 < upstream.status < 300):
            return UpstreamBroken()
        if upstream.status >= 500 and upstream.content_type != JSON:
            return UpstreamError(upstream.status)
        if error_shapes.is_no_answer(upstream.status, body):
            return NotServed(self._routed.request.model)
        said = self._said(upstream.status, body)
        if said is None:
            return UpstreamBroken()
        body, usage, finish = said
        self._service.finished(self._routed, upstream.status, usage, finish)
        status = error_shapes.client_status(self._routed.request.api, upstream.status)
        await self._send(status, body, _with_patience(self._headers(upstream), status), limit)
        return None

    async def refuse(self, ended: NotBegun, limit: Limit) -> None:
        """Answer with the error that a stream began with."""
        status = error_shapes.client_status(self._routed.request.api, ended.status)
        self._service.finished(self._routed, status, Usage(), None)
        headers = _with_patience(self._own_headers(), status)
        headers["content-type"] = JSON
        carriage = self._carriage
        is_ours = carriage.is_foreign and carriage.is_native  # what is translated is so already
        body = carriage.failure(status, ended.body, self._call.id) if is_ours else ended.body
        await self._send(status, body, headers, limit)

    async def _send(
        self, status: int, body: bytes, headers: CIMultiDict[str], limit: Limit
    ) -> None:
        self.response = web.Response(status=status, body=body, headers=headers)
        await self.response.prepare(self._request)
        limit.enter("idle")
        await self.response.write_eof()

    def _said(self, status: int, body: bytes) -> tuple[bytes, Usage, str | None] | None:
        """Return an answer in the client's API, and what it says of itself."""
        carriage = self._carriage
        if status != 200:
            return carriage.failure(status, body, self._call.id), Usage(), None
        if carriage.is_native and carriage.client is Api.OPENAI_RESPONSES:
            self._note(response_id(body))
        return carriage.answer(body)

    @property
    def _carriage(self) -> Carriage:
        request, record = self._routed.request, self._routed.record
        backend = spoken(self._routed.target, request.api) or request.api
        created = int(record.at)
        return Carriage(request.api, backend, request.model, record.id, created, self._is_foreign)

    @property
    def _is_foreign(self) -> bool:
        return self._routed.candidate.type == "provider"

    def _note(self, response: str | None) -> None:
        """Remember who holds a response, before its client can ask for it."""
        if response is not None:
            request, target = self._routed.request, self._routed.target
            is_engine = self._routed.candidate.type == "engine"
            holder = Holder(target.endpoint, request.model, self._routed.record.tenant, is_engine)
            self._holders.note(response, holder)

    async def _stream(
        self, upstream: aiohttp.ClientResponse, limit: Limit
    ) -> Refusal | NotBegun | None:
        stream = self._passed = self._carriage.stream(self._routed.request.usage_asked)
        held, outlet, told, readany = b"", None, False, upstream.content.readany
        while True:
            try:
                chunk = await readany()
            except aiohttp.ClientError:
                chunk = b""
            if not chunk and not (stream.done or stream.failed):
                return UpstreamBroken()  # whether it hung up or ended: the answer is not whole
            out = stream.feed(chunk) if chunk else stream.close()
            if not told and stream.has_content:
                told = True
                self._service.first_token(self._routed)
                limit.enter("idle")
            if outlet is not None:
                if out and outlet.send(out):
                    await outlet.drain()
            else:
                held += out
                if stream.failed and not told:
                    return self._not_begun(held)
                if chunk and not (told or stream.done or len(held) > HELD_BYTES):
                    continue
                outlet = await self._start(upstream, stream, held)
            if not chunk:
                break
            if limit.touch():
                self._service.got_on(self._routed)
        self._end(stream, upstream.status)
        assert self.response is not None  # it was started
        await self.response.write_eof()
        return None

    def _not_begun(self, held: bytes) -> NotBegun:
        api = self._routed.request.api
        said = stream_of(api, usage_asked=True)
        said.feed(held)
        event = error_shapes.read_event(api, said.error)
        return NotBegun(event.status, event.body)

    def _end(self, stream: Carried, status: int) -> None:
        if stream.failed:
            self._service.failed(self._routed, UpstreamBroken())
        else:
            self._service.finished(self._routed, status, stream.usage, stream.finish)

    async def _start(
        self, upstream: aiohttp.ClientResponse, stream: Carried, first: bytes
    ) -> Outlet:
        self._note(stream.response)
        response = _Stream(status=upstream.status, headers=self._headers(upstream))
        if self._request.version < HttpVersion11:
            response.force_close()  # nothing else can end it: there is no length and no chunk
        await response.prepare(self._request)
        self.response = response
        await response.write(first)
        return Outlet(self._request, response)

    def _headers(self, upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
        is_engine = self._routed.candidate.type == "engine"
        headers = self._own_headers()
        for name, value in upstream.headers.items():
            if not ends_here(name) if is_engine else name.lower() in KEPT_HEADERS:
                headers.add(name, value)
        if not is_engine and self._passed is None:
            headers.popall("content-encoding", None)  # it was unpacked
        if not self._carriage.is_native:
            is_stream = self._passed is not None
            headers["content-type"] = "text/event-stream; charset=utf-8" if is_stream else JSON
        return headers

    def _own_headers(self) -> CIMultiDict[str]:
        headers = CIMultiDict(self._call.headers)
        headers["x-lineside-decision"] = self._routed.record.id
        headers["x-lineside-engine"] = self._routed.target.id
        return headers

    def drop_stalled_client(self) -> bool:
        """Hang up on a client that has bytes to read and does not take them."""
        transport = self._request.transport
        if transport is None or not transport.get_write_buffer_size():
            return False
        transport.abort()
        return True

    async def cut(self, refusal: Refusal) -> None:
        """End a stream that cannot be completed: an error event, then no proper end."""
        if self._passed is not None and self.response is not None:
            api = self._routed.request.api
            event = error_shapes.event(to_reply(refusal), api, self._call.id)
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                async with asyncio.timeout(CUT_S):
                    await self.response.write(event)
        if self._request.transport is not None:
            self._request.transport.close()


def _with_patience(headers: CIMultiDict[str], status: int) -> CIMultiDict[str]:
    """Say when to come again, where a backend that wants to be left alone does not."""
    if status == 503:
        headers.setdefault(*next(iter(RETRY_SOON.items())))
    return headers


async def _unpacked(body: bytes | None, upstream: aiohttp.ClientResponse) -> bytes | None:
    """Return an answer that a provider packed, though it was asked not to; `None`: it is broken."""
    if not body or "content-encoding" not in upstream.headers:
        return body
    unpacking = zlib.decompressobj(_UNPACK_ANY)
    try:  # aside: a few kB may become the most that an answer has, in 170 ms
        out = await asyncio.to_thread(unpacking.decompress, body, ANSWER_BYTES)
    except zlib.error:
        return None
    return out if unpacking.eof else None


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
