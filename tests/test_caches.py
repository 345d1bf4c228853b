"""Overlap by engine and medium, groups and strides side by side, and engines that come and go."""

from agent.digest_log import DigestLog
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import LEASE_S, Stream
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium

A, B, C = EngineId("a"), EngineId("b"), EngineId("c")
G, H = GroupId("g"), GroupId("h")
STREAM = Stream("life", 1)
PROMPT = [BlockKey(number) for number in range(1, 20)]
GPU, CPU, DISK = Medium


def feed(
    caches: Caches,
    engine: EngineId,
    held: dict[int, Medium],
    stride: int = 1,
    media: int = 1,
    hit_points: bool = False,
) -> None:
    """Let an engine hold what `held` says, from the depth of each key on."""
    log = DigestLog(engine, stride)
    log.restart(
        media, {BlockKey(key): medium for key, medium in held.items()}, hit_points=hit_points
    )
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


def test_engines_that_hold_as_much_stand_together() -> None:
    caches = Caches()
    caches.assign({A: G, B: G, C: G})
    for engine, depth in ((A, 2), (B, 2), (C, 1)):
        feed(caches, engine, dict.fromkeys(range(1, depth + 1), GPU))
    assert caches.alike(G, PROMPT) == [((1, 1, 1), (C,)), ((2, 2, 2), (A, B))]


def test_the_next_engine_with_a_slot_is_not_taken_for_the_one_before() -> None:
    caches = two_in_a_group()
    feed(caches, A, {1: GPU})
    feed(caches, B, {1: GPU})
    assert caches.overlap(G, PROMPT) == {A: (1, 1, 1), B: (1, 1, 1)}
    caches.assign({B: G, C: G})
    while caches.sweep_step():
        pass
    feed(caches, C, {1: GPU})
    assert caches.overlap(G, PROMPT) == {C: (1, 1, 1), B: (1, 1, 1)}


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


def test_the_deepest_hit_point_within_the_limit_counts() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([4, 10, 12], GPU), stride=2, hit_points=True)
    assert caches.overlap(G, PROMPT) == {A: (12, 12, 12)}
    assert caches.overlap(G, PROMPT[:12]) == {A: (12, 12, 12)}
    assert caches.overlap(G, PROMPT[:12], limit=11) == {A: (10, 10, 10)}
    assert caches.overlap(G, PROMPT[:11]) == {A: (10, 10, 10)}
    assert caches.overlap(G, PROMPT, limit=9) == {A: (4, 4, 4)}
    assert caches.overlap(G, PROMPT[:3]) == {}
    assert caches.overlap(G, PROMPT, limit=0) == {}


def test_hit_points_of_each_medium_count() -> None:
    caches = two_in_a_group()
    feed(caches, A, {2: GPU, 4: DISK, 6: CPU}, stride=2, media=3, hit_points=True)
    assert caches.overlap(G, PROMPT) == {A: (2, 6, 6)}
    assert caches.overlap(G, PROMPT, limit=5) == {A: (2, 2, 4)}


def test_hit_points_change_nothing_for_other_engines_of_the_group() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([2, 4], GPU), stride=2)
    feed(caches, B, dict.fromkeys([4, 8], GPU), stride=2, hit_points=True)
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4), B: (8, 8, 8)}
    assert caches.overlap(G, PROMPT, limit=1) == {A: (4, 4, 4)}
    feed(caches, B, dict.fromkeys([4, 8], GPU), stride=4)
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4), B: (8, 8, 8)}
    feed(caches, B, dict.fromkeys([8], GPU), stride=4)
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4)}


def test_stats_tell_kinds_apart() -> None:
    caches = two_in_a_group()
    feed(caches, A, {1: GPU}, hit_points=True)
    size = caches.size()[1]
    stats = caches.stats()
    assert stats["groups"] == {
        G: {
            "engines": 2,
            "indexes": [{"stride": 1, "hit_points": True, "keys": 1, "bytes": size}],
        }
    }
    engines = stats["engines"]
    assert isinstance(engines, dict)
    del engines[A]["generation"]
    assert engines == {
        A: {
            "group": G,
            "phase": "live",
            "diverged": False,
            "snapshots": 1,
            "deltas": 0,
            "dropped": 0,
            "resyncs": {},
            "digest_seq": 0,
            "keys": 1,
            "media": 1,
            "stride": 1,
            "hit_points": True,
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
    }


def test_a_changed_stride_is_followed() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([1, 2, 3], GPU), stride=1)
    feed(caches, A, dict.fromkeys([2, 4], GPU), stride=2)
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4)}


def test_a_stride_that_nobody_uses_any_more_is_dropped() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([1, 2, 3], GPU), stride=1)
    feed(caches, A, dict.fromkeys([2, 4], GPU), stride=2)
    assert caches.sizes()[G].strides == {1, 2}
    caches.expire(now=0.0)
    assert caches.sizes()[G].strides == {1, 2}  # still being swept
    while caches.sweep_step():
        pass
    caches.expire(now=0.0)
    assert caches.sizes()[G].strides == {2}
    assert caches.overlap(G, PROMPT) == {A: (4, 4, 4)}
    caches.assign({})
    while caches.sweep_step():
        pass
    caches.expire(now=0.0)
    assert caches.sizes() == {}


def test_every_index_is_swept_in_its_turn() -> None:
    caches = Caches()
    caches.assign({A: G, B: H})
    for _ in range(2):
        feed(caches, A, {1: GPU})
        feed(caches, B, {1: GPU})
    steps = 0
    while caches.sweep_step():
        steps += 1
        left = [index._sweep.shard if index._sweep else 0 for index in caches._indexes()]
        assert max(left) - min(left) <= 1 or steps >= 2 * 255
    assert steps == 2 * 256


def test_the_last_prompt_is_looked_at_again() -> None:
    caches = two_in_a_group()
    feed(caches, A, dict.fromkeys([2, 4], GPU), stride=2)
    feed(caches, B, dict.fromkeys([2, 6], GPU), stride=2)  # no correct agent says this
    assert (caches.check(), caches.checks) == ([], 0)
    caches.overlap(G, PROMPT)
    assert (caches.check(), caches.checks, caches.unclosed) == ([B], 1, 1)
    caches.overlap(G, PROMPT[:4])
    assert (caches.check(), caches.checks, caches.unclosed) == ([], 2, 1)
    assert (caches.check(), caches.checks) == ([], 2)
    assert (caches.stats()["checks"], caches.stats()["unclosed"]) == (2, 1)
