"""The index of a group: what it says is held, what a key and a slot cost, and what is refused."""

import random
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.holdings.index import (
    DEEPEST_PROBES,
    MASK_SLACK,
    SCAN_BELOW,
    SHARDS,
    GroupIndex,
    Slot,
)
from lineside.ids import BlockKey


def chain(length: int, seed: int = 0) -> list[BlockKey]:
    rng = random.Random(seed)
    return [BlockKey(rng.getrandbits(64)) for _ in range(length)]


def holding(*prefixes: list[BlockKey]) -> GroupIndex:
    """Return an index whose slots 0, 1, ... are visible and hold these keys."""
    index = GroupIndex(stride=4)
    for keys in prefixes:
        slot = index.open_slot()
        index.add(slot, keys)
        index.show(slot)
    return index


def sweep(index: GroupIndex) -> int:
    """Sweep until nothing is left; return the steps it took."""
    steps = 0
    while index.sweep_step():
        steps += 1
    return steps


SHORT = chain(6)
LONG = chain(4 * SCAN_BELOW)


@pytest.mark.parametrize(
    ("held", "prompt", "expected"),
    [
        pytest.param([SHORT], [], {}, id="an empty prompt overlaps with nothing"),
        pytest.param([], SHORT, {}, id="an empty index holds nothing"),
        pytest.param([[]], SHORT, {}, id="an engine that holds nothing is left out"),
        pytest.param([SHORT[:2]], SHORT, {0: 2}, id="a prompt outruns the cache"),
        pytest.param([SHORT], SHORT[:2], {0: 2}, id="a cache outruns the prompt"),
        pytest.param([SHORT[1:]], SHORT, {}, id="a hole at the front counts as nothing"),
        pytest.param([SHORT[:2] + SHORT[3:]], SHORT, {0: 2}, id="a short prompt stops at a hole"),
        pytest.param(
            [SHORT[:1], SHORT, [], SHORT[:4]], SHORT, {0: 1, 1: 6, 3: 4}, id="engines differ"
        ),
        pytest.param(
            [LONG[:1], LONG, LONG[:-1], LONG[:77], LONG[:78], []],
            LONG,
            {0: 1, 1: 1024, 2: 1023, 3: 77, 4: 78},
            id="a long prompt is divided down to neighbouring depths",
        ),
        pytest.param([chain(9, seed=1)], LONG, {}, id="a long prompt that nobody holds"),
    ],
)
def test_depths_counts_leading_keys(
    held: list[list[BlockKey]], prompt: list[BlockKey], expected: dict[int, int]
) -> None:
    index = holding(*held)
    assert index.depths(prompt) == expected
    assert index.full_scan(prompt) == expected


@given(
    length=st.integers(1, 2 * SCAN_BELOW),
    shares=st.lists(st.floats(0, 1), max_size=70),
    hidden=st.sets(st.integers(0, 69)),
    freed=st.sets(st.integers(0, 69)),
    steps=st.integers(0, SHARDS + 1),
)
@settings(max_examples=60, deadline=None)
def test_depths_is_exact_where_holdings_are_closed_under_prefix(
    length: int, shares: list[float], hidden: set[int], freed: set[int], steps: int
) -> None:
    keys = chain(length)
    depths = [round(share * length) for share in shares]
    index = holding(*(keys[:depth] for depth in depths))
    for number in range(len(depths)):
        if number in freed:
            index.free(Slot(number))
        elif number in hidden:
            index.hide(Slot(number))
    for _ in range(steps):
        index.sweep_step()
    expected = {
        number: depth
        for number, depth in enumerate(depths)
        if depth and number not in hidden | freed
    }
    assert index.depths(keys) == index.full_scan(keys) == expected


