"""A lease and its keys: kept, made anew, and held no longer than the store holds it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from coordinator.state.following import Following
from coordinator.state.leader import Leadership
from coordinator.state.members import Coordinator, Membership
from coordinator.state.store import LeaseId, StoreUnavailable, Write
from coordinator.state.tenure import TTL_S, Tenure
from coordinator.state.tidying import Tidying
from lineside.ids import NodeId
from tests.manual_clock import ManualClock
from tests.resting import Resting


class Cut(Resting):
    """A store on a test's clock whose leases cannot be kept when a test says so."""

    is_cut = False

    async def keep(self, lease: LeaseId) -> None:
        if self.is_cut:
            raise StoreUnavailable("cut")
        await super().keep(lease)


@asynccontextmanager
async def running(
    store: Resting, *parts: Tenure | Leadership | Following | Tidying
) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(part.run()) for part in parts]
        await store.rest()
        yield
        for task in made:
            task.cancel()


async def passing(store: Resting, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and the store do all that it is asked for in every step of it."""
    for step in [0.0, *[0.25] * int(4 * seconds)]:
        await clock.advance(step)
        await store.rest()


async def test_keys_are_held_as_long_as_they_are_wanted() -> None:
    clock = ManualClock()
    store = Cut(clock)
    tenure = Tenure(store, clock)
    for n in range(250):  # more than one transaction takes
        tenure.hold(f"k/{n:03}", b"1")
    async with running(store, tenure):
        await passing(store, clock, 1)
        assert len((await store.range("k/")).entries) == 250
        tenure.drop("k/000")
        tenure.hold("k/001", b"2")
        await passing(store, clock, 3 * TTL_S)
        entries = (await store.range("k/")).entries
        assert ("k/000" in entries, entries["k/001"].value, len(entries)) == (False, b"2", 249)
        assert tenure.made == 1
        written = await store.revision()
        await passing(store, clock, TTL_S)
        assert await store.revision() == written  # to keep a lease writes no key
        await tenure.end()
        assert (await store.range("k/")).entries == {}
        await passing(store, clock, TTL_S)
        assert (await store.range("k/")).entries == {}
    await store.close()


@pytest.mark.parametrize("during", ["grant", "transact"])
async def test_one_that_ends_in_the_middle_leaves_no_key(during: str) -> None:
    class Ending(Cut):
        """A store during whose call its user stops."""

        async def grant(self, ttl_s: int) -> LeaseId:
            lease = await super().grant(ttl_s)
            if during == "grant":
                await tenure.end()
            return lease

        async def transact(
            self, expected: Mapping[str, int | None], writes: Sequence[Write]
        ) -> int | None:
            revision = await super().transact(expected, writes)
            if during == "transact":
                await tenure.end()
            return revision

    clock = ManualClock()
    store = Ending(clock)
    tenure = Tenure(store, clock)
    for n in range(250):  # more than one transaction takes
        tenure.hold(f"k/{n:03}", b"1")
    async with running(store, tenure):
        await passing(store, clock, 1)
        assert (await store.range("k/")).entries == {}
    await store.close()


async def test_one_that_cannot_keep_its_lease_knows_before_it_ends() -> None:
    clock = ManualClock()
    store = Cut(clock)
    tenure = Tenure(store, clock)
    leadership = Leadership(store, tenure, "chore", "me", clock)
    tenure.hold("k", b"1")
    async with running(store, tenure, leadership):
        await passing(store, clock, 3)
        assert (leadership.leads, leadership.leader) == (True, "me")
        store.is_cut = True
        while await store.get("k"):
            held = leadership.leads
            await passing(store, clock, 0.25)
        assert not held, "it led until the store let go of its lease"
        assert not leadership.leads
        store.is_cut = False
        await passing(store, clock, 5)
        assert await store.get("k") is not None
        assert (leadership.leads, tenure.made) == (True, 2)
    await store.close()


async def test_members_show_who_misses_whom() -> None:
    clock = ManualClock()
    store, connected = Cut(clock), {"a": {NodeId("n/1"), NodeId("n2")}, "b": {NodeId("n2")}}
    members = {
        name: Membership(store, clock, name, partial(set, nodes))
        for name, nodes in connected.items()
    }
    for name, each in members.items():
        each.join(Coordinator("1.0", 5.0, {"http": f"{name}:80"}))
        each.look()
    one = members["a"]
    async with running(store, *(each.tenure for each in members.values()), one.following):
        await passing(store, clock, 1)
        assert one.shown() == {
            "me": "a",
            "coordinators": [
                {"id": "a", "version": "1.0", "since": 5.0, "listening": {"http": "a:80"}},
                {"id": "b", "version": "1.0", "since": 5.0, "listening": {"http": "b:80"}},
            ],
            "agents": [
                {"node": "n/1", "coordinators": ["a"], "missing": ["b"]},
                {"node": "n2", "coordinators": ["a", "b"], "missing": []},
            ],
        }
        connected["b"].clear()
        members["b"].look()
        await passing(store, clock, 1)
        assert one.agents() == {"n/1": ["a"], "n2": ["a"]}
    await store.close()
