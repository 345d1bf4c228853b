"""Another stride, the agent's restart: what is reported is as if neither had been, after anything.

Property tests over events, losses, new lives of the engine, and hit points.
"""

from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.checkpoint import Key, Saved, capture, decode, encode
from agent.holdings import Holdings
from agent.residency import Residency
from agent.sequence import Gap, Place, Restarted, Whole
from lineside.ids import EngineId, Medium
from tests.test_hybrid_model import Keep, keeps, window_event
from tests.test_residency_model import SECRET, Clear, Remove, Shape, Store, operations

WINDOW = 40

ENGINE = EngineId("e")
LOST = Gap(0, 1, lost=True, reason="lost")


@dataclass(frozen=True)
class Restride:
    stride: int


@dataclass(frozen=True)
class Reload:
    """The agent restarts, and is told this stride."""

    stride: int


Op: TypeAlias = Store | Remove | Clear | Keep | Gap | Restarted | Restride | Reload

strides = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
histories = st.lists(
    st.one_of(
        operations,
        operations,
        st.builds(Restride, strides),
        st.builds(Reload, strides),
        st.sampled_from([LOST, LOST, Restarted()]),
    ),
    max_size=40,
)
hybrid_histories = st.lists(
    st.one_of(
        operations,
        keeps,
        keeps,
        st.builds(Restride, strides),
        st.builds(Reload, strides),
        st.just(LOST),
    ),
    max_size=40,
)
sizes = st.sampled_from([16, 32, 48, 128])


def reloaded(before: Holdings, stride: int) -> Holdings:
    """Return what a restarted agent makes of its checkpoint, once the engine has confirmed it."""
    captured = capture(Saved(before.residency, Place(7, b"mark"), before.lost, None))
    if captured is None:
        before.restride(stride)
        return before
    saved = decode(Key(ENGINE, SECRET, stride), encode(Key(ENGINE, SECRET, 1), captured))
    assert isinstance(saved, Saved)
    saved.residency.unmatched_removals = before.residency.unmatched_removals
    saved.residency._uncounted = before.residency._uncounted
    holdings = Holdings(ENGINE, SECRET, stride, saved.residency, saved.lost)
    holdings.mark(Whole())
    holdings.residency.at_least_one = before.residency.at_least_one
    return holdings


def counting(stride: int) -> Holdings:
    """Return empty holdings that count copies."""
    holdings = Holdings(ENGINE, SECRET, stride)
    holdings.quiet()
    return holdings


def do(holdings: Holdings, shape: Shape, op: Op) -> None:
    match op:
        case Restride(stride):
            holdings.restride(stride)
        case Gap() | Restarted():
            holdings.mark(op)
        case Keep():
            holdings.apply(window_event(shape, op, WINDOW))
        case _:
            holdings.apply(shape.event(op))


def shown(of: Residency) -> object:
    counts = (of.blocks, of.unkeyed_blocks, of.unmatched_removals)
    return of.held(), of.stride, of.media, of.hit_points, of.unusable, counts


def check(size: int, stride: int, ops: list[Op], flush_each: int) -> None:
    """Compare after each operation with holdings at that stride from the start."""
    shape, at_once = Shape(size, stride), counting(stride)
    for number, op in enumerate(ops, start=1):
        if isinstance(op, Reload):
            at_once = reloaded(at_once, op.stride)
        else:
            do(at_once, shape, op)
        if isinstance(op, Restride | Reload):
            stride = op.stride
        if isinstance(op, Restride | Reload) or number % flush_each == 0:
            at_once.flush()
            assert at_once.log.held == at_once.residency.held()
            assert at_once.log.stride == at_once.residency.stride
    from_the_start = counting(stride)
    for op in ops:
        if not isinstance(op, Restride | Reload):
            do(from_the_start, shape, op)
    assert shown(at_once.residency) == shown(from_the_start.residency)
    for holdings in (at_once, from_the_start):
        holdings.flush()
    assert at_once.log.held == from_the_start.log.held == from_the_start.residency.held()
    assert at_once.log.checksum == from_the_start.log.checksum
    assert at_once.lost == from_the_start.lost


@settings(max_examples=150, deadline=None)
@given(sizes, strides, histories, st.integers(1, 5))
def test_another_stride_and_a_restart_lose_nothing(
    size: int, stride: int, ops: list[Op], flush_each: int
) -> None:
    check(size, stride, ops, flush_each)


@settings(max_examples=75, deadline=None)
@given(sizes, strides, hybrid_histories, st.integers(1, 5))
def test_hit_points_outlive_both(size: int, stride: int, ops: list[Op], flush_each: int) -> None:
    check(size, stride, ops, flush_each)


def test_hit_points_stay_in_their_generation() -> None:
    holdings, shape = Holdings(ENGINE, SECRET, 1), Shape(32, 1)
    place = ("plain", (0, 1))
    do(holdings, shape, Keep(1, (("plain", (0,)), place), Medium.GPU, stored=True))
    do(holdings, shape, Store(place, 0, Medium.GPU, told=True))
    holdings.flush()
    generation, held = holdings.log.generation, dict(holdings.log.held)
    assert len(held) == 2
    holdings.restride(8)
    holdings.flush()
    assert (holdings.log.generation, holdings.log.held) == (generation, held)


def test_what_is_unproven_stays_unsaid_at_another_stride() -> None:
    shape, place = Shape(32, 1), ("plain", (0, 1, 2))
    residency = Residency(SECRET, 1)
    residency.apply(shape.event(Store(place, 0, Medium.GPU, told=True)))
    holdings = Holdings(ENGINE, SECRET, 1, residency)
    holdings.restride(2)
    holdings.flush()
    assert holdings.log.held == {}
    holdings.mark(Whole())
    assert (len(holdings.log.held), holdings.log.stride) == (3, 2)
