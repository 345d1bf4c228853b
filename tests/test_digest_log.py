"""What a stream reads of an engine's digest, whatever happens to the engine meanwhile."""

from itertools import count
from typing import Any

import pytest

from agent.digest_log import Cursor, DigestLog
from lineside.digest import Delta, SnapshotChunk, checksum
from lineside.ids import BlockKey, EngineId, Generation, Medium

ENGINE = EngineId("e")
K = [BlockKey(number) for number in range(100)]
GPU, CPU = Medium.GPU, Medium.CPU


def log(**limits: int) -> DigestLog:
    numbers = count(1)
    return DigestLog(ENGINE, 4, fresh=lambda: Generation(f"g{next(numbers)}"), **limits)


def write(to: DigestLog, changes: dict[BlockKey, Medium | None]) -> None:
    to.record(changes)
    to.flush()


def read(cursor: Cursor) -> list[SnapshotChunk | Delta]:
    return list(iter(cursor.next, None))


def at(digest: DigestLog) -> Cursor:
    """Return a cursor of a reader that has everything, with its assurance read."""
    cursor = digest.resume(digest.generation, digest.digest_seq)
    read(cursor)
    return cursor


def test_a_new_reader_gets_a_snapshot_then_deltas() -> None:
    digest = log(chunk_keys=2)
    write(digest, dict.fromkeys(K[:3], GPU))
    cursor = digest.resume(Generation(""), 0)
    total = checksum((key, GPU) for key in K[:3])
    first, second = read(cursor)
    held = [(key, GPU) for key in K[:3]]
    common: Any = {"count": 3, "checksum": total, "stride": 4, "media": 1}
    assert first == SnapshotChunk(
        engine=ENGINE,
        generation=Generation("g1"),
        digest_seq=1,
        chunk=0,
        last=False,
        keys=held[:2],
        **common,
    )
    assert second == SnapshotChunk(
        engine=ENGINE,
        generation=Generation("g1"),
        digest_seq=1,
        chunk=1,
        last=True,
        keys=held[2:],
        **common,
    )
    write(digest, {K[0]: None, K[9]: GPU})
    after = checksum((key, GPU) for key in (K[1], K[2], K[9]))
    added, removed = [(K[9], GPU)], [(K[0], GPU)]
    assert read(cursor) == [Delta(ENGINE, Generation("g1"), 2, added, removed, 3, after)]
    assert read(cursor) == []


def test_an_engine_that_holds_nothing_is_one_empty_chunk() -> None:
    digest = log()
    (chunk,) = read(digest.resume(Generation(""), 0))
    assert chunk == SnapshotChunk(
        engine=ENGINE,
        generation=Generation("g1"),
        digest_seq=0,
        chunk=0,
        last=True,
        keys=[],
        count=0,
        checksum=0,
        stride=4,
        media=1,
    )


def test_what_comes_and_goes_within_a_window_is_not_sent() -> None:
    digest = log()
    write(digest, {K[1]: GPU})
    cursor = at(digest)
    digest.record({K[1]: None, K[2]: GPU})
    digest.record({K[1]: GPU, K[2]: None})
    assert digest.flush() is False
    assert (digest.digest_seq, read(cursor)) == (1, [])


def test_a_key_that_changes_its_medium_leaves_one_and_enters_the_other() -> None:
    digest = log()
    digest.restart(2, {K[1]: GPU})
    cursor = at(digest)
    write(digest, {K[1]: CPU})
    (delta,) = read(cursor)
    assert isinstance(delta, Delta)
    assert (delta.added, delta.removed) == ([(K[1], CPU)], [(K[1], GPU)])
    assert (delta.count, delta.checksum) == (1, checksum([(K[1], CPU)]))


def test_a_medium_not_announced_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="medium CPU needs a new generation"):
        log().record({K[1]: CPU})


def test_a_snapshot_holds_what_was_recorded_and_not_flushed() -> None:
    digest = log()
    digest.record({K[1]: GPU})
    cursor = digest.resume(Generation(""), 0)
    (chunk,) = read(cursor)
    assert isinstance(chunk, SnapshotChunk)
    assert (chunk.digest_seq, chunk.keys) == (1, [(K[1], GPU)])
    assert digest.flush() is False
    assert read(cursor) == []


def test_a_snapshot_is_of_one_moment_and_deltas_follow_it() -> None:
    digest = log(chunk_keys=1)
    write(digest, {K[1]: GPU, K[2]: GPU})
    cursor = digest.resume(Generation(""), 0)
    first = cursor.next()
    write(digest, {K[1]: None, K[2]: None, K[3]: GPU})
    second, delta = read(cursor)
    assert isinstance(first, SnapshotChunk)
    assert isinstance(second, SnapshotChunk)
    assert [*first.keys, *second.keys] == [(K[1], GPU), (K[2], GPU)]
    assert isinstance(delta, Delta)
    assert (delta.digest_seq, delta.count) == (2, 1)


