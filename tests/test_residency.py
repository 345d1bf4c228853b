"""What an engine holds: counted by copy, keyed as requests are, reported only where servable."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineKey, decode
from agent.residency import Residency
from agent.run_keys import run_keys
from lineside.hashing import chain, mix, pack, seed
from lineside.ids import BlockKey, Medium
from tests.captures import batches, frames, ids, rows

SECRET = b"secret"
GPU, CPU, DISK = Medium
A, B, C, D = 1, 2, 3, 4
"""Engine keys of a prompt's blocks."""


def tokens(*blocks: int, size: int = 16) -> list[int]:
    """Return the tokens of blocks that are named by number."""
    return [token for block in blocks for token in range(block * 100, block * 100 + size)]


def store(
    *keys: EngineKey, parent: EngineKey | None = None, told: Sequence[int] = (), **changed: Any
) -> BlockStored:
    """Store blocks with tokens of their own, or with the tokens `told`."""
    size = changed.get("block_size", 16)
    named = [key for key in keys if isinstance(key, int)]
    fields: dict[str, Any] = {
        "keys": keys,
        "parent": parent,
        "packed": pack(told or tokens(*named, size=size)),
        "block_size": size,
        "medium": GPU,
        "group": 0,
        "full_attention": True,
        "lora": None,
        "salt": None,
        "media": (),
        "keyable": len(keys),
    }
    return BlockStored(**{**fields, **changed})


def offload(*keys: EngineKey, medium: Medium = CPU) -> BlockStored:
    """Store as an offloading tier without token ids says it."""
    return store(*keys, medium=medium, packed=b"", block_size=0, keyable=0)


def remove(*keys: EngineKey, medium: Medium = GPU, group: int = 0) -> BlockRemoved:
    return BlockRemoved(keys, medium, group)


def keys_of(
    *blocks: int, size: int = 16, lora: str | None = None, salt: str | None = None
) -> list[BlockKey]:
    """Return the unit keys of a prompt of these blocks."""
    return chain(seed(SECRET, lora, salt), pack(tokens(*blocks, size=size)))


def residency(*events: Any, stride: int = 1) -> Residency:
    made = Residency(SECRET, stride)
    apply(made, events)
    return made


def apply(made: Residency, events: Iterable[Any]) -> None:
    for event in events:
        made.apply(event)


def on(medium: Medium, keys: Sequence[BlockKey]) -> dict[BlockKey, Medium]:
    return dict.fromkeys(keys, medium)


def gone(keys: Sequence[BlockKey]) -> dict[BlockKey, None]:
    return dict.fromkeys(keys)


# --- captures -------------------------------------------------------------------------------------


