"""Bodies that take long to make are made aside, after the decision; small ones in its step."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from coordinator import large
from coordinator.apis import Api
from coordinator.attempts import Attempt, Repeat
from coordinator.bodies import CONVERTED_BYTES, LARGE_BYTES, is_large
from coordinator.candidates import Candidate, Provider
from coordinator.canonical import BadRequest, Canonical, parse
from coordinator.doors.listing import Listing
from coordinator.doors.query import Queries
from coordinator.doors.reports import Reports
from coordinator.heavy import Heavy
from coordinator.large import embody
from coordinator.outgoing import body_for
from coordinator.providers.dialects import Dialect
from coordinator.routed import Routed
from coordinator.translate.requests import Untranslatable
from lineside.ids import EngineId, ModelName
from tests.test_query import BODY, NOTHING_HELD, answered, keys, query
from tests.test_service import TENANT, bench, engine, request
from tests.test_watch import watched

LONG = {"user": "x" * LARGE_BYTES}


async def test_what_is_small_is_done_at_once_and_what_is_large_on_few_threads() -> None:
    heavy, here = Heavy(at_once=2), threading.get_ident()
    assert await heavy.run(threading.get_ident, LARGE_BYTES) == here
    running, most, gate, pause = 0, 0, threading.Lock(), threading.Event()

    def work() -> int:
        nonlocal running, most
        with gate:
            running += 1
            most = max(most, running)
        pause.wait(0.01)
        with gate:
            running -= 1
        return threading.get_ident()

    threads = set(await asyncio.gather(*(heavy.run(work, LARGE_BYTES + 1) for _ in range(8))))
    assert here not in threads
    assert (len(threads), most) == (2, 2)
    heavy.close()


@pytest.mark.parametrize(
    ("is_foreign", "size", "takes_long"),
    [
        pytest.param(False, LARGE_BYTES, False, id="an engine gets it nearly as it is"),
        pytest.param(False, LARGE_BYTES + 1, True, id="that is long to write all the same"),
        pytest.param(True, CONVERTED_BYTES, False, id="it is short to translate"),
        pytest.param(True, CONVERTED_BYTES + 1, True, id="it is long to translate"),
    ],
)
def test_what_is_large_depends_on_who_gets_it(
    is_foreign: bool, size: int, takes_long: bool
) -> None:
    dialect = Dialect("Anthropic", frozenset({Api.ANTHROPIC_MESSAGES}))
    claude = Provider(EngineId("c"), "http://c", "c", {ModelName("m"): "opus"}, dialect)
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "user": ""}
    raw = json.dumps(asked | {"user": "x" * (size - len(json.dumps(asked)))}).encode()
    read = parse(Api.OPENAI_CHAT, {}, raw)
    assert isinstance(read, Canonical)
    assert len(read.raw) == size
    target = claude if is_foreign else engine("a")
    assert is_large(read, Candidate(target, ModelName("m"))) is takes_long


async def test_a_large_request_is_accounted_before_its_body_is_made() -> None:
    b = bench(engine("a"))
    routed = await b.routed(stream=True, **LONG)
    assert (routed.body, b.outstanding) == (None, 1)
    assert await embody(b.service, routed) is None
    assert routed.body == body_for(routed.request, routed.candidate, None, announce=False)
    assert b"include_usage" in routed.body
    assert (await b.routed(stream=True)).body is not None


async def test_its_fallback_gets_a_body_of_its_own() -> None:
    b = bench(engine("a"), engine("b"))
    routed = await b.routed(stream=True, **LONG)
    assert await embody(b.service, routed) is None
    assert b.service.fallback(routed, Attempt(routed.target.id, Repeat.SAFE, "refused"))
    assert routed.body is None
    assert await embody(b.service, routed) is None
    assert b"include_usage" in (routed.body or b"")


async def test_one_that_is_asked_once_more_without_its_usage_is_not_asked_for_it() -> None:
    b = bench(engine("a"))
    routed = await b.routed(stream=True, **LONG)
    assert await embody(b.service, routed) is None
    assert b.service.again(routed, Attempt(routed.target.id, Repeat.SAFE, "refuses it"))
    assert await embody(b.service, routed) is None
    assert b"include_usage" not in (routed.body or b"")


def unfit(names: Sequence[str]) -> Any:
    """Return what makes bodies, but not for these."""

    def made(request: Canonical, candidate: Candidate, *rest: Any) -> bytes:
        if candidate.target.id in names:
            raise Untranslatable(f"not for {candidate.target.id}", "n")
        return body_for(request, candidate, *rest)

    return made


async def test_backends_that_it_cannot_be_put_to_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, told = watched("a", "b")
    routed = await sent(service)
    first = routed.target.id
    monkeypatch.setattr(large, "body_for", unfit([first]))
    assert await embody(service, routed) is None
    other = "b" if first == "a" else "a"
    assert (routed.target.id, routed.record.passed_over) == (other, {first: f"not for {first}"})
    assert outstanding(service) == {first: 0, other: 1}
    assert [said[:2] for said in told.said] == [("sent", first), ("left", first), ("sent", other)]


async def test_where_nobody_can_take_it_the_client_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, _ = watched("a", "b")
    routed = await sent(service)
    first = routed.target.id
    monkeypatch.setattr(large, "body_for", unfit(["a", "b"]))
    refusal = await embody(service, routed)
    assert refusal == BadRequest(f"not for {first}", "n")
    service.failed(routed, refusal)
    assert (routed.record.outcome.end, routed.record.outcome.status) == ("refused", 400)
    assert outstanding(service) == {"a": 0, "b": 0}


async def sent(service: Any) -> Routed:
    routed = await service.route(request(**LONG), TENANT, "r")
    assert isinstance(routed, Routed)
    return routed


def outstanding(service: Any) -> Mapping[str, int]:
    now = service.clock.monotonic()
    return {name: service.inflight.queue(EngineId(name), now).outstanding for name in "ab"}


class Gated(Heavy):
    """Holds what is done aside until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def run(self, work: Any, size: int, inline: int = LARGE_BYTES) -> Any:
        if inline == 0:  # a body, of a request that was decided
            self.begun.set()
            await self.gate.wait()
        return await super().run(work, size, inline)


async def test_a_query_is_answered_alike_whatever_its_size() -> None:
    service, _ = watched("a", "b")
    of = Queries(service, Reports(service, 60.0), 2**20, keys, NOTHING_HELD, Listing(service))
    small, long = [await answered(of, query(BODY | more)) for more in ({}, LONG)]
    assert {each.candidate.target.id for each in long.offers} == {"a", "b"}
    assert [json.loads(each.body) for each in long.offers] == [
        json.loads(each.body) | LONG for each in small.offers
    ]
    assert len(of.reports) == 2


async def test_a_query_that_is_given_up_meanwhile_holds_nothing() -> None:
    service, told = watched("a")
    service.heavy = heavy = Gated()
    of = Queries(service, Reports(service, 60.0), 2**20, keys, NOTHING_HELD, Listing(service))
    asking = asyncio.create_task(of.ask(query(BODY | LONG)))
    await heavy.begun.wait()
    assert service.inflight.outstanding == 1
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (service.inflight.outstanding, len(of.reports)) == (0, 0)
    assert told.said[-1][0] == "left"
