"""Each guard of a feed, by name. How they act together is tests/test_digest_stream.py."""

from dataclasses import replace

import pytest

from coordinator.holdings.feed import LEASE_S, NOTHING, Feed, Phase, Position, Reason, Stream
from coordinator.holdings.index import GroupIndex
from lineside.digest import Delta, Held, SnapshotChunk, checksum
from lineside.ids import BlockKey, EngineId, Generation, Medium

ENGINE = EngineId("e")
G1, G2 = Generation("g1"), Generation("g2")
K = [BlockKey(number) for number in range(10)]
GPU, CPU, DISK = Medium
FIRST, SECOND = Stream("life", 1), Stream("life", 2)


def held(*keys: BlockKey, medium: Medium = GPU) -> list[Held]:
    return [(key, medium) for key in keys]


def snapshot(
    keys: list[Held], seq: int = 1, generation: Generation = G1, media: int = 1
) -> SnapshotChunk:
    """Return a snapshot of one chunk."""
    return SnapshotChunk(
        engine=ENGINE,
        generation=generation,
        digest_seq=seq,
        chunk=0,
        last=True,
        keys=keys,
        count=len(keys),
        checksum=checksum(keys),
        stride=1,
        media=media,
    )


def two_chunks(keys: list[Held], seq: int = 1) -> tuple[SnapshotChunk, SnapshotChunk]:
    whole = snapshot(keys, seq)
    first = replace(whole, keys=keys[:1], last=False)
    return first, replace(whole, keys=keys[1:], chunk=1)


def delta(
    after: list[Held],
    seq: int = 2,
    added: list[Held] | None = None,
    removed: list[Held] | None = None,
    generation: Generation = G1,
) -> Delta:
    """Return a delta that leads to `after`."""
    return Delta(ENGINE, generation, seq, added or [], removed or [], len(after), checksum(after))


class Bench:
    """A feed on its index, connected and LIVE with keys 1 and 2."""

    def __init__(self) -> None:
        self.index = GroupIndex(1)
        self.feed = Feed(ENGINE, lambda first: self.index)
        assert self.feed.connect(FIRST) == NOTHING
        assert self.hear(snapshot(held(K[1], K[2]))) is None
        assert self.feed.current

    def hear(self, message: SnapshotChunk | Delta, stream: Stream = FIRST) -> Reason | None:
        return self.feed.apply(stream, message)

    @property
    def visible(self) -> set[BlockKey]:
        """What a look-up can find in the fastest medium."""
        found = {key for key in K if self.index.depths([key])}
        if self.feed.visible is None:
            assert not found
        return found

    @property
    def state(self) -> tuple[Phase, bool, set[BlockKey]]:
        return self.feed.phase, self.feed.diverged, self.visible


def test_a_delta_is_applied() -> None:
    bench = Bench()
    after = held(K[2], K[3])
    assert bench.hear(delta(after, added=held(K[3]), removed=held(K[1]))) is None
    assert bench.state == (Phase.LIVE, False, {K[2], K[3]})
    assert bench.feed.visible
    assert bench.feed.visible.position == Position(G1, 2)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(delta(held(K[1]), seq=3), Reason.GAP, id="a number is missing"),
        pytest.param(delta(held(), generation=G2), Reason.GENERATION, id="another generation"),
        pytest.param(
            delta(held(K[1], K[2]), added=held(K[3])), Reason.CHECKSUM, id="a wrong checksum"
        ),
        pytest.param(
            delta(held(K[1], K[2], K[2]), added=held(K[2])), Reason.KEY, id="a key already there"
        ),
        pytest.param(
            delta(held(K[1], K[2], K[3]), added=held(K[3], K[4]), removed=held(K[4])),
            Reason.KEY,
            id="a removed key that is absent",
        ),
        pytest.param(
            delta([*held(K[1], K[2]), (K[3], CPU)], added=[(K[3], CPU)]),
            Reason.KEY,
            id="a medium not announced",
        ),
        pytest.param(
            delta(held(K[1]), seq=1), Reason.CHECKSUM, id="the same number means something else"
        ),
        pytest.param(two_chunks(held(K[1], K[2]))[1], Reason.SNAPSHOT, id="a chunk out of order"),
    ],
)
def test_a_contradiction_asks_for_a_snapshot_and_marks_what_is_visible(
    message: SnapshotChunk | Delta, reason: Reason
) -> None:
    bench = Bench()
    assert bench.hear(message) is reason
    assert (bench.feed.diverged, bench.feed.current) == (True, False)
    assert {K[1], K[2]} <= bench.visible
    assert bench.hear(message) is None  # one request is outstanding
    assert bench.hear(snapshot(held(K[5]), seq=9)) is None
    assert bench.state == (Phase.LIVE, False, {K[5]})
    assert bench.feed.resyncs == {reason: 1}


def test_an_old_number_is_dropped() -> None:
    bench = Bench()
    assert bench.hear(delta(held(), seq=0)) is None
    assert bench.state == (Phase.LIVE, False, {K[1], K[2]})
    assert bench.feed.dropped == 1


