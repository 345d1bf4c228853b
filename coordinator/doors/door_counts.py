"""`/v1/messages/count_tokens`: an engine counts, else our own tokenizer where it is exact.

A count runs nothing: it takes no lease, and leaves a record only where nobody counts. Policies that
refuse a message refuse to count it, and only backends that they leave are asked.
"""

import asyncio

from aiohttp import web
from multidict import CIMultiDict

from coordinator.canonical import Canonical, Changes, rewrite
from coordinator.dispatch import forwarded
from coordinator.doors.asides import ERRORS, Asides, whole
from coordinator.doors.calls import JSON, Call
from coordinator.doors.relay import ends_here
from coordinator.engines import Engine
from coordinator.error_shapes import in_shape, is_no_answer
from coordinator.limits import NOBODY
from coordinator.records import Record
from coordinator.refusal import NotCounted
from coordinator.service import Service
from coordinator.tokens.tokenized import TokenState

COUNT_S = 10.0
"""For one engine's count; it renders and encodes, beside all that it computes."""

ASKED = 2
"""Engines asked for one count."""

_CARRIED = frozenset({"overloaded", "no_engine_ready"})
"""Refusals of a message for want of room or engines: a count needs neither."""


class CountsDoor:
    """Counts."""

    def __init__(self, service: Service, asides: Asides) -> None:
        self._service = service
        self._asides = asides

    async def count(self, call: Call, request: Canonical) -> web.StreamResponse:
        """Answer with the tokens of a message's prompt."""
        record = await self._service.dry_run(request, NOBODY)
        if record.refusal is not None and record.refusal.reason not in _CARRIED:
            return call.reply(record.refusal)
        ranked = record.decision.ranked if record.decision is not None else ()
        asked = [each for each in ranked if isinstance(each.target, Engine)][:ASKED]
        for each in asked:
            assert isinstance(each.target, Engine)
            body = rewrite(request, Changes(each.model, meter=False))
            answer = await self._ask(call, each.target, body)
            if answer is not None:
                return answer
        return self._own(call, record) or self._refused(call, NotCounted(request.model))

    async def _ask(self, call: Call, engine: Engine, body: bytes) -> web.Response | None:
        """Return what an engine says; `None`: nothing that a client could use."""
        headers: CIMultiDict[str] = forwarded(call.request.headers.items(), call.id)
        try:
            async with asyncio.timeout(COUNT_S):
                path = call.request.path
                async with await self._asides.ask(engine, "POST", path, headers, body) as answer:
                    read = await whole(answer)
        except ERRORS:
            return None
        if read is None or answer.status >= 500 or is_no_answer(answer.status, read):
            return None
        if answer.status in (401, 403):
            return None
        kept = {n: v for n, v in answer.headers.items() if not ends_here(n)}
        said = in_shape(call.api, answer.status, read, call.id)
        return web.Response(status=answer.status, body=said, headers={**kept, **call.headers})

    def _refused(self, call: Call, refusal: NotCounted) -> web.Response:
        refused = self._service.refuse(refusal, NOBODY, call.id)
        return call.refusal(refusal, refused.record.id)

    def _own(self, call: Call, record: Record) -> web.Response | None:
        if record.tokens != TokenState.EXACT.value or record.prompt_tokens is None:
            return None
        counted = b'{"input_tokens":%d}' % record.prompt_tokens
        return web.Response(body=counted, content_type=JSON, headers=call.headers)
