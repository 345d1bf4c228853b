"""Hit points against the window rule, applied block by block to a plain model of what is held."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.kv_events import BlockRemoved, BlockStored, KvEvent
from agent.residency import Residency
from lineside.hashing import chain, pack, seed
from lineside.ids import BlockKey, Medium
from tests.test_residency_model import (
    ROOTS,
    SECRET,
    Clear,
    Model,
    Place,
    Remove,
    Shape,
    Store,
    engine_key,
    follow,
    media,
    operations,
    places,
    shapes,
)


@dataclass(frozen=True)
class Keep:
    """Blocks come into a window group, or leave it. Several of one prompt, as in an event."""

    group: int
    places: tuple[Place, ...]
    medium: Medium
    stored: bool


Op: TypeAlias = Store | Remove | Clear | Keep


@dataclass
class Hybrid:
    """The chain's model, and the window groups beside it: how many blocks each one needs."""

    chain: Model
    reach: dict[int, int] = field(default_factory=dict)
    kept: Counter[tuple[int, Place, Medium]] = field(default_factory=Counter)
    unmatched: int = 0

    def apply(self, op: Op) -> None:
        if isinstance(op, Keep):
            for place in op.places:
                if op.stored:
                    self.kept[op.group, place, op.medium] += 1
                elif self.kept[op.group, place, op.medium]:
                    self.kept[op.group, place, op.medium] -= 1
                else:
                    self.unmatched += 1
            return
        if isinstance(op, Clear):
            self.kept.clear()
        self.chain.apply(op)

    def held(self) -> dict[BlockKey, Medium]:
        if not self.reach:
            return self.chain.held()
        held: dict[BlockKey, Medium] = {}
        for root, path in self.chain.placed:
            levels = [self.chain.level((root, path))]
            for group, reach in self.reach.items():
                window = range(max(0, len(path) - reach), len(path))
                levels += [self.fastest(group, (root, path[: end + 1])) for end in window]
            found = [level for level in levels if level is not None]
            if len(found) == len(levels):
                packed = pack(self.chain.shape.tokens(path))
                key = chain(seed(SECRET, *ROOTS[root]), packed)[-1]
                held[key] = min(max(found), held.get(key, Medium.DISK))
        return held

    def fastest(self, group: int, place: Place) -> Medium | None:
        return min((medium for medium in Medium if self.kept[group, place, medium]), default=None)


def window_event(shape: Shape, op: Keep, window: int) -> KvEvent:
    keys = tuple(engine_key(place) for place in op.places)
    if not op.stored:
        return BlockRemoved(keys, op.medium, op.group)
    return BlockStored(
        keys=keys,
        parent=None,
        packed=b"",
        block_size=shape.size,
        medium=op.medium,
        group=op.group,
        full_attention=False,
        lora=None,
        salt=None,
        media=(),
        keyable=0,
        kind="sliding_window",
        window=window,
    )


groups = st.sampled_from([1, 2])
keeps = st.builds(
    lambda group, of, back, medium, stored: Keep(
        group,
        tuple((of[0], of[1][: end + 1]) for end in range(max(0, len(of[1]) - back), len(of[1]))),
        medium,
        stored,
    ),
    groups,
    places,
    st.integers(0, 3),
    media,
    st.sampled_from([True, True, False]),
)


@settings(max_examples=200, deadline=None)
@given(
    shapes,
    st.lists(st.one_of(operations, keeps, keeps), max_size=40),
    st.lists(st.integers(0, 12), min_size=1, max_size=2),
    st.lists(st.integers(1, 200), min_size=2, max_size=2),
    st.data(),
)
def test_hit_points_agree_with_the_window_rule(
    shape: Shape, ops: list[Op], joins: list[int], sizes: list[int], data: st.DataObject
) -> None:
    """Group 1 is first heard of at one of the operations, group 2 at another or never."""
    model, residency = Hybrid(Model(shape)), Residency(SECRET, shape.stride)
    reported: dict[BlockKey, Medium] = {}
    for number, op in enumerate(ops):
        for group, join in enumerate(joins, start=1):
            if join == number:
                empty = Keep(group, (), Medium.GPU, stored=True)
                residency.apply(window_event(shape, empty, sizes[group - 1]))
                model.reach[group] = -(-(sizes[group - 1] - 1) // shape.size)
        if isinstance(op, Keep) and op.group not in model.reach:
            continue
        model.apply(op)
        residency.apply(
            window_event(shape, op, sizes[op.group - 1])
            if isinstance(op, Keep)
            else shape.event(op)
        )
        assert residency.held() == model.held()
        assert residency.hit_points == bool(model.reach)
        assert residency.unmatched_removals == model.unmatched + model.chain.unmatched
        if data.draw(st.booleans(), label="take"):
            follow(reported, residency)
    follow(reported, residency)


@settings(max_examples=50, deadline=None)
@given(shapes, st.lists(st.one_of(operations, keeps), max_size=40))
def test_nothing_is_left_when_all_copies_are_removed(shape: Shape, ops: list[Op]) -> None:
    model, residency = Hybrid(Model(shape)), Residency(SECRET, shape.stride)
    for group in (1, 2):
        residency.apply(window_event(shape, Keep(group, (), Medium.GPU, stored=True), 33))
    for op in ops:
        model.apply(op)
        residency.apply(window_event(shape, op, 33) if isinstance(op, Keep) else shape.event(op))
    for (place, medium), count in model.chain.copies.items():
        residency.apply(shape.event(Remove((place,) * count, medium)))
    for (group, place, medium), count in model.kept.items():
        residency.apply(
            window_event(shape, Keep(group, (place,) * count, medium, stored=False), 33)
        )
    state = residency._windows
    assert (residency.held(), residency._blocks, state._hits) == ({}, {}, {})
    assert [group.runs for group in state._groups.values()] == [{}, {}]
    assert [copies for copies in state.copies.values() if copies] == []
