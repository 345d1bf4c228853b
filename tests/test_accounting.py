"""What a request counts as on the backend that gets it, in the step that decided."""

from coordinator.accounting import account, overdue
from coordinator.candidates import Candidate, Provider
from coordinator.holdings.overlay import DUE_S, STRIDE
from coordinator.seen import Seen
from lineside.hashing import UNIT
from lineside.ids import BlockKey, EngineId, GroupId, ModelName
from tests.test_service import PROMPT, TENANT, Bench, bench, engine, request

M, KEYS = ModelName("m"), (BlockKey(11), BlockKey(12))
UNITS = len(KEYS) * STRIDE


async def seen(b: Bench, **fields: object) -> Seen:
    found = await b.service.decider.see(request(**fields), TENANT, {})
    assert isinstance(found, Seen)
    return found


async def test_an_engine_has_it_in_its_queue_its_cache_and_its_recent_work() -> None:
    b = bench(engine("a"))
    decider, now = b.service.decider, b.clock.monotonic()
    target = b.service.cluster.assigned()[0]
    chosen = Candidate(target, M, overlap_tokens=16, own_s=0.3, wait_s=0.2)
    keys = {(M, GroupId("g")): KEYS}
    lease, claim = account(decider, chosen, await seen(b, stream=True), keys, 100.0)
    queue = decider.inflight.queue(target.id, now)
    assert (queue.outstanding, queue.queued_tokens) == (1, len(PROMPT) - 16)
    assert lease.deadline == now + 100.0
    assert claim is not None
    assert decider.overlay.units(GroupId("g"), KEYS) == {target.id: UNITS}
    assert decider.recent.seconds(target) > 0
    assert b.service.overlay.claims == 1


async def test_what_is_cached_takes_no_place_in_a_queue() -> None:
    b = bench(engine("a"))
    target = b.service.cluster.assigned()[0]
    chosen = Candidate(target, M, overlap_tokens=len(PROMPT), speculative_tokens=16)
    account(b.service.decider, chosen, await seen(b, stream=True), {}, 100.0)
    assert b.service.inflight.queue(target.id, b.clock.monotonic()).queued_tokens == 0


async def test_one_that_does_not_stream_leaves_its_queue_when_it_should_have_begun() -> None:
    b = bench(engine("a"))
    target = b.service.cluster.assigned()[0]
    chosen = Candidate(target, M, own_s=0.3, wait_s=0.2)
    account(b.service.decider, chosen, await seen(b), {}, 100.0)
    waiting = b.service.inflight.queue(target.id, b.clock.monotonic())
    assert waiting.queued_tokens == len(PROMPT)
    await b.clock.advance(0.51)
    begun = b.service.inflight.queue(target.id, b.clock.monotonic())
    assert (begun.outstanding, begun.queued_tokens) == (1, 0)


async def test_a_provider_has_a_lease_and_nothing_in_a_cache_of_ours() -> None:
    b = bench(engine("a"))
    target = Provider(EngineId("p"), "http://p", "p", {M: "up"})
    lease, claim = account(b.service.decider, Candidate(target, M), await seen(b), {}, 100.0)
    assert (claim, b.service.overlay.claims) == (None, 0)
    assert b.service.inflight.queue(EngineId("p"), b.clock.monotonic()).outstanding == 1
    b.service.inflight.release(lease, b.clock.monotonic())
    assert b.outstanding == 0


async def test_what_an_engine_should_have_announced_by_now_is_counted_in_tokens() -> None:
    b = bench(engine("a"))
    decider, keys = b.service.decider, {(M, GroupId("g")): KEYS}
    target = b.service.cluster.assigned()[0]
    _, claim = account(decider, Candidate(target, M), await seen(b), keys, 100.0)
    assert claim is not None
    again = Candidate(target, M, speculative_tokens=64)
    assert overdue(decider, again, keys) == 0
    decider.overlay.settle(claim, b.clock.monotonic())
    account(decider, again, await seen(b), keys, 100.0)  # newer, and no excuse
    await b.clock.advance(DUE_S - 0.1)
    assert overdue(decider, again, keys) == 0
    await b.clock.advance(0.2)
    assert overdue(decider, again, keys) == UNITS * UNIT
    assert overdue(decider, Candidate(target, M), keys) == 0
    elsewhere = Candidate(Provider(EngineId("p"), "http://p", "p"), M, speculative_tokens=64)
    assert overdue(decider, elsewhere, keys) == 0
