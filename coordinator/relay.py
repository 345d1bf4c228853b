"""One engine's answer on its way to a client, and the one timer of a request.

Streams pass through as bytes. Until an engine's first content has come nothing is sent, so that a
failure before it is a proper error; after it the client's connection is cut rather than ended as
if the answer were complete.
"""

import asyncio
import contextlib

import aiohttp
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from coordinator.answer_parts import read_answer
from coordinator.config import Timeouts
from coordinator.limits import Usage
from coordinator.providers import KEPT_HEADERS
from coordinator.refusal import (
    KEY_REFUSED,
    RETRY_SOON,
    Refusal,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    to_reply,
)
from coordinator.service import Routed
from coordinator.sse import Stream
from coordinator.watch import WatchedService
from policies.reserved import HOP_BY_HOP

ANSWER_BYTES = 64 * 2**20
"""A larger answer that is not streamed counts as broken off."""

HELD_BYTES = 2**16
"""A stream that brings more than this before any content is sent on as it is."""

TOUCH_S = 1.0
"""How often at most the timer of a stream that flows is moved: a wait may end that much early."""

CUT_S = 0.5
"""What a client gets to take the error event in, before it is cut off."""

_ENDS_HERE = HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}


class Limit:
    """The phase that a request is in, and its end in any case."""

    def __init__(self, timer: asyncio.Timeout, timeouts: Timeouts) -> None:
        self._timer = timer
        self._timeouts = timeouts
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + timeouts.total_s
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
        if self._stopped is None:
            self._timer.reschedule(min(self._end, self._touched + self._seconds()))

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
            self._phase = "total"
        return UpstreamTimeout(self._phase, self._seconds())

    def _seconds(self) -> float:
        seconds: float = getattr(self._timeouts, f"{self._phase}_s")
        return seconds


class Relay:
    """Carries one answer."""

    def __init__(
        self, service: WatchedService, request: web.Request, request_id: str, routed: Routed
    ) -> None:
        self.response: web.StreamResponse | None = None
        """What the client is being sent; `None`: nothing yet."""
        self._service = service
        self._request = request
        self._request_id = request_id
        self._routed = routed
        self._passed: Stream | None = None

    @property
    def seen(self) -> Usage:
        """What passed of an answer that was broken off."""
        if self._passed is None:
            return Usage(partial=True)
        said = self._passed.usage.completion_tokens
        return Usage(completion_tokens=said or self._passed.pieces, partial=True)

    async def run(self, upstream: aiohttp.ClientResponse, limit: Limit) -> Refusal | None:
        """Relay all of it; return what went wrong, if the engine did not come to its end."""
        if upstream.status in KEY_REFUSED:
            return UpstreamError(upstream.status)
        if self._routed.request.stream and upstream.content_type == "text/event-stream":
            return await self._stream(upstream, limit)
        if 300 <= upstream.status < 400:  # nobody is sent on to an address that we do not know
            return UpstreamError(upstream.status)
        limit.enter("total")
        body = await _read(upstream)
        if body is None:
            return UpstreamBroken()
        if upstream.status >= 500 and upstream.content_type != "application/json":
            return UpstreamError(upstream.status)
        usage, finish = read_answer(body) if upstream.status == 200 else (Usage(), None)
        self._service.finished(self._routed, upstream.status, usage, finish)
        headers = self._headers(upstream)
        self.response = web.Response(status=upstream.status, body=body, headers=headers)
        await self.response.prepare(self._request)
        limit.enter("idle")
        await self.response.write_eof()
        return None

    async def _stream(self, upstream: aiohttp.ClientResponse, limit: Limit) -> Refusal | None:
        stream = self._passed = Stream(strip_usage=not self._routed.request.usage_asked)
        held, response, readany = b"", None, upstream.content.readany
        while True:
            try:
                chunk = await readany()
            except aiohttp.ClientError:
                chunk = b""
            if not chunk and not (stream.done or stream.failed):
                return UpstreamBroken()  # whether it hung up or ended: the answer is not whole
            out = stream.feed(chunk) if chunk else stream.close()
            if response is not None:
                if out:
                    await response.write(out)
            else:
                held += out
                if stream.has_content:
                    self._service.first_token(self._routed)
                elif chunk and not stream.done and len(held) <= HELD_BYTES:
                    continue
                response = await self._start(upstream, held)
                limit.enter("idle")
            if not chunk:
                break
            if limit.touch():
                self._service.got_on(self._routed)
        self._end(stream, upstream.status)
        await response.write_eof()
        return None

    def _end(self, stream: Stream, status: int) -> None:
        if stream.failed:
            self._service.failed(self._routed, UpstreamBroken())
        else:
            self._service.finished(self._routed, status, stream.usage, stream.finish)

    async def _start(self, upstream: aiohttp.ClientResponse, first: bytes) -> web.StreamResponse:
        response = web.StreamResponse(status=upstream.status, headers=self._headers(upstream))
        if self._request.version < HttpVersion11:
            response.force_close()  # nothing else can end it: there is no length and no chunk
        await response.prepare(self._request)
        self.response = response
        await response.write(first)
        return response

    def _headers(self, upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
        is_engine = self._routed.candidate.type == "engine"
        headers = CIMultiDict(
            (name, value)
            for name, value in upstream.headers.items()
            if (name.lower() not in _ENDS_HERE if is_engine else name.lower() in KEPT_HEADERS)
        )
        headers["x-request-id"] = self._request_id
        headers["x-lineside-decision"] = self._routed.record.id
        headers["x-lineside-engine"] = self._routed.target.id
        if upstream.status == 503:
            headers.setdefault(*next(iter(RETRY_SOON.items())))
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
            event = b"data: " + to_reply(refusal).openai_body() + b"\n\n"
            with contextlib.suppress(ConnectionResetError, TimeoutError):
                async with asyncio.timeout(CUT_S):
                    await self.response.write(event)
        if self._request.transport is not None:
            self._request.transport.close()


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