def test_a_snapshot_fills_a_fresh_slot_while_the_old_one_stays_visible() -> None:
    bench = Bench()
    first, second = two_chunks(held(K[2], K[3]), seq=5)
    before = bench.feed.visible
    assert bench.hear(first) is None
    assert bench.state == (Phase.FILLING, False, {K[1], K[2]})
    assert bench.hear(second) is None
    assert bench.state == (Phase.LIVE, False, {K[2], K[3]})
    assert before and bench.feed.visible
    assert before.slots != bench.feed.visible.slots


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        pytest.param({"checksum": 1}, Reason.CHECKSUM, id="a wrong checksum"),
        pytest.param({"count": 3}, Reason.CHECKSUM, id="a wrong count"),
        pytest.param({"chunk": 2}, Reason.SNAPSHOT, id="a chunk is missing"),
        pytest.param({"digest_seq": 6}, Reason.SNAPSHOT, id="a chunk of another snapshot"),
        pytest.param({"generation": G2}, Reason.SNAPSHOT, id="a chunk of another generation"),
        pytest.param({"keys": held(K[2])}, Reason.KEY, id="a key that came before"),
    ],
)
def test_a_spoilt_snapshot_never_becomes_visible(spoilt: dict[str, object], reason: Reason) -> None:
    bench = Bench()
    first, second = two_chunks(held(K[2], K[3]), seq=5)
    bench.hear(first)
    assert bench.hear(replace(second, **spoilt)) is reason  # type: ignore[arg-type]
    assert bench.state == (Phase.HELLO, True, {K[1], K[2]})
    while bench.index.sweep_step():
        pass
    assert bench.index.entries == 2


def test_a_delta_inside_a_snapshot_asks_again() -> None:
    bench = Bench()
    bench.hear(two_chunks(held(K[2], K[3]), seq=5)[0])
    assert bench.hear(delta(held())) is Reason.SNAPSHOT


def test_what_comes_before_the_snapshot_asked_for_is_dropped() -> None:
    bench = Bench()
    bench.hear(delta(held(), seq=7))
    assert bench.hear(delta(held(K[1]), removed=held(K[2]))) is None
    assert bench.hear(two_chunks(held(K[1], K[2]))[1]) is None
    assert bench.state == (Phase.HELLO, True, {K[1], K[2]})
    assert bench.feed.dropped == 2


def test_a_replaced_stream_is_not_heard() -> None:
    bench = Bench()
    bench.feed.connect(SECOND)
    assert bench.hear(snapshot(held(K[7]), seq=9)) is None
    assert bench.hear(delta(held(K[1]), removed=held(K[2]))) is None
    bench.feed.disconnect(FIRST, now=0.0)
    assert bench.state == (Phase.HELLO, False, {K[1], K[2]})


def test_a_half_filled_snapshot_is_dropped_with_its_stream() -> None:
    bench = Bench()
    first, second = two_chunks(held(K[2], K[3]), seq=5)
    bench.hear(first)
    bench.feed.connect(SECOND)
    assert bench.hear(second, SECOND) is Reason.SNAPSHOT
    assert bench.visible == {K[1], K[2]}


def test_a_stream_that_comes_back_resumes_and_is_current_when_vouched_for() -> None:
    bench = Bench()
    bench.feed.disconnect(FIRST, now=0.0)
    assert bench.state == (Phase.DOWN, False, {K[1], K[2]})
    assert bench.feed.connect(SECOND) == Position(G1, 1)
    assert not bench.feed.current
    assert bench.hear(delta(held(K[1], K[2]), seq=1), SECOND) is None
    assert bench.feed.current


def test_a_diverged_feed_resumes_from_nothing() -> None:
    bench = Bench()
    bench.hear(delta(held(), seq=7))
    assert bench.feed.connect(SECOND) == NOTHING
    assert bench.hear(delta(held(K[1], K[2]), seq=1), SECOND) is None
    assert bench.state == (Phase.HELLO, True, {K[1], K[2]})


def test_a_lease_ends_after_the_stream_was_lost_and_not_before() -> None:
    bench = Bench()
    bench.feed.expire(now=1e9)
    bench.feed.disconnect(FIRST, now=100.0)
    bench.feed.expire(now=100.0 + LEASE_S - 1)
    assert bench.visible == {K[1], K[2]}
    bench.feed.expire(now=100.0 + LEASE_S)
    assert bench.state == (Phase.DOWN, False, set())
    assert bench.feed.connect(SECOND) == NOTHING


def test_slots_are_cumulative_by_medium() -> None:
    bench = Bench()
    keys = [(K[1], GPU), (K[2], CPU), (K[3], DISK)]
    bench.hear(snapshot(keys, media=3, seq=1, generation=G2))
    visible = bench.feed.visible
    assert visible
    sizes = [sum(bench.index.holds(slot, key) for key in K) for slot in visible.slots]
    assert sizes == [1, 2, 3]
    moved = [(K[1], GPU), (K[2], GPU), (K[3], DISK)]
    to_gpu = delta(moved, 2, added=[(K[2], GPU)], removed=[(K[2], CPU)], generation=G2)
    assert bench.hear(to_gpu) is None
    sizes = [sum(bench.index.holds(slot, key) for key in K) for slot in visible.slots]
    assert sizes == [2, 2, 3]


@pytest.mark.parametrize(
    ("stream", "other", "expected"),
    [
        pytest.param(SECOND, FIRST, True, id="a higher connection"),
        pytest.param(FIRST, SECOND, False, id="a lower connection"),
        pytest.param(FIRST, FIRST, False, id="the same connection"),
        pytest.param(Stream("other", 1), SECOND, True, id="another life"),
    ],
)
def test_which_stream_replaces_which(stream: Stream, other: Stream, expected: bool) -> None:
    assert stream.replaces(other) is expected
