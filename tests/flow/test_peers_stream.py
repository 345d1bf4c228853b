"""Two coordinators and an agent over real gRPC: what one has in flight counts with the other."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.load.inflight import Lease, PeerSum
from lineside.ids import EngineId, NodeId
from lineside.signals import InFlight
from tests.streams import CLOCK, A, B, Coordinator, FakeHub, agent, engine
from tests.waiting import until

pytestmark = pytest.mark.flow

FAR = 1e9


class Pair:
    """Both coordinators, and what they have of each other."""

    def __init__(self) -> None:
        self.one, self.two = Coordinator(), Coordinator()
        for each in (self.one, self.two):
            each.assign(engine(A), engine(B))

    def take(self, name: EngineId, tokens: int) -> Lease:
        return self.one.inflight.take(name, tokens, own_s=9.0, now=CLOCK.monotonic(), deadline=FAR)

    def seen(self) -> dict[EngineId, tuple[int, int, int]]:
        sums = self.two.peers.sums.items()
        return {name: (has.outstanding, has.queued, has.queued_tokens) for name, has in sums}


async def test_requests_in_flight_are_known_to_the_other_until_they_end() -> None:
    pair = Pair()
    async with AsyncExitStack() as stack:
        for each in (pair.one, pair.two):
            await stack.enter_async_context(each.up())
        hub = FakeHub()
        for each in (pair.one, pair.two):
            await stack.enter_async_context(agent(hub, each.address))
        await until(lambda: pair.one.peers.coordinators() and pair.two.peers.coordinators())
        leases = [pair.take(A, 500), pair.take(A, 300), pair.take(B, 10)]
        began = CLOCK.monotonic()
        await until(lambda: pair.seen() == {A: (2, 2, 800), B: (1, 1, 10)})
        assert CLOCK.monotonic() - began < 1.0
        assert pair.two.peers.sums[A].wait_s == pytest.approx(18.0, abs=1.0)
        assert pair.one.peers.sums == {}, "its own requests do not come back"
        pair.one.inflight.first_token(leases[0], CLOCK.monotonic())
        await until(lambda: pair.seen()[A] == (2, 1, 300))
        for lease in leases:
            pair.one.inflight.release(lease, CLOCK.monotonic())
        await until(lambda: pair.seen() == {})
        assert pair.two.servicer.counters()["unknown_message"] == 0


async def test_they_are_forgotten_with_the_coordinator_that_sent_them() -> None:
    pair, hub = Pair(), FakeHub()
    async with pair.two.up(), AsyncExitStack() as stack:
        await stack.enter_async_context(agent(hub, pair.two.address))
        async with AsyncExitStack() as life:
            await life.enter_async_context(pair.one.up())
            await stack.enter_async_context(agent(hub, pair.one.address))
            await until(lambda: pair.one.peers.coordinators())
            pair.take(A, 500)
            await until(lambda: pair.seen() == {A: (1, 1, 500)})
        await until(lambda: pair.two.peers.coordinators() == frozenset())
        assert pair.two.peers.sums == {}


async def test_one_that_is_alone_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, hub, rounds = Coordinator(), FakeHub(), list[float]()
    expire = alone.caches.expire

    def noted(now: float) -> None:
        rounds.append(now)
        expire(now)

    monkeypatch.setattr(alone.caches, "expire", noted)
    alone.assign(engine(A))
    async with alone.up(), agent(hub, alone.address):
        await until(lambda: alone.view(A).cache_state == "live")
        alone.inflight.take(A, 1, own_s=1.0, now=CLOCK.monotonic(), deadline=FAR)
        rounds.clear()
        await until(lambda: len(rounds) == 2)  # half a second: it would have told ten times
        (session,) = alone.servicer.sessions.open.values()
        assert (dict(session.told), alone.peers.coordinators()) == ({}, frozenset())


async def test_a_flood_of_changes_is_told_at_its_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, told = Pair(), list[str]()
    async with pair.one.up(), pair.two.up():
        hub = FakeHub()
        say = hub.peers.say

        def noted(coordinator: str, engines: Mapping[EngineId, InFlight], at: float) -> None:
            told.append(coordinator)
            say(coordinator, engines, at)

        monkeypatch.setattr(hub.peers, "say", noted)
        async with agent(hub, pair.one.address), agent(hub, pair.two.address):
            await until(lambda: pair.one.peers.coordinators() and pair.two.peers.coordinators())
            began, told[:] = CLOCK.monotonic(), []
            while CLOCK.monotonic() - began < 0.5:
                pair.take(A, 1)
                await asyncio.sleep(0.001)
            taken = pair.one.inflight.outstanding
            await until(lambda: pair.two.peers.sums.get(A, PeerSum(0, 0)).outstanding == taken)
            spent = CLOCK.monotonic() - began
    assert taken > 50
    assert len(told) <= spent / 0.05 + spent / 0.5 + 2, "of one; the other says it is idle"


async def test_an_engine_of_another_node_is_not_told_of() -> None:
    pair, hub = Pair(), FakeHub()
    pair.two.assign(engine(A), replace(engine(B), node=NodeId("elsewhere")))
    async with AsyncExitStack() as stack:
        for each in (pair.one, pair.two):
            await stack.enter_async_context(each.up())
            await stack.enter_async_context(agent(hub, each.address))
        await until(lambda: pair.one.peers.coordinators())
        pair.take(A, 1)
        pair.take(B, 1)
        await until(lambda: pair.seen() == {A: (1, 1, 1)})
