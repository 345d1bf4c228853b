"""Which engines a coordinator leans to, and what it never leans over."""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.virtual_coordinators import Coordinators
from cli.virtual_router import USUAL, Parts
from coordinator.leaning import Leaning, share
from coordinator.load.inflight import Loads
from coordinator.measurement import LEAN_S, Facts, Own, Part
from coordinator.runners import Field, Row
from coordinator.state.peers import ACTIVE_S, SILENT_S, Peers, Word
from lineside.ids import EngineId, ModelName, NodeId
from lineside.signals import InFlight
from simulate.arrivals import Shape, agentic, shared_prefix, traced, unrelated
from simulate.play import Played, Strategy, play
from simulate.traces import TraceRequest
from simulate.virtual import VirtualEngine
from tests.cells import Cell


@dataclass(frozen=True)
class Others:
    """Coordinators with these names."""

    me: str
    active: frozenset[str]


@dataclass
class Changing:
    """Coordinators that come and go."""

    me: str
    active: frozenset[str]


def part(costs: Mapping[str, float], cached: Mapping[str, int] | None = None) -> Part:
    """Return what was measured of engines by name."""
    many, row = len(costs), Row(tuple(map(EngineId, costs)))
    own = [Own((cached or {}).get(name, 0), 0, 0.1, 0.1, None) for name in costs]
    loads = Loads([0] * many, [0] * many, [0.0] * many)
    field = Field(ModelName("m"), (), row, frozenset(), (), (), (), {}, ())
    return Part(field, Facts(1000, 1000), loads, own, None, list(costs.values()))


def chosen(
    me: str,
    costs: Mapping[str, float],
    cached: Mapping[str, int] | None = None,
    out: frozenset[str] = frozenset(),
) -> str:
    """Return the engine that the first of two coordinators, `a` and `b`, ranks first."""
    other = frozenset("ab") - {me}
    ranking = Leaning(Others(me, other)).lean(part(costs, cached)).ranking
    return min((rank, name) for name, rank in zip(costs, ranking, strict=True) if name not in out)[
        1
    ]


# --- shares ---------------------------------------------------------------------------------------


@given(
    st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=40).map(sorted),
    st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_every_engine_is_in_one_share_and_shares_are_even(
    engines: list[str], coordinators: set[str]
) -> None:
    shares = [share(engines, me, frozenset(coordinators - {me})) for me in coordinators]
    places = sorted(place for each in shares for place in each)
    if len(engines) <= len(coordinators):
        assert places == []
    else:
        assert places == list(range(len(engines)))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_are_the_same_in_whatever_order_engines_are_seen() -> None:
    names = [f"10.0.0.{number}:8000" for number in range(9)]
    shuffled = random.Random(1).sample(names, 9)
    mine = {names[at] for at in share(names, "b", frozenset("ac"))}
    assert mine == {shuffled[at] for at in share(shuffled, "b", frozenset("ac"))}


