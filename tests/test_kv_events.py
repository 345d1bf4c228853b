"""The engine's messages become events, whatever the version, and nonsense becomes a count."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kv_events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Undecodable,
    decode,
    is_replay_end,
    replay_request,
)
from lineside.hashing import pack
from lineside.ids import Medium
from tests.captures import batches, frames, ids, rows

SEQ = (7).to_bytes(8, "big")
CAPTURES = [
    "main",
    "bytes_cbor_lora",
    "hybrid_groups",
    "dp2_rank0",
    "dp2_rank1",
    "restart",
    "replay_main",
    "replay_small_buffer",
    "synthetic_older_layouts",
]
FIELDS = {
    "BlockStored": [
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ],
    "BlockRemoved": ["block_hashes", "medium", "group_idx"],
    "AllBlocksCleared": [],
}


def as_map(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "type": name}


def as_array(name: str, fields: dict[str, Any]) -> list[Any]:
    last = max((FIELDS[name].index(field) + 1 for field in fields), default=0)
    return [name, *(fields.get(field) for field in FIELDS[name][:last])]


def read(*events: Any, ts: float = 1.5, rank: int | None = 0) -> Batch:
    return decode([b"topic", SEQ, msgspec.msgpack.encode([ts, events, rank])])


def stored(**changed: Any) -> BlockStored:
    fields: dict[str, Any] = {
        "keys": (11, 12),
        "parent": None,
        "packed": pack(range(32)),
        "block_size": 16,
        "medium": Medium.GPU,
        "group": 0,
        "full_attention": True,
        "lora": None,
        "salt": None,
        "media": (),
        "keyable": 2,
    }
    return BlockStored(**{**fields, **changed})


def wire(**changed: Any) -> dict[str, Any]:
    fields = {
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": list(range(32)),
        "block_size": 16,
    }
    return {**fields, **changed}


# --- captures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAPTURES)
def test_every_captured_message_is_read_whole(name: str) -> None:
    read_whole = [(batch.undecodable, len(batch.events) > 0) for batch in batches(name)]
    assert set(read_whole) == {(0, True)}


def test_a_captured_message_as_a_whole() -> None:
    first = rows("main")[0]
    hashes = (7740119255602593940, 14895232539595871818, 13707331920796116984)
    event = stored(
        keys=hashes,
        packed=pack(ids(10, 100)[:96]),
        block_size=32,
        keyable=3,
        kind="full_attention",
    )
    assert decode(frames(first)) == Batch(
        seq=0, ts=first["batch"][0], rank=0, events=(event,), undecodable=0
    )


def test_byte_hashes_stay_bytes() -> None:
    row = rows("bytes_cbor_lora")[0]
    (event,) = decode(frames(row)).events
    assert isinstance(event, BlockStored)
    said = row["batch"][1][0]["block_hashes"]
    assert [key.hex() for key in event.keys if isinstance(key, bytes)] == [
        key["bytes_hex"] for key in said
    ]


def test_an_adapters_name_and_a_salt_are_told_apart() -> None:
    events = {
        row["step"]: event
        for row in rows("bytes_cbor_lora")
        for event in decode(frames(row)).events
        if isinstance(event, BlockStored)
    }
    of = {step: (event.lora, event.salt, event.keyable) for step, event in events.items()}
    assert {
        step: of[step] for step in ("shared_prefix", "cache_salt", "lora", "lora_and_salt")
    } == {
        "shared_prefix": (None, None, 2),
        "cache_salt": (None, "tenant-a", 3),
        "lora": ("sql-adapter", None, 3),
        "lora_and_salt": ("sql-adapter", "tenant-b", 3),
    }


def test_ranks_and_groups_are_read() -> None:
    ranks = [batches(name)[0].rank for name in ("dp2_rank0", "dp2_rank1")]
    groups = [
        (
            event.group,
            event.kind,
            event.full_attention,
            event.window,
            len(event.keys),
            event.keyable,
        )
        for event in batches("hybrid_groups")[0].events
        if isinstance(event, BlockStored)
    ]
    # The window's group lists 2 hashes for 6 blocks of tokens, so its tokens cannot be assigned.
    assert (ranks, groups) == (
        [0, 1],
        [(0, "sliding_window", False, 64, 2, 0), (1, "full_attention", True, None, 6, 6)],
    )


@pytest.mark.parametrize("version", ["0.10.2", "0.14.0", "0.17.1", "0.20.2", "0.23.0", "0.24.0"])
def test_older_layouts_read_like_the_newest(version: str) -> None:
    newest = [decode(frames(row)).events for row in newest_rows()]
    older = [
        decode(frames(row)).events
        for row in rows("synthetic_older_layouts")
        if row["synthetic_layout_of"] == version
    ]
    if version in ("0.10.2", "0.14.0"):  # these had no extra keys: a salt cannot be seen
        newest = [tuple(without(event, salt=None) for event in events) for events in newest]
    if version < "0.22.1":
        newest = [tuple(without(event, kind=None) for event in events) for events in newest]
    assert older == newest


def newest_rows() -> list[dict[str, Any]]:
    """Return the messages of `main` that were re-encoded in older layouts."""
    main = rows("main")

    def holds(row: dict[str, Any], kind: str) -> bool:
        return any(event["type"] == kind for event in row["batch"][1])

    cleared = [row for row in main if holds(row, "AllBlocksCleared")][:1]
    removed = [row for row in main if holds(row, "BlockRemoved")][:2]
    return main[:3] + main[7:13] + cleared + removed


def without(event: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(event, **changes) if isinstance(event, BlockStored) else event


# --- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encode", [as_map, as_array])
@pytest.mark.parametrize(
    ("name", "fields", "event"),
    [
        pytest.param("BlockStored", wire(), stored(), id="a run, optional fields missing"),
        pytest.param(
            "BlockStored",
            {"block_hashes": [11, 12]},
            stored(packed=b"", block_size=0, keyable=0),
            id="a run of which only the hashes are told",
        ),
        pytest.param(
            "BlockStored",
            wire(medium="CPU", token_ids=[], block_size=0, group_idx=0),
            stored(medium=Medium.CPU, packed=b"", block_size=0, keyable=0),
            id="offloaded, without token ids",
        ),
        pytest.param(
            "BlockStored",
            wire(medium="STORAGE", parent_block_hash=10, kv_cache_spec_kind="mla_attention"),
            stored(medium=Medium.DISK, parent=10, kind="mla_attention"),
            id="on disk, under a parent, of a kind that keeps every block",
        ),
        pytest.param(
            "BlockStored",
            wire(
                group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=128
            ),
            stored(group=1, full_attention=False, kind="sliding_window", window=128),
            id="a window's group",
        ),
        pytest.param(
            "BlockStored",
            wire(block_hashes=[-1, -(2**63)], parent_block_hash=-2),
            stored(keys=(2**64 - 1, 2**63), parent=2**64 - 2),
            id="signed hashes become unsigned",
        ),
        pytest.param(
            "BlockStored",
            wire(block_hashes=[0, 2**64 - 1], parent_block_hash=2**63),
            stored(keys=(0, 2**64 - 1), parent=2**63),
            id="hashes at the ends of their range",
        ),
        pytest.param(
            "BlockStored",
            wire(block_hashes=[b"a" * 32, b"b" * 32], parent_block_hash=b"p"),
            stored(keys=(b"a" * 32, b"b" * 32), parent=b"p"),
            id="hashes as bytes",
        ),
        pytest.param(
            "BlockStored",
            wire(token_ids=list(range(31))),
            stored(packed=pack(range(31)), keyable=0),
            id="tokens that do not fill the blocks",
        ),
        pytest.param(
            "BlockStored", wire(lora_id=3), stored(keyable=0), id="an adapter known by number only"
        ),
        pytest.param(
            "BlockStored",
            wire(lora_id=3, lora_name="sql"),
            stored(lora="sql"),
            id="an adapter with a name",
        ),
        pytest.param(
            "BlockRemoved",
            {"block_hashes": [-1], "medium": "CPU", "group_idx": 2},
            BlockRemoved((2**64 - 1,), Medium.CPU, 2),
            id="a removal",
        ),
        pytest.param(
            "BlockRemoved",
            {"block_hashes": [1]},
            BlockRemoved((1,), Medium.GPU, 0),
            id="a removal, optional fields missing",
        ),
        pytest.param("AllBlocksCleared", {}, AllBlocksCleared(), id="a clear"),
    ],
)
def test_an_event_reads_the_same_in_both_encodings(
    encode: Any, name: str, fields: dict[str, Any], event: Any
) -> None:
    assert read(encode(name, fields)).events == (event,)


@pytest.mark.parametrize("encode", [as_map, as_array])
def test_removals_in_a_row_are_one_in_each_medium_and_group(encode: Any) -> None:
    def removed(*keys: int, medium: str = "GPU", group_idx: int = 0) -> Any:
        fields = {"block_hashes": list(keys), "medium": medium, "group_idx": group_idx}
        return encode("BlockRemoved", fields)

    batch = read(
        *(removed(1), removed(2, -1), removed(3, medium="CPU"), removed(4), removed(5)),
        *(removed(6, group_idx=1), encode("BlockStored", wire()), removed(7, group_idx=1)),
        *(removed(8, medium="TAPE"), removed(9, medium="TAPE"), removed(10)),
    )
    assert batch.events == (
        BlockRemoved((1, 2, 2**64 - 1), Medium.GPU, 0),
        BlockRemoved((3,), Medium.CPU, 0),
        BlockRemoved((4, 5), Medium.GPU, 0),
        BlockRemoved((6,), Medium.GPU, 1),
        stored(),
        BlockRemoved((7,), Medium.GPU, 1),
        BlockRemoved((10,), Medium.GPU, 0),
    )
    assert batch.undecodable == 2


def test_fields_and_elements_that_we_do_not_know_are_ignored() -> None:
    as_map_with_more = as_map("BlockRemoved", {"block_hashes": [1], "flavour": {"new": 1}})
    as_array_with_more = ["BlockRemoved", [1], "GPU", 0, "LOCAL", "tier", "new"]
    batch = read(as_map_with_more, as_array_with_more)
    assert batch.events == (BlockRemoved((1,), Medium.GPU, 0),) * 2


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param([1.5, [["AllBlocksCleared"]], 3], id="array"),
        pytest.param([1.5, [["AllBlocksCleared"]], 3, "more"], id="array with more"),
        pytest.param(
            {"ts": 1.5, "events": [["AllBlocksCleared"]], "data_parallel_rank": 3}, id="map"
        ),
        pytest.param(
            {"more": 1, "ts": 1.5, "events": [["AllBlocksCleared"]], "data_parallel_rank": 3},
            id="map with more",
        ),
    ],
)
def test_a_batch_reads_the_same_in_both_encodings(payload: Any) -> None:
    batch = decode([SEQ, msgspec.msgpack.encode(payload)])
    assert batch == Batch(seq=7, ts=1.5, rank=3, events=(AllBlocksCleared(),), undecodable=0)


def test_a_missing_rank_is_none() -> None:
    assert decode([SEQ, msgspec.msgpack.encode([1, []])]) == Batch(7, 1.0, None, (), 0)


@pytest.mark.parametrize("front", [[], [b"topic"], [b"", b"topic"], [b""]])
def test_frames_are_read_from_the_end(front: list[bytes]) -> None:
    assert decode([*front, SEQ, msgspec.msgpack.encode([1.5, [], 0])]).seq == 7


def test_a_sequence_number_is_unsigned() -> None:
    payload = msgspec.msgpack.encode([1.5, [], 0])
    assert decode([(2**63).to_bytes(8, "big"), payload]).seq == 2**63


# --- extra keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        pytest.param({"extra_keys": [None, None]}, stored(), id="none"),
        pytest.param({"extra_keys": [[], []]}, stored(), id="empty ones"),
        pytest.param({"extra_keys": [["t"], None]}, stored(salt="t"), id="a salt"),
        pytest.param(
            {"extra_keys": [["t"], None], "parent_block_hash": 10},
            stored(parent=10, keyable=0),
            id="a text on a block that is not a prompt's first is no salt",
        ),
        pytest.param(
            {"extra_keys": [None, ["t"]]},
            stored(keyable=1),
            id="a bare identifier: the blocks before it can be keyed",
        ),
        pytest.param(
            {"extra_keys": [["sql", "t"], ["sql"]], "lora_name": "sql"},
            stored(lora="sql", salt="t"),
            id="an adapter's name, then a salt",
        ),
        pytest.param(
            {"extra_keys": [["sql", "sql"], ["sql"]], "lora_name": "sql"},
            stored(lora="sql", salt="sql"),
            id="a salt that equals the adapter's name",
        ),
        pytest.param(
            {"extra_keys": [[["cat", 3]], [["cat", -13]]]},
            stored(media=(("cat", 3),)),
            id="a media part starts once and goes on",
        ),
        pytest.param(
            {"extra_keys": [[["cat", 3], ["cat", 9]], [["cat", 15]]]},
            stored(media=(("cat", 3), ("cat", 9), ("cat", 31))),
            id="the same media part three times",
        ),
        pytest.param(
            {"extra_keys": [["sql", ["cat", 3], "t"], ["sql"]], "lora_name": "sql"},
            stored(lora="sql", media=(("cat", 3),), salt="t"),
            id="adapter, media part and salt on one block",
        ),
        pytest.param(
            {"extra_keys": [[["cat", 3]], [["dog", 16]]]},
            stored(media=(("cat", 3),), keyable=1),
            id="a part that starts behind its block makes no sense",
        ),
        pytest.param(
            {"extra_keys": [[["cat", 3]], [["dog", 1], b"embeds"]]},
            stored(media=(("cat", 3),), keyable=1),
            id="prompt embeddings: parts of that block are left out",
        ),
        pytest.param(
            {"extra_keys": [["t", "u"], None]},
            stored(salt="t", keyable=0),
            id="two texts on a first block",
        ),
        pytest.param({"extra_keys": [["t", b"e"], None]}, stored(salt="t", keyable=0), id="bytes"),
        pytest.param({"extra_keys": [[["cat"]], None]}, stored(keyable=0), id="not a pair"),
        pytest.param({"extra_keys": [["t"]]}, stored(keyable=0), id="fewer than blocks"),
    ],
)
def test_extra_keys_are_sorted_out(fields: dict[str, Any], event: BlockStored) -> None:
    assert read(as_map("BlockStored", wire(**fields))).events == (event,)


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param({"type": "BlockMoved", "block_hashes": [1]}, id="an unknown type"),
        pytest.param(["BlockMoved", [1]], id="an unknown type in an array"),
        pytest.param({"block_hashes": [1]}, id="no type"),
        pytest.param({"type": "BlockRemoved"}, id="no hashes"),
        pytest.param(["BlockRemoved"], id="no hashes in an array"),
        pytest.param(["BlockRemoved", ["text"]], id="a hash that is a text"),
        pytest.param(["BlockRemoved", [1], "TAPE"], id="an unknown medium"),
        pytest.param(as_map("BlockStored", wire(token_ids=[-1] * 32)), id="a negative token id"),
        pytest.param(as_map("BlockStored", wire(token_ids=[2**32] * 32)), id="a huge token id"),
        pytest.param(as_map("BlockStored", wire(token_ids="text")), id="token ids that are text"),
        pytest.param([], id="an empty array"),
        pytest.param(5, id="a number"),
        pytest.param(None, id="nothing"),
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_the_others_stay(nonsense: Any) -> None:
    batch = read(["BlockRemoved", [1]], nonsense, ["AllBlocksCleared"])
    assert (batch.events, batch.undecodable) == (
        (BlockRemoved((1,), Medium.GPU, 0), AllBlocksCleared()),
        1,
    )


GOOD = msgspec.msgpack.encode([1.5, [], 0])


@pytest.mark.parametrize(
    ("message", "reason", "seq"),
    [
        pytest.param([], "0 frames instead of 2 or 3", None, id="no frames"),
        pytest.param([GOOD], "1 frames instead of 2 or 3", None, id="one frame"),
        pytest.param(
            [b"topic", b"\0", GOOD],
            "a sequence number of 1 bytes instead of 8",
            None,
            id="short number",
        ),
        *(
            pytest.param([SEQ, payload], "the payload is not a batch of events", 7, id=name)
            for name, payload in {
                "empty payload": b"",
                "cut short": GOOD[:-2],
                "more behind": GOOD + GOOD,
                "not MessagePack": b"\xc1",
                "a text": msgspec.msgpack.encode("secret"),
                "no events": msgspec.msgpack.encode([1.5]),
                "a time that is a text": msgspec.msgpack.encode(["secret", [], 0]),
                "events that are a text": msgspec.msgpack.encode([1.5, "secret", 0]),
                "nested too deep": b"\x92\xcb" + b"\0" * 8 + b"\x91" * 100_000 + b"\xc0",
            }.items()
        ),
    ],
)
def test_a_message_that_cannot_be_read_says_why_without_its_content(
    message: list[bytes], reason: str, seq: int | None
) -> None:
    with pytest.raises(Undecodable) as raised:
        decode(message)
    error = raised.value
    assert (str(error), error.seq, error.__cause__) == (reason, seq, None)


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_no_bytes_raise_anything_else(message: list[bytes]) -> None:
    with suppress(Undecodable):
        decode(message)


JUNK = [
    None,
    True,
    -1,
    0,
    2**64 - 1,
    1.5,
    "",
    "GPU",
    b"",
    b"x",
    [],
    [1],
    ["x"],
    [[]],
    [["x", 1]],
    {},
]


@given(
    st.sampled_from(list(FIELDS)),
    st.dictionaries(st.sampled_from(FIELDS["BlockStored"]), st.sampled_from(JUNK)),
)
def test_no_field_is_fatal(name: str, junk: dict[str, Any]) -> None:
    in_order = [{**wire(), **junk}.get(field) for field in FIELDS[name]]
    batch = read(as_map(name, {**wire(), **junk}), [name, *in_order], ["AllBlocksCleared"])
    assert len(batch.events) + batch.undecodable == 3
    assert batch.events[-1] == AllBlocksCleared()


# --- replay frames --------------------------------------------------------------------------------


def test_replay_frames_are_those_of_the_capture() -> None:
    replies = [row for row in rows("replay_main") if row.get("dir") == "received"]
    assert [is_replay_end(frames(row)) for row in replies] == [row["end_marker"] for row in replies]
    assert replay_request(258) == [b"", b"\0\0\0\0\0\0\1\2"]


@pytest.mark.parametrize("front", [[b""], [b"", b""]])
def test_the_end_marker_is_known_with_and_without_a_topic(front: list[bytes]) -> None:
    assert is_replay_end([*front, b"\xff" * 8, b""])
    assert not is_replay_end([*front, SEQ, GOOD])
