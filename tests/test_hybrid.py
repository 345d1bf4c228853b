"""Hit points of an engine with several KV groups: which are reported, and from when on."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from agent.residency import NO_CHAIN, Residency
from lineside.hashing import chain, pack, seed
from lineside.ids import Medium
from tests.captures import batches

SECRET = b"secret"
SIZE = 32
GPU, CPU, DISK = Medium
PROMPT = [token for block in range(8) for token in range(block * 100, block * 100 + SIZE)]
UNITS = chain(seed(SECRET), pack(PROMPT))
CHAIN, WINDOW = 1, 0
"""The groups, numbered as the captured engine does."""


def full(start: int, end: int, group: int = CHAIN, **changed: Any) -> BlockStored:
    """Store blocks of the prompt; a block's engine key is its number, from 1."""
    fields: dict[str, Any] = {
        "keys": tuple(range(start + 1, end + 1)),
        "parent": start or None,
        "packed": pack(PROMPT[start * SIZE : end * SIZE]),
        "block_size": SIZE,
        "medium": GPU,
        "group": group,
        "full_attention": True,
        "lora": None,
        "salt": None,
        "media": (),
        "keyable": end - start,
        "kind": "full_attention",
    }
    return BlockStored(**{**fields, **changed})


def window(*keys: int, group: int = WINDOW, tokens: int = 64, **changed: Any) -> BlockStored:
    """Store what a window keeps of a longer run."""
    fields = {"kind": "sliding_window", "window": tokens, "full_attention": False, "keyable": 0}
    return full(0, 8, group, keys=keys, **{**fields, **changed})


def gone(*keys: int, group: int = WINDOW, medium: Medium = GPU) -> BlockRemoved:
    return BlockRemoved(keys, medium, group)


def tier(*keys: int, group: int, medium: Medium = CPU) -> BlockStored:
    """Store as an offloading tier does that tells the group and nothing else."""
    return BlockStored(keys, None, b"", 0, medium, group, True, None, None, (), 0)


def residency(*events: KvEvent) -> Residency:
    made = Residency(SECRET, 4)
    for event in events:
        made.apply(event)
    return made


def depths(made: Residency) -> dict[int, Medium]:
    """Return the depths, in blocks, of what is held; every key must be one of a block's end."""
    ends = {key: depth for depth, key in enumerate(UNITS[1::2], start=1)}
    return {ends[key]: medium for key, medium in made.held().items()}


def on(medium: Medium, *at: int) -> dict[int, Medium]:
    return dict.fromkeys(at, medium)