# --- one decision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "cached", "by_a", "by_b"),
    [
        pytest.param({"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.1}, {}, "1", "2", id="all alike"),
        pytest.param({"1": 0.1, "2": 0.19, "3": 0.4}, {}, "1", "2", id="hardly dearer"),
        pytest.param({"1": 0.1, "2": 0.21, "3": 0.4}, {}, "1", "1", id="too dear"),
        pytest.param({"1": 0.1, "2": 0.15, "3": 0.2}, {"1": 64}, "1", "1", id="one has it cached"),
        pytest.param(
            {"1": 0.1, "2": 0.15, "3": 0.2}, {"1": 64, "2": 64}, "1", "2", id="both have it cached"
        ),
        pytest.param(
            {"1": 0.1, "2": 0.15, "3": 0.2}, {"2": 64}, "1", "2", id="the own one has more cached"
        ),
        pytest.param(
            {"1": 0.1, "2": 0.12, "3": 0.15}, {"3": 64}, "1", "2", id="a dearer one has more cached"
        ),
        pytest.param({"1": 0.1, "2": 0.15}, {}, "1", "1", id="as many coordinators as engines"),
    ],
)
def test_a_coordinator_leans_to_its_own_share(
    costs: dict[str, float], cached: dict[str, int], by_a: str, by_b: str
) -> None:
    assert (chosen("a", costs, cached), chosen("b", costs, cached)) == (by_a, by_b)


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from([0, 64, 640])), min_size=3, max_size=12),
    st.sets(st.integers(0, 11)),
)
@settings(max_examples=200, deadline=None)
def test_it_never_costs_a_cache_whatever_policies_leave(
    engines: list[tuple[float, int]], out: set[int]
) -> None:
    names = [f"{number:02}" for number in range(len(engines))]
    costs = {name: cost for name, (cost, _) in zip(names, engines, strict=True)}
    cached = {name: tokens for name, (_, tokens) in zip(names, engines, strict=True)}
    gone = frozenset(names[number] for number in out if number < len(names))
    if left := [name for name in names if name not in gone]:
        cheapest = min(left, key=lambda name: (costs[name], name))
        leaned = chosen("a", costs, cached, gone)
        assert cached[leaned] >= cached[cheapest]
        assert costs[leaned] <= costs[cheapest] + LEAN_S


def test_shares_follow_coordinators_and_engines_that_come_and_go() -> None:
    others = Changing("b", frozenset("a"))
    leaning = Leaning(others)
    four, six = (part(dict.fromkeys(engines, 0.1)) for engines in ("1234", "123456"))
    assert leaning.lean(four).leaned == {1, 3}
    assert leaning.lean(six).leaned == {1, 3, 5}
    others.active = frozenset("ac")
    assert leaning.lean(six).leaned == {1, 4}
    others.active = frozenset()
    assert leaning.lean(six).leaned == set(range(6))


def test_newcomers_that_are_full_stay_behind() -> None:
    full = part({"1": 0.1, "2": 0.1, "3": 0.3})
    full = Part(*[getattr(full, name) for name in Part.__dataclass_fields__][:6], full={"2"})
    ranking = Leaning(Others("b", frozenset("a"))).lean(full).ranking
    assert min(range(3), key=ranking.__getitem__) != 1


async def test_the_record_says_what_was_leaned_over() -> None:
    cell = Cell(4)
    leaning = cell.service.decider.leaning = Leaning(Others("b", frozenset("a")))
    cell.service.inflight.take(EngineId("e1"), 100, 0.05, cell.clock.now, 1e9)
    cell.service.inflight.take(EngineId("e3"), 100, 0.05, cell.clock.now, 1e9)
    record = (await cell.send(cell.text(500))).record.to_json()
    assert leaning.fellows.active == {"a"}
    assert record["decision"]["id"] in {"e1", "e3"}
    assert record["decision"]["leaned_over"] in {"e0", "e2"}
    leans = {each["id"]: each["lean_s"] for each in record["candidates"]}
    assert leans == {"e0": 0.0, "e1": LEAN_S, "e2": 0.0, "e3": LEAN_S}
    cell.service.decider.leaning = Leaning()
    alone = (await cell.send(cell.text(500))).record.to_json()
    assert alone["decision"]["leaned_over"] is None
    assert {each["lean_s"] for each in alone["candidates"]} == {0.0}


# --- who is there ---------------------------------------------------------------------------------

N = NodeId("n")
BUSY, IDLE = {EngineId("e"): InFlight(1, 1, 100, 0.1)}, dict[EngineId, InFlight]()


