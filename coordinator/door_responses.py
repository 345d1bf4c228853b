"""Stored responses: who holds one, and the paths that show, delete or cancel it.

A response lives in the memory of the engine that made it. Which one that is, is remembered; after a
restart, or where another coordinator routed it, engines are asked once.
"""

import asyncio
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from coordinator.asides import ERRORS, Asides, whole
from coordinator.calls import ANONYMOUS, JSON, Call
from coordinator.config import Timeouts
from coordinator.dispatch import forwarded
from coordinator.engines import Engine, EngineView
from coordinator.error_shapes import is_no_answer
from coordinator.refusal import (
    NoEngineReady,
    NotServed,
    Refusal,
    ResponseGone,
    ResponseUnknown,
    UpstreamBroken,
)
from coordinator.relay import Limit, ends_here
from coordinator.service import Service
from coordinator.stored import Holder, Holders

LOOK_S = 1.0
"""For all engines together, when nobody knows who holds a response."""

LOOKED_AT = 64
"""More are not asked for one response."""


class ResponsesDoor:
    """Finds holders, and passes on what is asked about a stored response."""

    def __init__(
        self, service: Service, asides: Asides, holders: Holders, timeouts: Timeouts
    ) -> None:
        self._service = service
        self._asides = asides
        self._holders = holders
        self._timeouts = timeouts

    async def subset(self, response: str | None) -> frozenset[str] | Refusal | None:
        """Return the one endpoint that a request may go to; `None`: it goes on from nothing."""
        if response is None:
            return None
        holder = await self._find(response)
        return frozenset({holder.endpoint}) if isinstance(holder, Holder) else holder

    async def pass_on(self, call: Call) -> web.StreamResponse:
        """Put a call for a stored response to the engine that holds it."""
        response = call.request.match_info["id"]
        holder = await self._find(response)
        if not isinstance(holder, Holder):
            return self._refused(call, holder)
        engine = self._views(holder.endpoint)[0].engine if self._views(holder.endpoint) else None
        if engine is None:  # a provider: it knows the response, and not who asks
            return self._refused(call, NotServed(holder.model))
        answer = await self._answer(call, engine, holder)
        if call.request.method == "DELETE" and answer.status < 300:
            self._holders.forget(response)
        return answer

    async def _find(self, response: str) -> Holder | Refusal:
        holder = self._holders.find(response, ANONYMOUS)
        if holder is None and not self._holders.knows(response):
            holder = await self._look_for(response)
        if holder is None:
            return ResponseUnknown()
        if not holder.is_engine:
            return holder
        views = self._views(holder.endpoint)
        if not views:
            return ResponseGone()
        return NoEngineReady(holder.model) if all(view.away for view in views) else holder

    def _views(self, endpoint: str) -> list[EngineView]:
        views = self._service.cluster.snapshot(self._service.clock.monotonic()).engines
        return [view for view in views if view.engine.endpoint == endpoint]

    async def _look_for(self, response: str) -> Holder | None:
        """Ask engines who has a response. Its id is random, and was told to its owner alone."""
        views = self._service.cluster.snapshot(self._service.clock.monotonic()).engines
        engines = {view.engine.endpoint: view.engine for view in views if not view.away}
        path = f"/v1/responses/{quote(response, safe='')}"
        asked = [self._model_of(engine, path) for engine in list(engines.values())[:LOOKED_AT]]
        for engine, model in zip(engines.values(), await asyncio.gather(*asked), strict=False):
            if model is not None:
                holder = Holder(engine.endpoint, model, ANONYMOUS)
                self._holders.note(response, holder)
                return holder
        return None

    async def _model_of(self, engine: Engine, path: str) -> str | None:
        """Return the model of a response that an engine holds; `None`: it holds none such."""
        try:
            async with asyncio.timeout(LOOK_S):
                answer = await self._asides.ask(engine, "GET", path, _PLAIN)
                async with answer:
                    body = await whole(answer) if answer.status == 200 else None
            return None if body is None else msgspec.json.decode(body, type=_Stored).model
        except (*ERRORS, msgspec.DecodeError):
            return None

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
        refused = self._service.refuse(refusal, ANONYMOUS, call.id)
        return call.refusal(refusal, refused.record.id)


class _Stored(msgspec.Struct):
    model: str = ""


_PLAIN = {"accept": JSON, "accept-encoding": "identity"}


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
