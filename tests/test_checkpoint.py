"""What is remembered of an engine over the agent's restart: all of it, or a reason why not."""

import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from xxhash import xxh3_128_digest

from agent.checkpoint import KEEP_S, VERSION, Checkpoints, Key, Saved, capture, decode, encode
from agent.kv_events import BlockRemoved, BlockStored
from agent.kv_events import decode as decode_batch
from agent.residency import Residency
from agent.sequence import Place
from lineside.hashing import pack
from lineside.ids import EngineId, Medium
from tests.captures import frames, rows

KEY = Key(EngineId("127.0.0.1:8001"), b"a secret of this test", 2)
PLACE = Place(41, b"0123456789abcdef")
HEAD = 8 + 2 + 16


def after(events: int, capture: str = "main") -> Residency:
    residency = Residency(KEY.secret, KEY.stride)
    for row in list(rows(capture))[:events]:
        for event in decode_batch(frames(row)).events:
            residency.apply(event)
    return residency


def content(residency: Residency, lost: str = "") -> bytes:
    captured = capture(Saved(residency, PLACE, lost, 1700.5))
    assert captured is not None
    return encode(KEY, captured)


def loaded(raw: bytes, key: Key = KEY) -> Saved:
    saved = decode(key, raw)
    assert isinstance(saved, Saved), saved
    return saved