def test_others_count_for_as_long_as_they_are_heard_and_were_asked_anything_lately() -> None:
    peers = Peers()
    peers.call_me("me")

    def hear(at: float, **words: Mapping[EngineId, InFlight]) -> frozenset[str]:
        said = [Word(name, engines, 0.0) for name, engines in words.items()]
        peers.hear(N, said, {EngineId("e")}, at)
        peers.look(at)
        return peers.active

    assert hear(1.0, me=BUSY, one=IDLE, two=IDLE) == frozenset()
    known = hear(2.0, me=BUSY, one=BUSY, two=IDLE)
    assert known == {"one"}
    assert hear(2.1, one=BUSY, two=IDLE) is known, "shares are made anew when it changes alone"
    assert hear(2.1 + ACTIVE_S, one=IDLE, two=BUSY) == {"one", "two"}
    assert hear(2.2 + ACTIVE_S, one=IDLE, two=BUSY) == {"two"}
    peers.look(2.2 + ACTIVE_S + SILENT_S + 0.1)
    assert peers.active == {"two"}, "silence is no word of having nothing"
    peers.look(2.3 + 2 * ACTIVE_S + SILENT_S)
    assert peers.active == frozenset(), "nor is an old word one of having something"
    assert hear(3.0 + ACTIVE_S, one=IDLE) == frozenset(), "its stream ended"
    assert hear(4.0 + ACTIVE_S, one=BUSY) == {"one"}
    peers.leave(N, 5.0 + ACTIVE_S)
    assert peers.active == frozenset()


# --- traffic, in virtual time ---------------------------------------------------------------------


@cache
def traffic(engines: int) -> tuple[TraceRequest, ...]:
    """Return prompts that share nothing, at two thirds of what engines can compute."""
    shape = Shape(engines, 0.85 * engines, 250 / engines, answer_tokens=100)
    return tuple(traced(unrelated(shape, 4000, 20_000)))


@cache
def mean_s(engines: int, coordinators: int, parts: Parts = USUAL) -> float:
    made = Coordinators(coordinators, engines, random.Random(1), parts)
    played = run(list(traffic(engines)), made, engines)
    return statistics.fmean(job.ttft_s for job, _ in played.counted())


def run(requests: list[TraceRequest], strategy: Strategy, engines: int) -> Played:
    return play(requests, [VirtualEngine() for _ in range(engines)], strategy)


APART = Parts(leaning=lambda fellows: Leaning())
"""Coordinators that lean to nothing, whoever else is there."""


@pytest.mark.parametrize("engines", [32, 64])
def test_three_coordinators_come_close_to_one(engines: int) -> None:
    """By hearsay alone first tokens take 25 to 40 % longer."""
    assert mean_s(engines, 3) < 1.07 * mean_s(engines, 1)
    assert mean_s(engines, 3, APART) > 1.15 * mean_s(engines, 3)


@pytest.mark.parametrize("workload", [agentic, shared_prefix], ids=lambda each: each.__name__)
def test_what_is_cached_is_used_as_before(workload: Callable[[Shape], Any]) -> None:
    requests = traced(workload(Shape(8, 28.0, 12.0)))

    def hit_rate(parts: Parts = USUAL) -> float:
        played = run(requests, Coordinators(3, 8, random.Random(1), parts), 8)
        return played.figures().hit_rate or 0.0

    assert hit_rate() > hit_rate(APART) - 0.015


class AllToOne(random.Random):
    """A balancer that sends everything to the first."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def test_who_alone_is_asked_decides_as_if_there_were_no_others() -> None:
    requests = list(traffic(16))[:100]
    several = run(requests, Coordinators(3, 16, AllToOne(1)), 16)
    assert several.engines == run(requests, Coordinators(1, 16, AllToOne(1)), 16).engines
    assert run(requests, Coordinators(3, 16, random.Random(1)), 16).engines != several.engines


class Untouched(Leaning):
    """Must not be asked."""

    def lean(self, part: Part) -> Part:
        raise AssertionError("a coordinator that is alone leans to nothing")


async def test_alone_nothing_is_looked_at() -> None:
    cell = Cell(3)
    cell.service.decider.leaning = Untouched()
    for _ in range(20):
        await cell.send(cell.text(100))
    assert sum(cell.sent.values()) == 20
