"""What nobody reads any more goes, by the hand of the leader alone."""

import asyncio

from coordinator.state import applied
from coordinator.state.applied import KEPT
from coordinator.state.leader import Leadership
from coordinator.state.store import PROBE, Put
from coordinator.state.tenure import TTL_S, Tenure
from coordinator.state.tidying import CHORE, EVERY_S, Tidying
from tests.manual_clock import ManualClock
from tests.resting import Resting
from tests.test_applied import policy, put
from tests.test_tenure import passing, running


class Coordinator:
    """One of several on a store."""

    def __init__(self, store: Resting, name: str, clock: ManualClock) -> None:
        self.tenure = Tenure(store, clock)
        self.leadership = Leadership(store, self.tenure, CHORE, name, clock)
        self.tidying = Tidying(store, self.leadership, clock)


async def test_the_leader_deletes_what_is_surplus_and_nothing_else() -> None:
    clock = ManualClock()
    store = Resting(clock)
    await put(store, policy("a"))
    for n in range(2, KEPT + 4):
        await store.transact({}, [Put(f"{applied.SETS}{n:08}", b"of another release")])
    await store.transact({}, [Put(PROBE + "left", b""), Put("predict/v1", b"{}")])
    one, other = (Coordinator(store, name, clock) for name in ("one", "other"))
    async with running(store, one.tenure, one.leadership, other.tenure, other.leadership):
        await passing(store, clock, 1)
        leader, waits = (one, other) if one.leadership.leads else (other, one)
        assert (leader.leadership.leads, waits.leadership.leads) == (True, False)
        await waits.tidying.look()
        await waits.tidying.look()
        assert waits.tidying.deleted == 0
        await store.transact({}, [Put(PROBE + "fresh", b"")])
        async with running(store, one.tidying, other.tidying):
            await passing(store, clock, 1)
            assert (leader.tidying.deleted, waits.tidying.deleted) == (3, 0)
            await store.transact({}, [Put(PROBE + "fresh", b"again")])
            await passing(store, clock, EVERY_S)
        assert (leader.tidying.deleted, waits.tidying.deleted) == (4, 0)
        left = (await store.range("")).entries
        assert [key for key in left if key.startswith(PROBE)] == [PROBE + "fresh"]
        assert len([key for key in left if key.startswith(applied.SETS)]) == KEPT
        assert "predict/v1" in left
        assert (await applied.history(store)).current == 1
    await store.close()


async def test_a_leader_whose_time_ran_out_while_it_was_at_it_writes_nothing() -> None:
    clock = ManualClock()
    store = Resting(clock)
    for n in range(1, KEPT + 3):
        await store.transact({}, [Put(f"{applied.SETS}{n:08}", b"of another release")])
    one, other = (Coordinator(store, name, clock) for name in ("one", "other"))
    async with asyncio.TaskGroup() as tasks:
        of_one = [tasks.create_task(part.run()) for part in (one.tenure, one.leadership)]
        await passing(store, clock, 1)
        assert one.leadership.leads
        for task in of_one:
            task.cancel()  # as a process that is paused: it still thinks that it leads
    async with running(store, other.tenure, other.leadership):
        await passing(store, clock, TTL_S + 2)
        assert other.leadership.leads
        clock_of_one = ManualClock(start=1001.0)
        one.tenure._clock = clock_of_one
        assert one.leadership.leads, "by its own clock"
        await one.tidying.look()
        assert one.tidying.deleted == 0
        assert len((await store.range(applied.SETS)).entries) == KEPT + 2
        await other.tidying.look()
        assert other.tidying.deleted == 2
    await store.close()