@pytest.mark.parametrize("name", ["main", "bytes_cbor_lora", "hybrid_groups"])
def test_what_is_loaded_goes_on_like_what_was_saved(name: str) -> None:
    total = len(list(rows(name)))
    for events in (0, 1, total // 2):
        residency = after(events, name)
        saved = loaded(content(residency))
        assert (saved.place, saved.lost, saved.process_start_s) == (PLACE, "", 1700.5)
        for row in list(rows(name))[events:]:
            assert saved.residency.held() == residency.held()
            assert saved.residency.blocks == residency.blocks
            for event in decode_batch(frames(row)).events:
                saved.residency.apply(event)
                residency.apply(event)
        assert saved.residency.held() == residency.held()
        assert saved.residency.unmatched_removals == residency.unmatched_removals


def test_every_medium_copy_and_unknown_block_comes_back() -> None:
    residency = Residency(KEY.secret, KEY.stride)
    run = BlockStored(
        (1, b"two", 3), None, pack(range(96)), 32, Medium.GPU, 0, True, None, None, (), 3
    )
    orphan = BlockStored((9,), 8, pack(range(32)), 32, Medium.GPU, 0, True, None, None, (), 1)
    offloaded = BlockStored((1, b"two"), None, b"", 0, Medium.CPU, 0, True, None, None, (), 0)
    for event in (run, run, orphan, offloaded, BlockRemoved((1, 1), Medium.GPU, 0)):
        residency.apply(event)
    residency.apply(BlockRemoved((3,), Medium.GPU, 0))
    back = loaded(content(residency)).residency
    assert back.held() == residency.held() != {}
    for of in (residency, back):
        assert (of.blocks, of.unkeyed_blocks, of.media, of.block_size) == (6, 1, 2, 32)
        of.apply(BlockRemoved((b"two", b"two", 3), Medium.GPU, 0))
        of.apply(BlockRemoved((1,), Medium.CPU, 0))
        assert of.held() == {}


def test_a_loss_is_remembered() -> None:
    residency = after(90)
    residency.lose()
    run = BlockStored((1,), None, pack(range(32)), 32, Medium.GPU, 0, True, None, None, (), 1)
    saved = loaded(content(residency, lost="events were lost"))
    assert saved.lost == "events were lost"
    for of in (residency, saved.residency):
        of.at_least_one = True
        of.apply(run)
        of.apply(run)
        of.apply(BlockRemoved((1,), Medium.GPU, 0))
        assert (of.blocks, of.held()) == (0, {})


def test_what_changes_while_it_is_written_does_not_show() -> None:
    residency = after(90)
    held = residency.held()
    captured = capture(Saved(residency, PLACE, "", None))
    assert captured is not None
    residency.clear()
    assert loaded(encode(KEY, captured)).residency.held() == held


def test_an_engine_of_no_use_is_not_kept() -> None:
    residency = after(10)
    odd = BlockStored((1,), None, pack(range(9)), 9, Medium.GPU, 0, True, None, None, (), 1)
    residency.apply(odd)
    assert residency.unusable
    assert capture(Saved(residency, PLACE, "", None)) is None


def test_it_is_used_at_another_stride() -> None:
    for stride in (1, 4):
        saved = loaded(RAW, replace(KEY, stride=stride))
        residency = after(90)
        residency.restride(stride)
        assert saved.residency.held() == residency.held() != {}


def test_a_file_holds_no_token_ids_and_no_secret() -> None:
    residency = after(90)
    raw = content(residency)
    assert KEY.secret not in raw
    packed = {
        event.packed[at : at + 64]
        for row in list(rows("main"))[:90]
        for event in decode_batch(frames(row)).events
        if isinstance(event, BlockStored)
        for at in range(0, len(event.packed), 64)
    }
    assert packed
    assert not any(unit in raw for unit in packed)


def forged(**changes: object) -> bytes:
    """Return a file with other fields and a right checksum."""
    fields = msgspec.msgpack.decode(content(after(90))[HEAD:])
    names = [
        *("engine", "secret", "seq", "mark", "lost", "process_start_s", "media", "block_size"),
        *("group", "group_told", "engine_keys", "parents", "copies", "keyed"),
        *("keys", "inner_counts", "inner", "reaches", "elsewhere"),
    ]
    for name, value in changes.items():
        fields[names.index(name)] = value
    body = msgspec.msgpack.encode(fields)
    return b"lineside" + VERSION.to_bytes(2, "little") + xxh3_128_digest(body) + body


RAW = content(after(90))


@pytest.mark.parametrize(
    ("raw", "key", "reason"),
    [
        pytest.param(b"", KEY, "the file is no checkpoint", id="empty"),
        pytest.param(b"#!/bin/sh\n" * 9, KEY, "the file is no checkpoint", id="another file"),
        pytest.param(
            RAW[:8] + b"\x09\0" + RAW[10:],
            KEY,
            "the checkpoint is of version 9 instead of 3",
            id="version",
        ),
        pytest.param(RAW[:-1], KEY, "the checkpoint's checksum is wrong", id="cut short"),
        pytest.param(
            RAW[:99] + bytes([RAW[99] ^ 1]) + RAW[100:],
            KEY,
            "the checkpoint's checksum is wrong",
            id="one bit",
        ),
        pytest.param(
            RAW,
            replace(KEY, engine=EngineId("another")),
            "the checkpoint is of another engine",
            id="engine",
        ),
        pytest.param(
            RAW,
            replace(KEY, secret=b"another"),
            "the checkpoint was made with another secret",
            id="secret",
        ),
        pytest.param(forged(seq="1"), KEY, "the checkpoint cannot be decoded", id="types"),
        pytest.param(forged(keys=b""), KEY, "the checkpoint contradicts itself", id="columns"),
        pytest.param(forged(keys=b"123"), KEY, "the checkpoint contradicts itself", id="halves"),
        pytest.param(
            forged(inner_counts=b"\0" * 4 * len(after(90)._blocks)),
            KEY,
            "the checkpoint contradicts itself",
            id="keys of no block",
        ),
        pytest.param(
            forged(parents=b"\0" * 4 * len(after(90)._blocks)),
            KEY,
            "the checkpoint contradicts itself",
            id="a block above itself",
        ),
        pytest.param(
            forged(elsewhere=[[1, 0, [1, 2], [1]]]),
            KEY,
            "the checkpoint contradicts itself",
            id="copies of no block",
        ),
        pytest.param(
            forged(parents=b"\x7f" * 4 * len(after(90)._blocks)),
            KEY,
            "the checkpoint contradicts itself",
            id="no such parent",
        ),
    ],
)
def test_what_is_wrong_is_not_used(raw: bytes, key: Key, reason: str) -> None:
    assert decode(key, raw) == reason


def test_a_forgery_without_changes_is_right() -> None:
    assert loaded(forged()).residency.held() == after(90).held()


def test_a_directory_keeps_the_last_of_each_engine(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "directory")
    assert checkpoints.load(KEY) == "there is no checkpoint"
    other = replace(KEY, engine=EngineId("../another"))
    for events, key in ((10, KEY), (90, KEY), (10, other)):
        captured = capture(Saved(after(events), PLACE, "", None))
        assert captured is not None
        checkpoints.save(key, captured)
    saved = checkpoints.load(KEY)
    assert isinstance(saved, Saved)
    assert saved.residency.held() == after(90).held()
    files = list((tmp_path / "new" / "directory").iterdir())
    assert len(files) == 2
    assert stat.S_IMODE((tmp_path / "new" / "directory").stat().st_mode) == 0o700
    checkpoints.prune(files[0].stat().st_mtime + KEEP_S - 60)
    assert isinstance(checkpoints.load(other), Saved)
    checkpoints.prune(files[0].stat().st_mtime + KEEP_S + 60)
    assert checkpoints.load(KEY) == "there is no checkpoint"


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints._path(KEY.engine).mkdir()
    assert checkpoints.load(KEY) == "the checkpoint cannot be read: Is a directory"
