"""Overlap by engine and medium, groups and strides side by side, and engines that come and go."""

from agent.digest_log import DigestLog
from coordinator.caches import Caches
from coordinator.feed import LEASE_S, Stream
from lineside.digest import SnapshotChunk, checksum
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium

A, B = EngineId("a"), EngineId("b")
G, H = GroupId("g"), GroupId("h")
STREAM = Stream("life", 1)
PROMPT = [BlockKey(number) for number in range(1, 20)]
GPU, CPU, DISK = Medium


def feed(
    caches: Caches, engine: EngineId, held: dict[int, Medium], stride: int = 1, media: int = 1
) -> None:
    """Let an engine hold what `held` says, from the depth of each key on."""
    log = DigestLog(engine, stride)
    log.restart(media, {BlockKey(key): medium for key, medium in held.items()})
    caches.connect(engine, STREAM)
    cursor = log.resume(Generation(""), 0)
    while message := cursor.next():
        assert caches.apply(STREAM, message) is None


def two_in_a_group() -> Caches:
    caches = Caches()
    caches.assign({A: G, B: G})
    return caches


def test_overlap_is_in_units_whatever_the_stride() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([4, 8, 12], GPU), stride=4)
    feed(caches, B, dict.fromkeys([1, 2, 3], GPU), stride=1)
    assert caches.overlap(G, PROMPT) == {A: (12, 12, 12), B: (3, 3, 3)}
    assert caches.overlap(G, PROMPT[:10]) == {A: (8, 8, 8), B: (3, 3, 3)}
    assert caches.overlap(G, [BlockKey(99), *PROMPT]) == {}
    assert caches.overlap(G, []) == {}
    assert caches.overlap(H, PROMPT) == {}


def test_overlap_is_cumulative_by_medium() -> None:
    caches = two_in_a_group()
    feed(caches, A, {1: GPU, 2: CPU, 3: CPU, 4: DISK}, media=3)
    feed(caches, B, {1: CPU}, media=2)
    assert caches.overlap(G, PROMPT) == {A: (1, 3, 4), B: (0, 1, 1)}


def test_groups_do_not_mix() -> None:
    caches = Caches()
    caches.assign({A: G, B: H})
    feed(caches, A, {1: GPU})
    feed(caches, B, {1: GPU, 2: GPU})
    assert caches.overlap(G, PROMPT) == {A: (1, 1, 1)}
    assert caches.overlap(H, PROMPT) == {B: (2, 2, 2)}


def test_an_engine_that_leaves_or_changes_its_group_is_forgotten_at_once() -> None:
    caches = two_in_a_group()
    feed(caches, A, {1: GPU})
    feed(caches, B, {1: GPU})
    caches.assign({A: H})
    assert caches.overlap(G, PROMPT) == {}
    assert caches.overlap(H, PROMPT) == {}
    assert caches.feed(B) is None
    assert caches.connect(B, STREAM) is None
    late = DigestLog(B, 1).resume(Generation(""), 0).next()
    assert late
    assert caches.apply(STREAM, late) is None
    assert caches.unknown == 1
    while caches.sweep_step():
        pass
    assert caches.size()[0] == 0
    caches.assign({A: H})
    stats = caches.stats()["groups"]
    assert isinstance(stats, dict)
    assert list(stats) == [H]


def test_a_lost_stream_keeps_its_engine_for_the_lease() -> None:
    caches = two_in_a_group()
    feed(caches, A, {1: GPU})
    caches.disconnect(A, STREAM, now=10.0)
    caches.expire(now=10.0 + LEASE_S - 1)
    assert caches.overlap(G, PROMPT) == {A: (1, 1, 1)}
    caches.expire(now=10.0 + LEASE_S)
    assert caches.overlap(G, PROMPT) == {}


def test_hit_points_are_kept_and_not_matched() -> None:
    caches = two_in_a_group()
    caches.connect(A, STREAM)
    keys = [(BlockKey(1), GPU)]
    total = checksum(keys)
    chunk = SnapshotChunk(A, Generation("g"), 1, 0, True, keys, 1, total, 1, 1, hit_points=True)
    assert caches.apply(STREAM, chunk) is None
    assert caches.overlap(G, PROMPT) == {}
    assert caches.stats() == {
        "groups": {
            G: {
                "engines": 2,
                "indexes": [{"stride": 1, "keys": 1, "bytes": caches.size()[1]}],
            }
        },
        "engines": {
            A: {
                "group": G,
                "phase": "live",
                "diverged": False,
                "snapshots": 1,
                "deltas": 0,
                "dropped": 0,
                "resyncs": {},
                "generation": "g",
                "digest_seq": 1,
                "keys": 1,
                "media": 1,
                "stride": 1,
                "matched": False,
                "reason": "hit points are not matched yet",
            },
            B: {
                "group": G,
                "phase": "down",
                "diverged": False,
                "snapshots": 0,
                "deltas": 0,
                "dropped": 0,
                "resyncs": {},
            },
        },
        "unknown_engine": 0,
    }


def test_a_changed_stride_is_followed() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([1, 2, 3], GPU), stride=1)
    feed(caches, A, dict.fromkeys([2, 4], GPU), stride=2)
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4)}
