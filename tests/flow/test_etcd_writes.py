"""How often three coordinators with 512 engines write to a real etcd, and what is in it then.

They do what they do all day, at a pace that a cluster seldom has: agents and engines come and go,
engines fail and work again, prefills teach. `make test-state`; the figures are printed.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.breaker import OPENS_AFTER, Breakers
from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.load.inflight import InFlight
from coordinator.load.predict import Learned
from coordinator.providers.cooldowns import Cooldowns
from coordinator.state import applied
from coordinator.state.exclusions import Exclusions
from coordinator.state.leader import Leadership
from coordinator.state.learned_store import EVERY_S, LearnedStore
from coordinator.state.members import Coordinator, Membership
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Peers
from coordinator.state.pulse import Pulse
from coordinator.state.secret import Secret
from coordinator.state.shared import State
from coordinator.state.store import Store, cluster_secret
from coordinator.state.tidying import CHORE, Tidying
from lineside.clock import SystemClock
from lineside.ids import EngineId, GroupId, NodeId
from tests import etcds
from tests.test_applied import policy
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_etcd]

ENGINES = 512
CLASSES = 4
MOST_PER_S = 20.0
CLOCK = SystemClock()


def engine(number: int) -> Engine:
    """Return one of eight engines of a node."""
    name = f"10.0.{number // 250}.{number % 250}:8000"
    return Engine(
        EngineId(name),
        f"http://{name}",
        name,
        GroupId(f"model-{number % CLASSES}"),
        (),
        NodeId(f"gpu-node-{number}.example.internal"),
    )


@dataclass
class Life:
    """One coordinator, as far as it writes to the store."""

    store: Store
    secret: bytes
    name: str
    engines: list[Engine]
    agents: set[NodeId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cluster, self.cooldowns = Cluster(), Cooldowns()
        self.breakers = Breakers(self.cluster, 30.0)
        self.learned = Learned(20_000.0, 0.008)
        self.numbering = Numbering(self.store, self.cluster)
        self.kept = LearnedStore(self.learned, self.store)
        exclusions = Exclusions(self.breakers, self.cooldowns, self.store, CLOCK)
        members = Membership(self.store, CLOCK, self.name, lambda: self.agents)
        members.join(Coordinator("0.1.0", CLOCK.unix(), {"http": "10.1.0.1:8080"}))
        leadership = Leadership(self.store, members.tenure, CHORE, self.name, CLOCK)
        tidying = Tidying(self.store, leadership, CLOCK)
        pulse = Pulse(self.store, Secret(self.secret), CLOCK, lambda: None)
        inflight, peers = InFlight(), Peers()
        self.state = State(
            pulse=pulse,
            members=members,
            exclusions=exclusions,
            tidying=tidying,
            peers=peers,
            inflight=inflight,
            clock=CLOCK,
        )
        self.find()

    def find(self) -> None:
        self.cluster.assign(self.engines)
        self.breakers.found([each.id for each in self.engines])
        self.learned.keep({each.id: each.group for each in self.engines})

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.state.run())
            tasks.create_task(self.number())
            tasks.create_task(self.keep())

    async def number(self) -> None:
        while True:
            if self.numbering.is_due:
                await self.numbering.follow()
            await asyncio.sleep(0.05)

    async def keep(self) -> None:
        while True:
            await self.kept.save()
            await asyncio.sleep(EVERY_S)


async def happen(lives: list[Life]) -> Counter[str]:
    """Let a second of a bad day pass, as every coordinator sees it."""
    rng, counts = random.Random(time.monotonic_ns()), Counter[str]()
    for _ in range(3):  # agents that reconnect
        node = rng.choice(lives[0].engines).node
        for life in lives:
            life.agents.symmetric_difference_update({node})
        counts["agents that came or went"] += 1
    failing = rng.choice(lives[0].engines).id
    for life in lives:
        for _ in range(OPENS_AFTER):
            life.breakers.failed(failing, CLOCK.monotonic())
        for each in rng.sample(life.engines, 20):
            life.learned.learn(each, rng.uniform(100, 9000), 0.0, rng.uniform(0.01, 0.5))
    counts["engines that failed"] += 1
    if rng.random() < 0.2:  # a pod is replaced
        number = rng.randrange(ENGINES, 10 * ENGINES)
        for life in lives:
            life.engines[number % ENGINES] = engine(number)
            life.find()
        counts["engines that were replaced"] += 1
    await asyncio.sleep(1.0)
    return counts


async def test_writes_are_few_and_what_is_in_it_is_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcds.etcd(tmp_path) as member:
        stores = [etcds.store_of(member) for _ in range(3)]
        secret = await cluster_secret(stores[0])
        await applied.apply(stores[0], [policy("guards")], "me@here", CLOCK.unix())
        engines = [engine(number) for number in range(ENGINES)]
        lives = [
            Life(store, secret, f"coordinator-{n:08x}", list(engines))
            for n, store in enumerate(stores)
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(life.run()) for life in lives]
            await until(lambda: all(len(life.state.members.coordinators()) == 3 for life in lives))
            before = await stores[0].revision()
            nodes = {each.node for each in engines}
            for life in lives:  # all at once: the worst second
                life.agents |= nodes
            took_s = await until(
                lambda: all(len(life.state.members.agents()) == ENGINES for life in lives), 20
            )
            connected = await stores[0].revision() - before

            counts, began = Counter[str](), time.monotonic()
            before = await stores[0].revision()
            while time.monotonic() - began < EVERY_S:
                counts += await happen(lives)
            per_s = (await stores[0].revision() - before) / (time.monotonic() - began)

            sizes, keys = Counter[str](), Counter[str]()
            for key, stored in (await stores[0].range("")).entries.items():
                kind = "/".join(key.split("/")[:2])
                sizes[kind] += len(key) + len(stored.value)
                keys[kind] += 1
            for life in lives:
                for each in life.engines:
                    with suppress(KeyError):
                        life.breakers.reset(each.id)
            await asyncio.sleep(3)
            before, began = await stores[0].revision(), time.monotonic()
            await asyncio.sleep(10)
            idle_per_s = (await stores[0].revision() - before) / (time.monotonic() - began)

            for task in running:
                task.cancel()
        with capsys.disabled():
            print(f"\n{connected} revisions in {took_s:.1f} s for {ENGINES} agents that connect")
            print(f"{per_s:.1f} revisions a second while {dict(counts)} in {EVERY_S:.0f} s")
            print(f"{idle_per_s:.2f} a second at rest")
            for kind in sorted(sizes):
                print(f"{kind}: {keys[kind]} keys, {sizes[kind]} bytes")
        for store in stores:
            await store.close()
        assert counts["engines that failed"] > 20
        assert connected < 3 * MOST_PER_S
        assert per_s < MOST_PER_S
        assert idle_per_s < 1
