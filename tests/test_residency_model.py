"""Residency against a plain model that keeps counts and computes all else anew each time."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from agent.residency import Residency
from lineside.hashing import chain, pack, seed
from lineside.ids import BlockKey, Medium

SECRET = b"secret"

Path: TypeAlias = tuple[int, ...]
"""A block by the names of all blocks from the start of its prompt to it."""

Place: TypeAlias = tuple[str, Path]
"""A block as the engine tells it apart: the root is an adapter, a salt, or what we cannot see."""

ROOTS: dict[str, tuple[str | None, str | None]] = {
    "plain": (None, None),
    "adapter": ("sql", None),
    "adapter from elsewhere": ("sql", None),  # another path: other engine keys, equal block keys
    "salted": (None, "tenant"),
}


@dataclass(frozen=True)
class Store:
    """`start`: blocks of the path that the run leaves out; not `told`: without token ids."""

    place: Place
    start: int
    medium: Medium
    told: bool


@dataclass(frozen=True)
class Remove:
    places: tuple[Place, ...]
    medium: Medium


@dataclass(frozen=True)
class Clear:
    pass


@dataclass
class Shape:
    """Sizes that a whole run keeps."""

    size: int
    stride: int

    def tokens(self, path: Path) -> list[int]:
        """Return a path's tokens; blocks named 0 and 1, 2 and 3 have equal halves in front."""
        half = self.size // 2
        return [t for name in path for t in [name // 2] * half + [name] * half]

    def event(self, op: Store | Remove | Clear) -> KvEvent:
        match op:
            case Clear():
                return AllBlocksCleared()
            case Remove(places, medium):
                return BlockRemoved(tuple(engine_key(place) for place in places), medium, 0)
            case Store((root, path), start, medium, told):
                lora, salt = ROOTS[root]
                run = [(root, path[: end + 1]) for end in range(start, len(path))]
                return BlockStored(
                    keys=tuple(engine_key(place) for place in run),
                    parent=engine_key((root, path[:start])) if start and told else None,
                    packed=pack(self.tokens(path[start:])) if told else b"",
                    block_size=self.size if told else 0,
                    medium=medium,
                    group=0,
                    full_attention=True,
                    lora=lora,
                    salt=None if start else salt,
                    media=(),
                    keyable=len(run) if told else 0,
                )


def engine_key(place: Place) -> bytes:
    return repr(place).encode()


@dataclass
class Model:
    shape: Shape
    copies: Counter[tuple[Place, Medium]] = field(default_factory=Counter)
    placed: set[Place] = field(default_factory=set)
    """Blocks whose key is known: told under a known parent, and held or above one that is."""
    unmatched: int = 0

    def apply(self, op: Store | Remove | Clear) -> None:
        match op:
            case Clear():
                self.copies.clear()
            case Store((root, path), start, medium, told):
                known = told and (not start or (root, path[:start]) in self.placed)
                for end in range(start, len(path)):
                    place = (root, path[: end + 1])
                    self.copies[place, medium] += 1
                    if known:
                        self.placed.add(place)
            case Remove(places, medium):
                for place in places:
                    if self.copies[place, medium]:
                        self.copies[place, medium] -= 1
                    else:
                        self.unmatched += 1
                    self.forget()
        self.forget()

    def forget(self) -> None:
        held = [place for place in self.placed if self.fastest(place) is not None]
        self.placed = {
            (root, path)
            for root, path in self.placed
            if any(root == other and path == longer[: len(path)] for other, longer in held)
        }

    def fastest(self, place: Place) -> Medium | None:
        return min((medium for medium in Medium if self.copies[place, medium]), default=None)

    def level(self, place: Place) -> Medium | None:
        root, path = place
        levels = [self.fastest((root, path[: end + 1])) for end in range(len(path))]
        found = [level for level in levels if level is not None]
        return max(found) if len(found) == len(levels) else None

    def held(self) -> dict[BlockKey, Medium]:
        held: dict[BlockKey, Medium] = {}
        for root, path in self.placed:
            level = self.level((root, path))
            if level is None:
                continue
            keys = chain(seed(SECRET, *ROOTS[root]), pack(self.shape.tokens(path)))
            units = self.shape.size // 16
            for depth in range(len(keys) - units + 1, len(keys) + 1):
                if depth % self.shape.stride == 0:
                    key = keys[depth - 1]
                    held[key] = min(level, held.get(key, Medium.DISK))
        return held

    def total(self, *, unkeyed: bool) -> int:
        return sum(
            count
            for (place, _), count in self.copies.items()
            if not unkeyed or place not in self.placed
        )


paths = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
places = st.tuples(st.sampled_from(["plain", "plain", "plain", *ROOTS]), paths)
media = st.sampled_from([Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU, Medium.DISK])
stores = st.builds(
    lambda place, start, medium, told: Store(place, start % len(place[1]), medium, told),
    places,
    st.integers(0, 3),
    media,
    st.sampled_from([True, True, True, False]),
)
removals = st.builds(Remove, st.lists(places, min_size=1, max_size=4).map(tuple), media)


def ending_in(path_of: Store) -> list[Place]:
    root, path = path_of.place
    return [(root, path[: end + 1]) for end in range(len(path))]


# Removals of what was stored, in any order, make most of a run; clears are rare.
operations = st.one_of(
    stores,
    stores,
    removals,
    stores.flatmap(
        lambda op: st.builds(Remove, st.permutations(ending_in(op)).map(tuple), st.just(op.medium))
    ),
    st.integers(0, 9).flatmap(lambda dice: stores if dice else st.just(Clear())),
)
shapes = st.builds(Shape, st.sampled_from([16, 32, 64]), st.sampled_from([1, 2, 3, 4]))


@settings(max_examples=150, deadline=None)
@given(shapes, st.lists(operations, max_size=30), st.data())
def test_residency_agrees_with_the_model(
    shape: Shape, ops: list[Store | Remove | Clear], data: st.DataObject
) -> None:
    model, residency = Model(shape), Residency(SECRET, shape.stride)
    reported: dict[BlockKey, Medium] = {}
    for op in ops:
        model.apply(op)
        residency.apply(shape.event(op))
        assert residency.held() == model.held()
        assert residency.blocks == model.total(unkeyed=False)
        assert residency.unkeyed_blocks == model.total(unkeyed=True)
        assert residency.unmatched_removals == model.unmatched
        if data.draw(st.booleans(), label="take"):
            follow(reported, residency)
    follow(reported, residency)
    assert reported == model.held()


def follow(reported: dict[BlockKey, Medium], residency: Residency) -> None:
    """Apply changes as a stream of digests does; each must change something."""
    for key, medium in residency.take_changes().items():
        assert reported.get(key) != medium
        if medium is None:
            del reported[key]
        else:
            reported[key] = medium
    assert reported == residency.held()


@settings(max_examples=50, deadline=None)
@given(shapes, st.lists(operations, max_size=30))
def test_nothing_is_left_when_all_copies_are_removed(
    shape: Shape, ops: list[Store | Remove | Clear]
) -> None:
    model, residency = Model(shape), Residency(SECRET, shape.stride)
    for op in ops:
        model.apply(op)
        residency.apply(shape.event(op))
    for (place, medium), count in model.copies.items():
        residency.apply(shape.event(Remove((place,) * count, medium)))
    assert (residency.blocks, residency.unkeyed_blocks, residency.held()) == (0, 0, {})
    assert (residency._blocks, residency._carriers) == ({}, {})