@pytest.mark.parametrize(
    ("events", "hits"),
    [
        pytest.param([window(3, 4), full(0, 4)], on(GPU, 4), id="as captured"),
        pytest.param([full(0, 4), window(3, 4)], on(GPU, 4), id="the chain first"),
        pytest.param([window(3), full(0, 4)], {}, id="half a window"),
        pytest.param([window(2, 4), full(0, 4)], {}, id="with a gap"),
        pytest.param([window(1, 2, 3), full(0, 4)], on(GPU, 1, 2, 3), id="from the start"),
        pytest.param([window(5, 6), full(0, 4)], {}, id="beyond the chain"),
        pytest.param([window(5, 6), full(0, 4), full(4, 6)], on(GPU, 6), id="the chain follows"),
        pytest.param([window(), full(0, 4)], {}, id="nothing is kept in decoding"),
        pytest.param([window(tokens=1), full(0, 2)], on(GPU, 1, 2), id="a window of one token"),
        pytest.param([window(4, tokens=33), full(0, 4)], on(GPU, 4), id="a window of one block"),
        pytest.param(
            [window(2, 3, 4, tokens=66), full(0, 4)], on(GPU, 4), id="a window into a third block"
        ),
        pytest.param([window(3, 4), full(0, 4), gone(3)], {}, id="removed from the window"),
        pytest.param([window(1, 2, 3, 4), full(0, 4), gone(2)], on(GPU, 1, 4), id="and around it"),
        pytest.param(
            [window(3, 4), full(0, 4), gone(4, group=CHAIN)], {}, id="removed from the chain"
        ),
        pytest.param(
            [window(3, 4), full(0, 4), gone(1, group=CHAIN)], {}, id="an ancestor removed"
        ),
        pytest.param(
            [window(3, 4), full(0, 4), gone(1, group=CHAIN), full(0, 1)],
            on(GPU, 4),
            id="an ancestor back again",
        ),
        pytest.param([window(3, 4), window(4), full(0, 4), gone(4)], on(GPU, 4), id="a copy left"),
        pytest.param(
            [window(3, 4), full(0, 4), gone(3, 4), gone(1, 2, 3, 4, group=CHAIN)], {}, id="all gone"
        ),
        pytest.param(
            [
                *(window(3, 4), full(0, 4), gone(4, 3, 2, 1, group=CHAIN)),
                *(full(0, 4), gone(4), window(4)),
            ],
            on(GPU, 4),
            id="the chain evicted and back, the window's copy kept meanwhile",
        ),
        pytest.param(
            [window(3, 4), full(0, 4), gone(4, 3, 2, 1, group=CHAIN), gone(3, 4), full(0, 4)],
            {},
            id="the chain evicted and back, the window's copies evicted meanwhile",
        ),
        pytest.param([window(3, 4), full(0, 4), AllBlocksCleared()], {}, id="cleared"),
        pytest.param(
            [window(3, 4), full(0, 4), AllBlocksCleared(), full(0, 4)], {}, id="in every group"
        ),
    ],
)
def test_hit_points(events: Sequence[KvEvent], hits: dict[int, Medium]) -> None:
    made = residency(*events)
    assert (depths(made), made.unusable, made.hit_points, made.stride) == (hits, "", True, 2)
    assert made.unmatched_removals == 0


def test_every_window_has_to_be_full() -> None:
    made = residency(window(3, 4), window(2, 3, 4, group=2, tokens=96), full(0, 4))
    assert depths(made) == on(GPU, 4)
    made.apply(gone(2, group=2))
    assert depths(made) == {}
    made.apply(window(2, group=2, tokens=96))
    made.apply(gone(3))
    assert depths(made) == {}


def test_a_second_group_of_full_attention_is_needed_to_the_start() -> None:
    made = residency(window(3, 4), full(0, 4), full(0, 4, group=2))
    assert depths(made) == on(GPU, 4)
    made.apply(gone(1, group=2))
    assert depths(made) == {}
    made.apply(full(0, 1, group=2))
    assert depths(made) == on(GPU, 4)


def test_a_hit_point_costs_the_slowest_medium_of_all_groups() -> None:
    made = residency(window(3, 4), full(0, 4), tier(3, 4, group=WINDOW), gone(3))
    assert (depths(made), made.media) == (on(CPU, 4), 2)
    made.apply(window(3))
    made.apply(tier(1, 2, group=CHAIN, medium=DISK))
    assert depths(made) == on(GPU, 4)
    made.apply(gone(1, group=CHAIN))
    assert depths(made) == on(DISK, 4)
    made.apply(gone(4, group=WINDOW))
    assert depths(made) == on(DISK, 4)  # its window is in cpu
    made.apply(gone(4, group=WINDOW, medium=CPU))
    assert depths(made) == {}


def test_branches_share_what_is_before_them() -> None:
    other = pack([token + 1 for token in PROMPT[:SIZE]])
    made = residency(window(2, 9), full(0, 3), full(2, 3, keys=(9,), packed=other), window(3))
    assert depths_of_other(made, other) == {True}
    assert depths(residency(window(2, 3), full(0, 3))) == on(GPU, 3)
    made.apply(gone(2))
    assert made.held() == {}


def depths_of_other(made: Residency, other: bytes) -> set[bool]:
    """Tell whether both ends of a fork after two blocks are held, and nothing else."""
    return {set(made.held()) == {UNITS[5], chain(UNITS[3], other)[-1]}}


