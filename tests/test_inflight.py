"""Our own load: what a lease adds, when it goes, and that nothing is left over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.load.inflight import EMPTY, InFlight, Lease, Loads, PeerSum, Queue
from lineside.ids import EngineId

A, B = EngineId("a"), EngineId("b")


def take(inflight: InFlight, own_s: float = 1.0, now: float = 0.0, tokens: int = 100) -> Lease:
    return inflight.take(A, tokens, own_s, now, deadline=now + 60)


def test_a_lease_is_load_at_once() -> None:
    inflight = InFlight()
    take(inflight)
    take(inflight)
    assert inflight.queue(A, 0.0) == Queue(outstanding=2, queued_tokens=200, wait_s=2.0, queued=2)
    assert inflight.queue(B, 0.0) == EMPTY


def test_the_head_is_credited_for_its_progress_but_never_as_done() -> None:
    inflight = InFlight()
    take(inflight, own_s=1.0, now=10.0)
    take(inflight, own_s=2.0, now=10.0)
    assert inflight.queue(A, 10.5).wait_s == pytest.approx(2.5)
    assert inflight.queue(A, 99.0).wait_s == pytest.approx(2.05)


def test_the_next_head_begins_when_the_first_is_done() -> None:
    inflight = InFlight()
    first, _ = take(inflight, own_s=1.0), take(inflight, own_s=2.0)
    inflight.first_token(first, 1.2)
    assert inflight.queue(A, 1.2) == Queue(outstanding=2, queued_tokens=100, wait_s=2.0, queued=1)
    assert inflight.queue(A, 2.2).wait_s == pytest.approx(1.0)


def test_a_first_token_out_of_turn_leaves_the_head_alone() -> None:
    inflight = InFlight()
    _, second = take(inflight, own_s=1.0), take(inflight, own_s=2.0)
    inflight.first_token(second, 0.5)
    assert inflight.queue(A, 0.5).wait_s == pytest.approx(0.5)


def test_a_queue_that_was_empty_starts_afresh() -> None:
    inflight = InFlight()
    inflight.first_token(take(inflight, now=0.0), 1.0)
    take(inflight, now=5.0)
    assert inflight.queue(A, 5.0).wait_s == 1.0


def test_a_request_that_does_not_stream_leaves_the_queue_when_it_was_due() -> None:
    inflight = InFlight()
    inflight.take(A, 100, 1.0, now=0.0, deadline=60.0, first_token_due=1.0)
    take(inflight, own_s=2.0, now=0.0)
    assert inflight.queue(A, 0.9).queued_tokens == 200
    assert inflight.queue(A, 1.5) == Queue(outstanding=2, queued_tokens=100, wait_s=1.5, queued=1)


def test_what_a_gateway_sends_is_load_but_shows_no_progress() -> None:
    inflight = InFlight()
    own, handed = take(inflight), take(inflight)
    inflight.hand_over(handed, 2.0)
    assert (inflight.queue(A, 0.0).outstanding, inflight.watched(A)) == (2, 1)
    inflight.first_token(handed, 1.0)
    assert inflight.watched(A) == 1
    inflight.release(own, 1.0)
    assert (inflight.queue(A, 1.0).outstanding, inflight.watched(A)) == (1, 0)
    inflight.release(handed, 1.0)
    assert (inflight.watched(A), inflight.watched(B)) == (0, 0)


def test_every_way_to_end_is_idempotent() -> None:
    inflight = InFlight()
    lease = take(inflight)
    inflight.release(lease, 1.0)
    inflight.release(lease, 2.0)
    inflight.first_token(lease, 3.0)
    assert inflight.queue(A, 3.0) == EMPTY
    assert inflight.outstanding == 0


def test_a_forgotten_lease_expires() -> None:
    inflight = InFlight()
    lease = inflight.take(A, 100, 1.0, now=0.0, deadline=5.0)
    take(inflight, now=0.0)
    assert inflight.expire(4.9) == 0
    assert inflight.expire(5.0) == 1
    assert inflight.queue(A, 5.0).outstanding == 1
    inflight.release(lease, 6.0)
    assert inflight.queue(A, 6.0).outstanding == 1


def test_other_coordinators_sums_stand_beside_ours() -> None:
    peers = {A: PeerSum(outstanding=3, queued_tokens=500)}
    inflight = InFlight(peers)
    assert inflight.queue(A, 0.0) == Queue(peers=PeerSum(3, 500))
    take(inflight)
    assert inflight.queue(A, 0.0) == Queue(1, 100, 1.0, PeerSum(3, 500), queued=1)


def test_decisions_read_ours_and_theirs_together() -> None:
    inflight = InFlight({A: PeerSum(outstanding=3, queued_tokens=500, queued=2, wait_s=0.5)})
    take(inflight)
    assert inflight.loads([B, A], 0.0) == Loads([0, 4], [0, 3], [0.0, 1.5])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "first", "release", "expire"]),
        st.integers(0, 9),
        st.floats(0.0, 3.0),
    ),
    max_size=40,
)


@given(STEPS)
def test_load_is_never_negative_and_ends_at_zero(steps: list[tuple[str, int, float]]) -> None:
    inflight, leases, now = InFlight(), list[Lease](), 0.0
    for step, number, amount in steps:
        now += amount
        if step == "take":
            due = now + amount if number % 2 else None
            engine = A if number < 5 else B
            leases.append(inflight.take(engine, number, amount / 3, now, now + 5, due))
        elif step == "expire":
            inflight.expire(now)
        elif leases:
            lease = leases[number % len(leases)]
            act = inflight.first_token if step == "first" else inflight.release
            act(lease, now)
        for engine in (A, B):
            queue = inflight.queue(engine, now)
            assert min(queue.outstanding, queue.queued_tokens, queue.wait_s) >= 0
            columns = [queue.outstanding], [queue.queued], [queue.wait_s]
            assert inflight.loads([engine], now) == Loads(*columns)
    for lease in leases:
        inflight.release(lease, now)
    assert [inflight.queue(engine, now) for engine in (A, B)] == [EMPTY, EMPTY]