@pytest.mark.parametrize(
    ("generation", "digest_seq", "expected"),
    [
        pytest.param("g1", 3, [Delta], id="nothing missed: one word that it is so"),
        pytest.param("g1", 2, [Delta], id="one delta missed"),
        pytest.param("g1", 1, [SnapshotChunk], id="the deltas are larger than the snapshot"),
        pytest.param("g1", 0, [SnapshotChunk], id="everything missed"),
        pytest.param("g1", 4, [SnapshotChunk], id="a number from the future"),
        pytest.param("g0", 3, [SnapshotChunk], id="another generation"),
        pytest.param("", 0, [SnapshotChunk], id="nothing held"),
    ],
)
def test_a_reader_resumes_with_what_is_smaller(
    generation: str, digest_seq: int, expected: list[type]
) -> None:
    digest = log()
    write(digest, dict.fromkeys(K[:8], GPU))
    write(digest, dict.fromkeys(K[:6]))
    write(digest, {K[2]: GPU})
    cursor = digest.resume(Generation(generation), digest_seq)
    assert [type(message) for message in read(cursor)] == expected


def test_a_reader_that_missed_nothing_is_told_so_once() -> None:
    digest = log()
    write(digest, {K[1]: GPU})
    cursor = digest.resume(digest.generation, 1)
    total = checksum([(K[1], GPU)])
    assert read(cursor) == [Delta(ENGINE, Generation("g1"), 1, [], [], 1, total)]
    assert read(cursor) == []


def test_what_is_vouched_for_is_never_half_of_a_window() -> None:
    digest = log()
    write(digest, {K[1]: GPU})
    cursor = digest.resume(digest.generation, 1)
    digest.record({K[2]: GPU})
    (delta,) = read(cursor)
    assert isinstance(delta, Delta)
    assert (delta.digest_seq, delta.added, delta.count) == (2, [(K[2], GPU)], 2)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"ring_keys": 10}, id="too many keys"),
        pytest.param({"ring_deltas": 10}, id="too many deltas"),
    ],
)
def test_a_reader_that_falls_off_the_ring_gets_one_snapshot(limits: dict[str, int]) -> None:
    digest = log(**limits)
    cursor = at(digest)
    for key in K[:10]:
        write(digest, {key: GPU})
    assert [type(message) for message in read(cursor)] == [Delta] * 10
    for key in K[10:21]:
        write(digest, {key: GPU})
    (chunk,) = read(cursor)
    assert isinstance(chunk, SnapshotChunk)
    assert (chunk.digest_seq, chunk.count) == (21, 21)


def test_a_change_too_large_for_a_message_is_read_as_a_snapshot() -> None:
    digest = log(delta_keys=5)
    cursor = at(digest)
    write(digest, dict.fromkeys(K[:6], GPU))
    write(digest, {K[50]: GPU})
    (chunk,) = read(cursor)
    assert isinstance(chunk, SnapshotChunk)
    assert (chunk.digest_seq, chunk.count) == (2, 7)
    assert digest.resume(digest.generation, 0).next() == chunk


def test_a_new_generation_is_read_as_a_snapshot_also_in_the_middle_of_one() -> None:
    digest = log(chunk_keys=1)
    write(digest, {K[1]: GPU, K[2]: GPU})
    cursor = digest.resume(Generation(""), 0)
    cursor.next()
    digest.restart(2, {K[5]: CPU}, stride=8)
    (chunk,) = read(cursor)
    total = checksum([(K[5], CPU)])
    assert chunk == SnapshotChunk(
        engine=ENGINE,
        generation=Generation("g2"),
        digest_seq=0,
        chunk=0,
        last=True,
        keys=[(K[5], CPU)],
        count=1,
        checksum=total,
        stride=8,
        media=2,
    )


def test_a_resync_starts_the_snapshot_again() -> None:
    digest = log(chunk_keys=1)
    write(digest, {K[1]: GPU, K[2]: GPU})
    cursor = digest.resume(Generation(""), 0)
    cursor.next()
    cursor.resync()
    numbers = [m.chunk for m in read(cursor) if isinstance(m, SnapshotChunk)]
    assert numbers == [0, 1]


def test_readers_do_not_disturb_each_other() -> None:
    digest = log(chunk_keys=1)
    write(digest, {K[1]: GPU, K[2]: GPU})
    slow, fast = digest.resume(Generation(""), 0), digest.resume(Generation(""), 0)
    slow.next()
    assert len(read(fast)) == 2
    write(digest, {K[3]: GPU})
    assert len(read(fast)) == 1
    assert len(read(slow)) == 2