def test_strided_keys_give_way_to_hit_points() -> None:
    made = residency(full(0, 4))
    assert (made.take_changes(), made.hit_points, made.stride) == (
        {UNITS[3]: GPU, UNITS[7]: GPU},
        False,
        4,
    )
    made.apply(window(4))
    assert (made.take_changes(), made.held()) == ({UNITS[3]: None, UNITS[7]: None}, {})
    made.apply(window(3))
    assert (made.take_changes(), made.hit_points, made.stride) == ({UNITS[7]: GPU}, True, 2)
    made.clear()
    assert (made.held(), made.hit_points, made.stride) == ({}, False, 4)


def test_copies_of_other_groups_are_counted_by_group_and_medium() -> None:
    made = residency(full(0, 1), window(1), window(1))
    for event in (gone(1), gone(1), gone(1, medium=CPU)):
        made.apply(event)
    assert (made.blocks, made.unmatched_removals) == (1, 1)
    made.apply(gone(1))
    assert made.unmatched_removals == 2


@pytest.mark.parametrize("how", ["cleared by the engine", "a new life"])
def test_other_groups_are_emptied_too(how: str) -> None:
    made = residency(window(1))
    made.clear() if how == "a new life" else made.apply(AllBlocksCleared())
    made.apply(gone(1))
    assert made.unmatched_removals == 1


# --- engines that cannot be matched ---------------------------------------------------------------

OF_A_KIND = "KV groups of kind `mamba` are not matched yet"
CHANGED = "KV group 0 has changed what it keeps"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(window(kind="mamba", tokens=0), OF_A_KIND, id="a kind with other rules"),
        pytest.param(window(kind=None), "KV group 0 does not tell its kind", id="an older engine"),
        pytest.param(window(window=None), "KV group 0 does not tell its window", id="no window"),
        pytest.param(window(window=0), "KV group 0 does not tell its window", id="window of 0"),
        pytest.param(window(tokens=128), CHANGED, id="another window"),
        pytest.param(full(0, 4, WINDOW), CHANGED, id="another kind"),
        pytest.param(
            window(group=CHAIN), "KV group 1 has changed what it keeps", id="the chain's group"
        ),
        pytest.param(
            window(block_size=64),
            "KV groups of different block sizes are not matched yet",
            id="another block size",
        ),
        pytest.param(
            full(4, 5, block_size=16, packed=pack(PROMPT[:16])),
            "KV groups of different block sizes are not matched yet",
            id="a part of a block",
        ),
    ],
)
def test_what_is_not_understood_makes_the_engine_unusable(event: KvEvent, reason: str) -> None:
    made = residency(window(3, 4), full(0, 4))
    made.take_changes()
    made.apply(event)
    assert (made.unusable, made.held(), made.take_changes()) == (reason, {}, {UNITS[7]: None})
    for more in (window(1, 2), full(0, 4), gone(3), AllBlocksCleared(), full(0, 4), window(3, 4)):
        made.apply(more)
    assert (made.unusable, made.held(), made.hit_points) == (reason, {}, False)
    made.clear()
    for event in (window(3, 4), full(0, 4)):
        made.apply(event)
    assert (made.unusable, depths(made)) == ("", on(GPU, 4))


def test_windows_alone_give_no_chain() -> None:
    made = residency(window(3, 4))
    assert (made.unusable, made.held(), made.blocks) == (NO_CHAIN, {}, 0)
    made.apply(full(0, 4))
    assert (made.unusable, depths(made)) == ("", on(GPU, 4))


@pytest.mark.parametrize("named", [WINDOW, CHAIN])
def test_a_tier_that_spoke_first_does_not_settle_which_group_the_chain_is(named: int) -> None:
    made = residency(tier(7, 8, group=named), window(3, 4), full(0, 4))
    assert (made.unusable, depths(made), made.stride) == ("", on(GPU, 4), 2)
    made = residency(tier(7, 8, group=named), full(0, 4), window(3, 4))
    assert (made.unusable, depths(made), made.stride) == ("", on(GPU, 4), 2)


def test_the_capture_is_counted_without_a_rest() -> None:
    made = residency(*(event for batch in batches("hybrid_groups") for event in batch.events))
    assert (made.blocks, made.unkeyed_blocks, made.unmatched_removals) == (73, 0, 0)
