"""`/v1/messages/count_tokens`: what `counting` says who may count is asked here.

A count runs nothing: it takes no lease, and leaves a record only where nobody counts.
"""

import asyncio

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from coordinator.apis import Api
from coordinator.candidates import Candidate
from coordinator.canonical import Canonical
from coordinator.dispatch import forwarded
from coordinator.doors.asides import ERRORS, Asides, whole
from coordinator.doors.calls import JSON, Call
from coordinator.doors.carriers import Carriage
from coordinator.doors.counting import body_to_count, counters
from coordinator.doors.relay import ends_here
from coordinator.engines import Engine
from coordinator.error_shapes import in_shape, is_no_answer
from coordinator.limits import NOBODY
from coordinator.refusal import NotCounted, Reply
from coordinator.service import Service
from lineside.decoding import decoded

COUNT_S = 10.0
"""For one count; an engine renders and encodes, beside all that it computes."""

ASKED = 2
"""Engines, and providers, that are asked for one count."""

ABOUT_THE_REQUEST = frozenset({400, 413, 422})
"""Refusals of a provider that its client can do something about."""


class _Counted(msgspec.Struct):
    input_tokens: int


class CountsDoor:
    """Counts."""

    def __init__(self, service: Service, asides: Asides) -> None:
        self._service = service
        self._asides = asides

    async def count(self, call: Call, request: Canonical) -> web.StreamResponse:
        """Answer with the tokens of a message's prompt."""
        may = await counters(self._service, request, NOBODY)
        if isinstance(may, Reply):
            return call.reply(may)
        for each in may.engines[:ASKED]:
            if (answer := await self._ask(call, request, each)) is not None:
                return answer
        if may.own is not None:
            return _counted(call, may.own)
        for each in may.providers[:ASKED]:
            if (answer := await self._ask(call, request, each)) is not None:
                return answer
        refusal = NotCounted(request.model)
        refused = self._service.refuse(refusal, NOBODY, call.id)
        return call.refusal(refusal, refused.record.id)

    async def _ask(self, call: Call, request: Canonical, by: Candidate) -> web.Response | None:
        """Return what a backend says; `None`: nothing that a client could use."""
        target, body = by.target, await body_to_count(self._service, request, by)
        sent = call.request.headers
        try:
            async with asyncio.timeout(COUNT_S):
                if isinstance(target, Engine):
                    headers: CIMultiDict[str] = forwarded(sent.items(), call.id)
                    path = call.request.path
                    async with await self._asides.ask(
                        target, "POST", path, headers, body
                    ) as answer:
                        return _of_engine(call, answer, await whole(answer))
                async with await self._asides.ask_to_count(target, sent, body) as answer:
                    return _of_provider(call, request, answer.status, await whole(answer))
        except ERRORS:
            return None


def _of_engine(
    call: Call, answer: aiohttp.ClientResponse, read: bytes | None
) -> web.Response | None:
    if read is None or answer.status >= 500 or is_no_answer(answer.status, read):
        return None
    if answer.status in (401, 403):
        return None
    kept = {n: v for n, v in answer.headers.items() if not ends_here(n)}
    said = in_shape(call.api, answer.status, read, call.id)
    return web.Response(status=answer.status, body=said, headers={**kept, **call.headers})


def _of_provider(
    call: Call, request: Canonical, status: int, read: bytes | None
) -> web.Response | None:
    """Return the count and nothing else that it says, or an error that is its client's."""
    if read is None:
        return None
    if status in ABOUT_THE_REQUEST:
        api = Api.ANTHROPIC_MESSAGES
        carriage = Carriage(api, api, request.model, call.id, 0, is_foreign=True)
        told = carriage.failure(status, read, call.id)
        return web.Response(status=status, body=told, content_type=JSON, headers=call.headers)
    if status != 200:
        return None
    try:
        return _counted(call, decoded(read, _Counted).input_tokens)
    except msgspec.MsgspecError:
        return None


def _counted(call: Call, tokens: int) -> web.Response:
    counted = b'{"input_tokens":%d}' % tokens
    return web.Response(body=counted, content_type=JSON, headers=call.headers)
