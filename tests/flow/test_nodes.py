"""Several nodes, agents that replace each other, and what outlives a restart, over real gRPC."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.assignment import Assigned, Scheme
from agent.dialling import Dialling
from agent.digest_log import DigestLog
from agent.report import Reporter
from coordinator.holdings.cap import QUIET_S, IndexCap, State
from lineside.hashing import strided
from lineside.ids import BlockKey, EngineId, Medium, NodeId
from tests.streams import (
    CLOCK,
    GROUP,
    TOKEN,
    A,
    B,
    Coordinator,
    FakeHub,
    engine,
    gpu,
)
from tests.streams import chain as numbered
from tests.waiting import until

pytestmark = pytest.mark.flow

C = EngineId("10.0.0.3:8000")
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


@asynccontextmanager
async def agent(
    hub: FakeHub, address: str, node: NodeId, life: str = ""
) -> AsyncIterator[Reporter]:
    reporter = Reporter(
        Dialling.plaintext(TOKEN).to(address), node, life or f"life of {node}", hub, CLOCK
    )
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_each_node_reads_its_own_engines_and_they_may_move() -> None:
    hubs, coordinator = [FakeHub() for _ in range(3)], Coordinator()
    on_n2 = replace(engine(B), node=N2)
    coordinator.assign(engine(A), on_n2)
    async with (
        coordinator.up(),
        agent(hubs[0], coordinator.address, N1),
        agent(hubs[1], coordinator.address, N2),
        agent(hubs[2], coordinator.address, N3) as idle,
    ):
        await until(lambda: [list(hub.logs) for hub in hubs[:2]] == [[A], [B]])
        hubs[0].change(A, gpu(numbered(5)))
        hubs[1].change(B, gpu(numbered(3)))
        await until(lambda: coordinator.units(numbered(5)) == {A: (5,) * 3, B: (3,) * 3})
        await until(lambda: hubs[2].words)  # a node without engines is told so
        assert (hubs[2].words[-1].engines, idle.connected) == ((), True)

        coordinator.assign(replace(engine(A), node=N3), on_n2, engine(C))  # A moves, C is new
        await until(lambda: [list(hub.logs) for hub in hubs] == [[C], [B], [A]])
        assert B in coordinator.units(numbered(5))
        hubs[0].change(C, gpu(numbered(1)))
        hubs[2].change(A, gpu(numbered(2)))
        expected = {A: (2,) * 3, B: (3,) * 3, C: (1,) * 3}
        await until(lambda: coordinator.units(numbered(5)) == expected)
        assert all(coordinator.view(each).linked for each in (A, B, C))

        coordinator.assign(on_n2)  # the others leave
        assert coordinator.units(numbered(5)) == {B: (3,) * 3}
        await until(lambda: [list(hub.logs) for hub in hubs] == [[], [B], []])
    assert coordinator.servicer.counters()["refused"] == 0


async def test_a_newer_agent_of_a_node_replaces_the_older_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new, coordinator = FakeHub(), FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(old, coordinator.address, N1, "old") as older:
        await until(lambda: A in old.logs)
        old.change(A, gpu(numbered(9)))
        await until(lambda: coordinator.units(numbered(9)))
        async with agent(new, coordinator.address, N1, "new") as newer:
            await until(lambda: A in new.logs)
            new.change(A, gpu(numbered(4)))
            await until(lambda: coordinator.units(numbered(9)) == {A: (4,) * 3})
            await until(lambda: coordinator.servicer.counters()["refused"] >= 2)
            assert (older.connected, newer.connected) == (False, True)
            assert coordinator.units(numbered(9)) == {A: (4,) * 3}
        await until(lambda: coordinator.units(numbered(9)) == {A: (9,) * 3})  # it is back
    assert "a newer agent of node `n1` is connected" in str(
        [getattr(record, "fields", {}) for record in caplog.records]
    )


async def test_the_number_of_an_assignment_outlives_a_restart(tmp_path: Path) -> None:
    hub, path = FakeHub(), str(tmp_path / "store")
    old = Coordinator(store=path)
    old.assign(engine(A))
    async with old.up(), agent(hub, old.address, N1):
        await until(lambda: hub.words)
        old.assign(engine(A), engine(B))
        await until(lambda: len(hub.logs) == 2)
    first, second = (word.revision for word in hub.words)
    assert first < second
    new = Coordinator(store=path)
    new.assign(engine(A), engine(B))
    async with new.up(), agent(hub, new.address, N1):
        await until(lambda: len(hub.words) == 3)
        new.assign(engine(B))
        await until(lambda: len(hub.words) == 4)
    third, fourth = (word.revision for word in hub.words[2:])
    assert (third, fourth > third) == (second, True)


async def test_while_the_store_is_away_agents_get_our_newest_word(tmp_path: Path) -> None:
    hub, folder = FakeHub(), tmp_path / "away"
    coordinator = Coordinator(store=str(folder / "store"))
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(hub, coordinator.address, N1):
        await until(lambda: A in hub.logs)
        assert coordinator.numbering.away
        coordinator.assign(engine(B))
        await until(lambda: B in hub.logs)
        folder.mkdir()
        await until(lambda: hub.words[-1].revision)
        assert (coordinator.numbering.away, len(hub.words)) == ("", 3)


@dataclass
class Keeper(FakeHub):
    """An agent whose engines hold whole chains, reported at whatever stride is asked for."""

    chains: dict[EngineId, list[BlockKey]] = field(default_factory=dict)

    def adopt(self, scheme: Scheme, assigned: Assigned) -> None:
        before = dict(self.logs)
        super().adopt(scheme, assigned)
        for name, log in self.logs.items():
            if before.get(name) is not log:
                self.fill(log)

    def fill(self, log: DigestLog) -> None:
        keys = strided(self.chains[log.engine], log.stride)
        log.restart(1, dict.fromkeys(keys, Medium.GPU))
        self.announce()


def drawn(length: int, seed: int) -> list[BlockKey]:
    rng = random.Random(seed)
    return [BlockKey(rng.getrandbits(64)) for _ in range(length)]


async def test_the_index_stays_within_its_cap_by_a_coarser_stride() -> None:
    """Holdings near the cap; what they have in common with a prompt stays known throughout."""
    prompt = drawn(512, seed=0)
    hub, coordinator = Keeper(), Coordinator()
    hub.chains = {A: prompt + drawn(40_000, seed=1), B: prompt[:200]}
    caches = coordinator.caches
    coordinator.assign(engine(A, stride=4), engine(B, stride=4))

    def overlap() -> dict[EngineId, int]:
        return {name: units for name, (units, _, _) in caches.overlap(GROUP, prompt).items()}

    def settled(stride: int) -> bool:
        for _ in range(20):  # the chores take 3 s for a sweep
            caches.sweep_step()
        return caches.sizes()[GROUP].strides == {stride} and all(
            coordinator.view(each).cache_state == "live" for each in (A, B)
        )

    async with coordinator.up(), agent(hub, coordinator.address, N1):
        await until(lambda: overlap() == {A: 512, B: 200})
        limit = int(1.55 * caches.size()[1])
        cap = IndexCap(limit, coordinator.cluster, caches)
        assert cap.look(0.0)
        assert (cap.state, cap.shown()["factors"]) == (State.COARSE, {GROUP: 2})
        sizes = []
        await until(lambda: sizes.append(caches.size()[1]) or settled(8))
        assert max(sizes) <= limit  # old and new keys beside each other
        assert hub.words[-1].revision > hub.words[0].revision
        assert overlap() == {A: 512, B: 200}
        assert cap.look(1.0) is None

        hub.chains[A] = prompt
        hub.fill(hub.logs[A])
        await until(lambda: caches.sizes()[GROUP].keys < 100)
        assert cap.look(QUIET_S - 1.0) is None
        assert cap.look(QUIET_S)
        await until(lambda: settled(4))
        assert (cap.state, overlap()) == (State.WITHIN, {A: 512, B: 200})