@given(st.lists(st.sets(st.integers(0, 299)), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_long_prompt_never_claims_a_depth_that_is_not_held(holes: list[set[int]]) -> None:
    keys = chain(300)
    held = [[key for at, key in enumerate(keys) if at not in missing] for missing in holes]
    index = holding(*held)
    for slot, depth in index.depths(keys).items():
        assert index.holds(slot, keys[0])
        assert index.holds(slot, keys[depth - 1])


@pytest.mark.parametrize("length", [0, 3, 40, 4 * SCAN_BELOW, 4 * SCAN_BELOW + 7])
def test_every_fourth_key_of_a_prompt_counts(length: int) -> None:
    prompt = chain(length)
    strided = prompt[3::4]
    index = holding(strided, strided[: len(strided) // 3], strided[:1])
    assert index.depths(prompt, step=4) == index.full_scan(strided)


def test_add_and_remove_count_what_changed() -> None:
    index = GroupIndex(stride=1)
    one, two = index.open_slot(), index.open_slot()
    assert index.add(one, SHORT[:3]) == 3
    assert index.add(one, [*SHORT, SHORT[5]]) == 3
    assert index.add(two, SHORT[:2]) == 2
    assert index.entries == 6
    assert index.remove(one, [*SHORT[:2], SHORT[0]]) == 2
    assert index.remove(one, chain(3, seed=1)) == 0
    assert index.remove(two, SHORT) == 2
    assert index.entries == 4
    assert [index.holds(one, key) for key in SHORT] == [False] * 2 + [True] * 4


def test_a_snapshot_is_filled_unseen_and_swapped_in_at_once() -> None:
    index = holding(SHORT[:2])
    fresh = index.open_slot()
    index.add(fresh, SHORT)
    assert index.depths(SHORT) == {0: 2}
    index.show(fresh)
    index.free(Slot(0))
    assert index.depths(SHORT) == {fresh: 6}


def test_a_number_comes_back_after_every_shard_was_swept_and_the_lowest_first() -> None:
    index = holding(SHORT, SHORT, SHORT)
    index.free(Slot(1))
    index.free(Slot(0))
    for _ in range(SHARDS - 1):
        assert index.sweep_step()
    assert index.open_slot() == 3
    assert index.sweep_step()
    assert not index.sweep_step()
    assert [index.open_slot() for _ in range(3)] == [0, 1, 4]
    assert not any(index.holds(Slot(0), key) for key in SHORT)


def test_a_slot_freed_during_a_sweep_waits_for_the_next() -> None:
    index = holding(SHORT, SHORT)
    index.free(Slot(0))
    index.sweep_step()
    index.free(Slot(1))
    assert sweep(index) == 2 * SHARDS - 1
    assert index.entries == 0


@pytest.mark.parametrize("write", ["add", "remove", "show", "hide", "free", "holds"])
def test_a_freed_slot_is_refused(write: str) -> None:
    index = holding(SHORT)
    index.free(Slot(0))
    arguments: dict[str, tuple[object, ...]] = {
        "add": (SHORT,),
        "remove": (SHORT,),
        "holds": (SHORT[0],),
    }
    with pytest.raises(ValueError, match="slot 0 is not open"):
        getattr(index, write)(Slot(0), *arguments.get(write, ()))


def test_the_estimate_agrees_with_the_allocator() -> None:
    packed = random.Random(3).randbytes(8 * 40_000)

    def keys(start: int) -> Iterable[BlockKey]:
        for at in range(start, len(packed), 8):
            yield BlockKey(int.from_bytes(packed[at : at + 8], "little"))

    tracemalloc.start()
    try:
        index = GroupIndex(stride=4)
        for start in range(0, 8 * 40_000, 8 * 10_000):
            index.add(index.open_slot(), keys(start))
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.entries == 40_000
    assert index.bytes_estimate == pytest.approx(allocated, rel=0.05)


def test_a_sweep_gives_memory_back() -> None:
    index = holding(chain(50_000), SHORT)
    index.free(Slot(0))
    assert index.bytes_estimate > 50_000 * 60
    sweep(index)
    assert index.entries == len(SHORT)
    assert index.bytes_estimate < SHARDS * 500


def test_masks_out_of_use_are_bounded() -> None:
    index = GroupIndex(stride=4)
    slots = [index.open_slot() for _ in range(40)]
    rng = random.Random(4)
    steps = 0
    for _ in range(4 * MASK_SLACK):
        slot = rng.choice(slots)
        if not index.add(slot, SHORT[:1]):
            index.remove(slot, SHORT[:1])
        steps += index.sweep_step()
    assert steps >= SHARDS
    sweep(index)
    assert index.bytes_estimate < 3 * MASK_SLACK * 200


class IndexAgainstSets(RuleBasedStateMachine):
    """The same operations on the index and on a set of keys per slot."""

    universe = chain(12, seed=5)
    keys = st.lists(st.sampled_from(universe), max_size=8)

    def __init__(self) -> None:
        super().__init__()
        self.index = GroupIndex(stride=4)
        self.held: dict[Slot, set[BlockKey]] = {}
        self.visible: set[Slot] = set()
        self.freed_at: dict[Slot, int] = {}
        self.steps = 0

    @rule()
    def open(self) -> None:
        slot = self.index.open_slot()
        assert slot not in self.held
        assert self.steps - self.freed_at.get(slot, self.steps - SHARDS) >= SHARDS
        self.held[slot] = set()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keys=keys)
    def add(self, data: st.DataObject, keys: list[BlockKey]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        assert self.index.add(slot, keys) == len(set(keys) - self.held[slot])
        self.held[slot] |= set(keys)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keys=keys)
    def remove(self, data: st.DataObject, keys: list[BlockKey]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        assert self.index.remove(slot, keys) == len(set(keys) & self.held[slot])
        self.held[slot] -= set(keys)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.index.show(slot)
        self.visible.add(slot)

    @precondition(lambda self: self.visible)
    @rule(data=st.data())
    def hide(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.visible)))
        self.index.hide(slot)
        self.visible.remove(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.index.free(slot)
        del self.held[slot]
        self.visible.discard(slot)
        self.freed_at[slot] = self.steps

    @rule(steps=st.sampled_from([1, 7, 100, 255, 600]))
    def sweep(self, steps: int) -> None:
        for _ in range(steps):
            self.steps += self.index.sweep_step()

    @invariant()
    def answers_agree(self) -> None:
        for start in range(len(self.universe)):
            prompt = self.universe[start:]
            expected = {}
            for slot in self.visible:
                missing = [at for at, key in enumerate(prompt) if key not in self.held[slot]]
                if depth := min(missing, default=len(prompt)):
                    expected[slot] = depth
            assert self.index.depths(prompt) == expected

    def teardown(self) -> None:
        for slot, keys in self.held.items():
            assert {key for key in self.universe if self.index.holds(slot, key)} == keys
        sweep(self.index)
        assert self.index.entries == len(set().union(*self.held.values()))


TestIndexAgainstSets = IndexAgainstSets.TestCase
TestIndexAgainstSets.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# --- holdings that are not closed under prefix ----------------------------------------------------


@given(st.lists(st.sets(st.integers(0, 11)), max_size=4), st.integers(0, 12), st.integers(1, 3))
def test_the_deepest_key_is_found_whatever_is_before_it(
    held: list[set[int]], length: int, step: int
) -> None:
    keys = chain(12)
    index = holding(*([keys[at] for at in sorted(slot)] for slot in held))
    hidden = index.open_slot()
    index.add(hidden, keys)
    probed = [at for at in range(length) if (at + 1) % step == 0]
    expected = {
        Slot(slot): (max(found) + 1) // step
        for slot, at in enumerate(held)
        if (found := at.intersection(probed))
    }
    assert index.deepest(keys[:length], step) == expected


def test_the_deepest_key_is_looked_for_within_bounds() -> None:
    keys = chain(DEEPEST_PROBES + 2)
    index = holding(keys[:1], keys[:2], keys[:3])
    assert index.deepest(keys) == {Slot(2): 3}


# --- what `depths` takes for granted --------------------------------------------------------------


def test_holes_are_found_at_any_depth_and_any_step() -> None:
    keys = chain(12)
    index = holding(keys[:7], keys[:3] + keys[5:], keys[1:], [], keys)
    assert index.unclosed(keys) == (Slot(1), Slot(2))
    assert index.unclosed(keys, 2) == (Slot(1),)  # the first one's hole is between two steps
    assert index.unclosed(keys[:3]) == (Slot(2),)
    assert index.unclosed([]) == ()
    index.hide(Slot(1))
    assert index.unclosed(keys) == (Slot(2),)


def test_an_index_is_idle_when_nothing_is_left_of_any_slot() -> None:
    index = GroupIndex(stride=4)
    assert index.is_idle
    slot = index.open_slot()
    assert not index.is_idle
    index.add(slot, SHORT)
    index.free(slot)
    index.sweep_step()
    assert not index.is_idle
    sweep(index)
    assert (index.is_idle, index.entries) == (True, 0)