def prompt_keys(
    prompt: Sequence[int], salt: str | None = None, lora: str | None = None
) -> set[int]:
    """Return the keys of a captured prompt's full blocks of 32 tokens."""
    return set(chain(seed(SECRET, lora, salt), pack(prompt[: len(prompt) // 32 * 32])))


def test_the_captured_engine_never_holds_more_than_it_has() -> None:
    made, held = Residency(SECRET, 1), [0]
    for batch in batches("main"):
        for event in batch.events:
            made.apply(event)
            held.append(made.blocks)
    assert (min(held), max(held), held[-1]) == (0, 47, 12)
    assert (made.unmatched_removals, made.unkeyed_blocks, made.unusable) == (0, 0, "")
    assert (made.block_size, made.media) == (32, 1)


def test_captured_prompts_get_the_keys_that_their_requests_get() -> None:
    first = ids(10, 100)
    new = {  # what each step adds, where the client sent all of its tokens
        "prompt_100_tokens": prompt_keys(first),
        "shared_prefix_64_then_64_other": prompt_keys([*first[:64], *ids(11, 64)])
        - prompt_keys(first),
        "exactly_two_blocks_prompt": prompt_keys(ids(13, 64)),
        "exactly_two_blocks_prompt_again": set(),
        "cache_salt": prompt_keys(ids(14, 96), salt="tenant-a"),
        "session_id_header": prompt_keys(ids(15, 64)),
        "report_mode_full_on_hit": set(),
        "first_request_after_reset": prompt_keys(ids(16, 64)),
        "fill_until_evicted": set().union(*(prompt_keys(ids(100 + k, 320)) for k in range(8))),
    }
    added: dict[str, set[int]] = {step: set() for step in new}
    made, held_at = Residency(SECRET, 1), {}
    for row in rows("main"):
        apply(made, decode(frames(row)).events)
        changes = made.take_changes()
        if row["step"] in added:
            added[row["step"]] |= {key for key, medium in changes.items() if medium is not None}
        held_at[row["step"]] = set(made.held())
    assert added == new
    # The reset left nothing but the next request's; the touched prefix came back whole.
    assert held_at["first_request_after_reset"] == prompt_keys(ids(16, 64))
    assert prompt_keys(ids(100, 320)) <= held_at["touch_evicted_prefix_again"]


def test_a_decoded_answer_continues_its_prompts_chain() -> None:
    made, prompt = Residency(SECRET, 1), ids(12, 31)
    for row in rows("main"):
        apply(made, decode(frames(row)).events)
        changes = made.take_changes()
        if row["step"] == "prompt_31_then_decode_70":
            break
    (stored,) = decode(frames(row)).events
    assert isinstance(stored, BlockStored)
    first_unit = chain(seed(SECRET), pack(prompt[:16]))
    assert list(changes) == chain(seed(SECRET), stored.packed)
    assert list(changes)[:1] == first_unit


def test_captured_adapter_and_salts_get_keys_of_their_own() -> None:
    made, prompt = Residency(SECRET, 1), ids(10, 100)
    added: dict[str, set[int]] = {}
    for row in rows("bytes_cbor_lora"):
        apply(made, decode(frames(row)).events)
        added.setdefault(row["step"], set()).update(made.take_changes())
    expected = {
        "prompt_100_tokens": prompt_keys(prompt),
        "cache_salt": prompt_keys(ids(14, 96), salt="tenant-a"),
        "lora": prompt_keys(prompt, lora="sql-adapter"),
        "lora_and_salt": prompt_keys(prompt, lora="sql-adapter", salt="tenant-b"),
    }
    assert {step: added[step] for step in expected} == expected
    assert (made.blocks, made.unmatched_removals, made.unkeyed_blocks) == (47, 0, 0)


@pytest.mark.parametrize("version", ["0.17.1", "0.20.2", "0.23.0", "0.24.0"])
def test_older_layouts_leave_the_same_residency(version: str) -> None:
    main = rows("main")
    kinds = [{event["type"] for event in row["batch"][1]} for row in main]
    picked = [
        *range(3),
        *range(7, 13),
        next(i for i, kind in enumerate(kinds) if "AllBlocksCleared" in kind),
        *[i for i, kind in enumerate(kinds) if "BlockRemoved" in kind][:2],
    ]
    older = [
        row for row in rows("synthetic_older_layouts") if row["synthetic_layout_of"] == version
    ]
    assert trace(older) == trace([main[i] for i in picked])


def trace(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    made, states = Residency(SECRET, 1), []
    for row in messages:
        apply(made, decode(frames(row)).events)
        states.append((made.held(), made.blocks, made.unkeyed_blocks, made.unmatched_removals))
    return states


def test_the_captured_restarts_start_empty_each_time() -> None:
    made, held = Residency(SECRET, 1), []
    for batch in batches("restart"):
        if batch.seq == 0:
            made.clear()
        apply(made, batch.events)
        held.append(set(made.held()))
    same = prompt_keys(ids(1, 64))
    assert held == [
        state for life in range(3) for state in (same, same | prompt_keys(ids(2 + life, 64)))
    ]
    assert made.unmatched_removals == 0


# --- copies and levels ----------------------------------------------------------------------------

ABC = keys_of(A, B, C)
OF_A, OF_B, OF_C = ABC


@pytest.mark.parametrize(
    ("events", "held", "blocks"),
    [
        pytest.param([store(A, B, C)], on(GPU, ABC), 3, id="a run"),
        pytest.param([store(A), store(B, C, parent=A)], on(GPU, ABC), 3, id="a run in two events"),
        pytest.param(
            [store(A, B, C), remove(C)], on(GPU, ABC[:2]), 2, id="the tail leaves: the rest stays"
        ),
        pytest.param(
            [store(A, B, C), remove(A)], {}, 2, id="the head leaves: nothing can be served"
        ),
        pytest.param(
            [store(A, B, C), remove(B)], on(GPU, ABC[:1]), 2, id="a hole: what is before it counts"
        ),
        pytest.param(
            [store(A, B, C), remove(A), store(A)], on(GPU, ABC), 3, id="the head comes back"
        ),
        pytest.param(
            [store(A, B, C), remove(A), remove(B), store(B, parent=A)],
            {},
            2,
            id="a hole is mended under a missing head",
        ),
        pytest.param(
            [store(A, B, C), remove(A), remove(B), store(B, parent=A), store(A)],
            on(GPU, ABC),
            3,
            id="two holes are mended tail first",
        ),
        pytest.param(
            [store(A, B), store(B, parent=A), remove(B)], on(GPU, ABC[:2]), 2, id="one copy of two"
        ),
        pytest.param(
            [store(A, B), store(B, parent=A), remove(B), remove(B)],
            on(GPU, ABC[:1]),
            1,
            id="both copies",
        ),
        pytest.param(
            [store(A), remove(A), store(A), store(B, parent=A)],
            on(GPU, ABC[:2]),
            2,
            id="removed and stored in one message",
        ),
        pytest.param([store(A, B, C), AllBlocksCleared()], {}, 0, id="cleared"),
        pytest.param(
            [store(A, B), offload(A, B), AllBlocksCleared(), store(A)],
            on(GPU, ABC[:1]),
            1,
            id="cleared in every medium, then stored",
        ),
        pytest.param([store(A, B), offload(A)], on(GPU, ABC[:2]), 3, id="in two media: the faster"),
        pytest.param(
            [store(A, B), offload(A), remove(A)],
            on(CPU, ABC[:2]),
            2,
            id="an ancestor in slower memory slows what follows",
        ),
        pytest.param(
            [store(A, B), offload(B), remove(B)],
            {OF_A: GPU, OF_B: CPU},
            2,
            id="a slow block does not slow its ancestors",
        ),
        pytest.param(
            [store(A, B, C), offload(A, medium=DISK), offload(B), remove(A), remove(B)],
            on(DISK, ABC),
            3,
            id="the slowest on the way counts",
        ),
        pytest.param(
            [store(A, B), offload(A), remove(A), remove(A, medium=CPU)], {}, 1, id="gone from both"
        ),
        pytest.param(
            [store(A, B), offload(A), remove(A), store(A)], on(GPU, ABC[:2]), 3, id="loaded again"
        ),
        pytest.param(
            [store(A, B), store(B, medium=CPU, parent=A, told=tokens(B)), remove(B)],
            {OF_A: GPU, OF_B: CPU},
            2,
            id="offloaded with token ids",
        ),
    ],
)
def test_what_is_held_after(events: list[Any], held: dict[BlockKey, Medium], blocks: int) -> None:
    made = residency(*events)
    assert (made.held(), made.blocks, made.unmatched_removals) == (held, blocks, 0)
    assert made.take_changes() == held


@pytest.mark.parametrize(
    "key", [0, 2**63, 2**64 - 1, b"\0" * 32, b"\xff" * 8], ids=["0", "2^63", "max", "32 bytes", "8"]
)
def test_any_engine_key_will_do(key: EngineKey) -> None:
    made = residency(store(key, told=tokens(A)), store(B, parent=key), remove(B))
    assert made.held() == on(GPU, ABC[:1])


@pytest.mark.parametrize(
    "removal",
    [
        pytest.param(remove(B), id="a key never stored"),
        pytest.param(remove(A, medium=CPU), id="another medium"),
        pytest.param(remove(A, group=1), id="another group"),
    ],
)
def test_a_removal_of_what_is_not_held_is_counted_and_changes_nothing(removal: Any) -> None:
    made = residency(store(A), removal)
    assert (made.unmatched_removals, made.held(), made.blocks) == (1, on(GPU, ABC[:1]), 1)


def test_a_removal_before_anything_is_stored_is_counted() -> None:
    assert residency(remove(A, B)).unmatched_removals == 2


def test_two_engine_keys_of_one_block_key_are_both_needed_to_lose_it() -> None:
    twice = [store(A, told=tokens(A)), store(B, told=tokens(A))]
    assert residency(*twice, remove(A)).held() == on(GPU, ABC[:1])
    assert residency(*twice, remove(A), remove(B)).held() == {}


def test_a_block_key_counts_at_the_fastest_of_its_engine_keys() -> None:
    made = residency(
        store(A, told=tokens(A)), store(B, told=tokens(A)), offload(A), remove(A), remove(B)
    )
    assert made.held() == on(CPU, ABC[:1])


def test_blocks_that_share_their_first_unit_share_its_key() -> None:
    wide = {"block_size": 32}
    ab, ac = keys_of(A, B), keys_of(A, C)
    made = residency(
        store(1, told=tokens(A, B), **wide), store(2, told=tokens(A, C), **wide), remove(1)
    )
    assert (ab[0], made.held()) == (ac[0], on(GPU, ac))


def test_blocks_of_a_wide_prompt_branch_and_each_branch_leaves_alone() -> None:
    leaves = range(10, 40)
    made = residency(store(A), *(store(leaf, parent=A) for leaf in leaves))
    apply(made, (remove(leaf) for leaf in leaves if leaf != 20))
    assert made.held() == on(GPU, keys_of(A, 20))
    apply(made, [remove(20), remove(A)])
    assert (made.held(), made.blocks) == ({}, 0)


def test_a_head_that_leaves_takes_every_branch_with_it_and_brings_it_back() -> None:
    b, c = keys_of(A, B), keys_of(A, C)
    made = residency(store(A, B), store(C, parent=A), store(D, parent=A), remove(D), remove(A))
    assert made.held() == {}
    made.apply(store(A))
    assert made.held() == on(GPU, [*b, *c])
    apply(made, [remove(B), remove(A), remove(C)])
    assert made._blocks == {}


def test_a_prompt_of_many_blocks_loses_and_regains_its_head() -> None:
    blocks = range(1, 20_001)
    made = residency(store(*blocks), remove(1))
    assert made.held() == {}
    made.apply(store(1))
    assert len(made.held()) == 20_000


# --- keys -----------------------------------------------------------------------------------------


def test_adapters_and_salts_keep_equal_prompts_apart() -> None:
    variants = [(None, None), ("sql", None), ("law", None), (None, "t"), (None, "u"), ("sql", "t")]
    made = residency(
        *(
            store(key, told=tokens(A), lora=lora, salt=salt)
            for key, (lora, salt) in enumerate(variants)
        )
    )
    assert made.held() == {keys_of(A, lora=lora, salt=salt)[0]: GPU for lora, salt in variants}
    assert len(made.held()) == len(variants)


def test_a_salt_reaches_the_blocks_behind_it() -> None:
    made = residency(store(A, salt="t"), store(B, parent=A))
    assert made.held() == on(GPU, keys_of(A, B, salt="t"))


@pytest.mark.parametrize(
    ("stride", "size", "depths"),
    [
        pytest.param(1, 16, [1, 2, 3, 4, 5, 6, 7, 8], id="every unit"),
        pytest.param(4, 16, [4, 8], id="every fourth"),
        pytest.param(4, 32, [4, 8], id="every second block"),
        pytest.param(4, 64, [4, 8], id="every block"),
        pytest.param(2, 64, [2, 4, 6, 8], id="twice in a block"),
        pytest.param(3, 32, [3, 6], id="out of step with the blocks"),
        pytest.param(16, 16, [], id="wider than the prompt"),
    ],
)
@pytest.mark.parametrize("run", [1, 2, 8])
def test_every_stride_th_unit_of_the_prompt_is_reported(
    stride: int, size: int, depths: list[int], run: int
) -> None:
    prompt, count = list(range(128)), 128 // size
    made = Residency(SECRET, stride)
    for first in range(0, count, run):
        run_of = range(first, min(first + run, count))
        told = prompt[first * size : run_of.stop * size]
        parent = first - 1 if first else None
        made.apply(store(*run_of, parent=parent, told=told, block_size=size))
    units = chain(seed(SECRET), pack(prompt))
    assert made.held() == on(GPU, [units[depth - 1] for depth in depths])


def test_a_media_part_is_mixed_in_once_at_the_unit_where_it_starts() -> None:
    event = store(A, B, block_size=32, media=(("cat", 21), ("dog", 40), ("cow", 41)))
    first = chain(seed(SECRET), event.packed[:64])
    second = chain(mix(first[-1], [("cat", 5)]), event.packed[64:128])
    rest = chain(mix(second[-1], [("dog", 8), ("cow", 9)]), event.packed[128:])
    assert run_keys(seed(SECRET), event) == [*first, *second, *rest]


def test_a_media_part_at_the_very_start() -> None:
    event = store(A, media=(("cat", 0),))
    assert run_keys(seed(SECRET), event) == chain(mix(seed(SECRET), [("cat", 0)]), event.packed)


def test_prompts_with_different_images_share_what_is_before_them() -> None:
    def keys(name: str, at: int) -> list[BlockKey]:
        return run_keys(seed(SECRET), store(A, B, C, media=((name, at),)))

    cat, dog, later = keys("cat", 20), keys("dog", 20), keys("cat", 21)
    assert cat[:1] == dog[:1] == later[:1] == ABC[:1]
    assert not set(cat[1:]) & (set(dog[1:]) | set(later[1:]) | set(ABC))


def test_the_split_into_events_does_not_change_keys_with_media() -> None:
    whole = residency(store(A, B, C, media=(("cat", 20),)))
    split = residency(store(A), store(B, parent=A, media=(("cat", 4),)), store(C, parent=B))
    assert split.held() == whole.held()


# --- blocks without a key -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "held", "blocks", "unkeyed"),
    [
        pytest.param([store(B, C, parent=A)], {}, 2, 2, id="the parent was never seen"),
        pytest.param(
            [store(B, parent=A), store(C, parent=B)], {}, 2, 2, id="nor the parent's parent"
        ),
        pytest.param(
            [store(B, parent=A), store(C, parent=B), remove(B), remove(C)],
            {},
            0,
            0,
            id="they leave",
        ),
        pytest.param([offload(A)], {}, 1, 1, id="offloaded, but never stored before"),
        pytest.param(
            [store(A, B, C, keyable=1)], on(GPU, ABC[:1]), 3, 2, id="extra keys that say too little"
        ),
        pytest.param(
            [store(A, B, keyable=1), store(C, parent=B)],
            on(GPU, ABC[:1]),
            3,
            2,
            id="what follows such a block",
        ),
        pytest.param(
            [store(A, B, keyable=0), remove(B)], {}, 1, 1, id="they are removed like any other"
        ),
        pytest.param(
            [store(B, parent=A), store(A, B)],
            on(GPU, ABC[:2]),
            3,
            0,
            id="told again from the start: now it can be keyed",
        ),
        pytest.param(
            [offload(A), store(A)], on(GPU, ABC[:1]), 2, 0, id="told again with token ids"
        ),
        pytest.param(
            [offload(A), offload(A), store(A)], on(GPU, ABC[:1]), 3, 0, id="with both its copies"
        ),
        pytest.param(
            [offload(A), store(A), remove(A)], on(CPU, ABC[:1]), 1, 0, id="its old copy counts"
        ),
        pytest.param(
            [store(A, medium=CPU, block_size=24, told=range(24))],
            {},
            1,
            1,
            id="an offloading tier with a block size of its own",
        ),
    ],
)
def test_what_cannot_be_keyed_is_counted_only(
    events: list[Any], held: dict[BlockKey, Medium], blocks: int, unkeyed: int
) -> None:
    made = residency(*events)
    assert (made.held(), made.blocks, made.unkeyed_blocks) == (held, blocks, unkeyed)
    assert (made.unmatched_removals, made.unusable) == (0, "")


def test_a_block_that_left_leaves_nothing_behind() -> None:
    made = residency(store(A, B, C), remove(A), remove(B), remove(C))
    assert (made._blocks, made._carriers) == ({}, {})


def test_ancestors_that_left_are_kept_as_long_as_a_descendant_is_held() -> None:
    made = residency(store(A, B, C), remove(A), remove(B))
    assert set(made._blocks) == {A, B, C}
    made.apply(remove(C))
    assert made._blocks == {}


# --- changes --------------------------------------------------------------------------------------


def test_changes_are_net_and_taken_once() -> None:
    made = residency(store(A, B))
    assert made.take_changes() == on(GPU, ABC[:2])
    assert made.take_changes() == {}
    apply(made, [remove(B), store(B, parent=A), store(C, parent=B), remove(C)])
    assert made.take_changes() == {}
    apply(made, [offload(A), remove(A)])
    assert made.take_changes() == on(CPU, ABC[:2])
    made.apply(remove(A, medium=CPU))
    assert made.take_changes() == gone(ABC[:2])


def test_a_clear_by_the_engine_is_a_change() -> None:
    made = residency(store(A, B))
    made.take_changes()
    apply(made, [AllBlocksCleared(), store(A)])
    assert made.take_changes() == gone([OF_B])


def test_clear_forgets_changes_too() -> None:
    made = residency(store(A, B), offload(A))
    made.take_changes()
    made.apply(remove(B))
    made.clear()
    state = (made.held(), made.take_changes(), made.blocks, made.media, made.block_size)
    assert state == ({}, {}, 0, 1, 0)
    made.apply(store(A))
    assert made.take_changes() == on(GPU, ABC[:1])


@pytest.mark.parametrize(
    ("events", "media"),
    [
        pytest.param([], 1, id="nothing yet"),
        pytest.param([store(A)], 1, id="gpu"),
        pytest.param([store(A), offload(A)], 2, id="cpu"),
        pytest.param([store(A), offload(A), store(B, parent=A)], 2, id="cpu, then gpu"),
        pytest.param([store(A), offload(A, medium=DISK)], 3, id="disk"),
        pytest.param([store(A), offload(A), remove(A, medium=CPU)], 2, id="cpu, left again"),
        pytest.param([store(A), offload(A), AllBlocksCleared()], 2, id="cpu, cleared"),
    ],
)
def test_media_grow_and_stay(events: list[Any], media: int) -> None:
    assert residency(*events).media == media


# --- engines that cannot be matched ---------------------------------------------------------------


def test_a_block_size_that_is_no_multiple_of_a_unit_makes_the_engine_unusable() -> None:
    made = residency(store(A, block_size=24, told=range(24)), remove(A))
    assert made.unusable == "block size 24 is not a multiple of 16"
    assert (made.block_size, made.held(), made.blocks, made.unmatched_removals) == (24, {}, 0, 0)


def test_a_new_life_may_be_usable_again() -> None:
    made = residency(store(A, block_size=24, told=range(24)))
    made.clear()
    made.apply(store(A))
    assert (made.unusable, made.held()) == ("", on(GPU, ABC[:1]))
