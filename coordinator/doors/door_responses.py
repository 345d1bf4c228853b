"""The paths that show, delete or cancel a stored response: put to the engine that holds it."""

import asyncio

import aiohttp
from aiohttp import web

from coordinator.config import Timeouts
from coordinator.dispatch import forwarded
from coordinator.doors.asides import Asides, whole
from coordinator.doors.calls import Call
from coordinator.doors.holding import Holding
from coordinator.doors.malformed import BROKEN_BODY
from coordinator.doors.relay import Limit, ends_here
from coordinator.doors.stored import Holder
from coordinator.engines import Engine
from coordinator.error_shapes import is_no_answer
from coordinator.limits import NOBODY
from coordinator.refusal import NotServed, Refusal, UpstreamBroken
from coordinator.service import Service


class ResponsesDoor:
    """Passes on what is asked about a stored response."""

    def __init__(
        self, service: Service, asides: Asides, holding: Holding, timeouts: Timeouts
    ) -> None:
        self._service = service
        self._asides = asides
        self._holding = holding
        self._timeouts = timeouts

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Put a call for a stored response to the engine that holds it."""
        response = call.request.match_info["id"]
        holder = await self._holding.find(response, NOBODY)
        if not isinstance(holder, Holder):
            return self._refused(call, holder)
        engine = self._holding.engine(holder)
        if engine is None:  # a provider: it knows the response, and not who asks
            return self._refused(call, NotServed(holder.model))
        answer = await self._answer(call, engine, holder)
        if call.request.method == "DELETE" and answer.status < 300:
            self._holding.holders.forget(response)
        return answer

    async def _answer(self, call: Call, engine: Engine, holder: Holder) -> web.StreamResponse:
        sending = web.StreamResponse(headers=call.headers)
        refusal: Refusal = UpstreamBroken()
        limit = None
        try:
            async with asyncio.timeout(None) as timer:
                limit = Limit(timer, self._timeouts)
                return await self._passed(call, engine, holder, limit, sending)
        except TimeoutError:
            refusal = limit.refusal() if limit is not None else refusal
        except web.RequestPayloadError:
            refusal = BROKEN_BODY
        except aiohttp.ClientError:
            pass
        if not sending.prepared:
            return self._refused(call, refusal)
        if call.request.transport is not None:
            call.request.transport.close()  # what has begun cannot end as if it were complete
        return sending

    async def _passed(
        self, call: Call, engine: Engine, holder: Holder, limit: Limit, sending: web.StreamResponse
    ) -> web.StreamResponse:
        request = call.request
        headers = forwarded(request.headers.items(), call.id)
        body = await request.read() if request.method == "POST" else None
        path = request.rel_url.raw_path_qs
        async with await self._asides.ask(engine, request.method, path, headers, body) as answer:
            if answer.content_type == "text/event-stream":
                return await _stream(request, answer, limit, sending)
            read = await whole(answer)
        if read is None:
            return self._refused(call, UpstreamBroken())
        if is_no_answer(answer.status, read):
            return self._refused(call, NotServed(holder.model))
        kept = {n: v for n, v in answer.headers.items() if not ends_here(n)}
        return web.Response(status=answer.status, body=read, headers={**kept, **call.headers})

    def _refused(self, call: Call, refusal: Refusal) -> web.StreamResponse:
        refused = self._service.refuse(refusal, NOBODY, call.id)
        return call.refusal(refusal, refused.record.id)


async def _stream(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    limit: Limit,
    sending: web.StreamResponse,
) -> web.StreamResponse:
    sending.headers["content-type"] = answer.headers["content-type"]
    await sending.prepare(request)
    limit.enter("idle")
    while chunk := await answer.content.readany():
        await sending.write(chunk)
        limit.touch()
    await sending.write_eof()
    return sending
