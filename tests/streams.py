"""Agent and coordinator of one stream in this process: what is at its two ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from agent.assignment import Assigned, Scheme
from agent.dialling import Dialling
from agent.digest_log import DigestLog
from agent.peers import Peers as Words
from agent.report import Reporter
from agent.signals import Observed
from coordinator.agents.ingest import AgentsServicer, serving
from coordinator.cluster import Cluster
from coordinator.engines import Engine, EngineView, ServedModel
from coordinator.holdings.caches import Caches
from coordinator.holdings.overlay import Overlay
from coordinator.load.inflight import InFlight
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own, Peers
from coordinator.state.secret import Secret
from coordinator.state.stores.sqlite import SqliteStore
from coordinator.trust.proof import Proof, SharedToken
from lineside.clock import SystemClock
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium, ModelName, NodeId
from lineside.signals import Events, Load, NodeGpus, Status

TOKEN = "t0ken"
SECRET = b"secret of the cluster"
NODE = NodeId("n1")
GROUP = GroupId("weights")
A, B = EngineId("10.0.0.1:8000"), EngineId("10.0.0.2:8000")
CLOCK = SystemClock()
T = TypeVar("T")
STATUS = Status(Events.LIVE, block_size=16, blocks=7, batches=3)


def engine(name: EngineId, stride: int = 1) -> Engine:
    return Engine(
        id=name,
        base_url=f"http://{name}",
        endpoint=name,
        group=GROUP,
        models=(ServedModel(ModelName("m")),),
        node=NODE,
        events=f"tcp://{name}",
        stride=stride,
    )


def chain(length: int, start: int = 1) -> list[BlockKey]:
    return [BlockKey(number) for number in range(start, start + length)]


def gpu(keys: list[BlockKey]) -> dict[BlockKey, Medium | None]:
    return dict.fromkeys(keys, Medium.GPU)


@dataclass
class FakeHub:
    """The rest of an agent: a log per assigned engine, and what the test puts in."""

    logs: dict[EngineId, DigestLog] = field(default_factory=dict)
    schemes: list[Scheme] = field(default_factory=list)
    words: list[Assigned] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    vouches: list[tuple[EngineId, Generation]] = field(default_factory=list)
    doubts: list[tuple[EngineId, Generation, str, bool]] = field(default_factory=list)
    load: Observed[Load] | None = None
    node_gpus: Observed[NodeGpus] | None = None
    events: list[asyncio.Event] = field(default_factory=list)
    peers: Words = field(init=False)

    def __post_init__(self) -> None:
        self.peers = Words(self.announce)

    def adopt(self, scheme: Scheme, assigned: Assigned) -> None:
        self.schemes.append(scheme)
        self.words.append(assigned)
        before, self.logs = self.logs, {}
        for each in assigned.engines:
            log = before.get(each.id)
            if log is None or log.stride != each.stride:
                log = DigestLog(each.id, each.stride, ring_keys=2000)
            self.logs[each.id] = log

    def scheme(self) -> Scheme | None:
        return self.schemes[0] if self.schemes else None

    def release(self, coordinator: str) -> None:
        self.released.append(coordinator)

    def vouched(self, engine: EngineId, generation: Generation) -> None:
        self.vouches.append((engine, generation))

    def doubted(
        self, engine: EngineId, generation: Generation, reason: str, *, overstated: bool
    ) -> None:
        self.doubts.append((engine, generation, reason, overstated))

    def log(self, engine: EngineId) -> DigestLog | None:
        return self.logs.get(engine)

    def statuses(self) -> dict[EngineId, Observed[Status]]:
        return {name: self.observed(STATUS) for name in self.logs}

    def loads(self) -> dict[EngineId, Observed[Load]]:
        return {name: self.load for name in self.logs if self.load}

    def gpus(self) -> Observed[NodeGpus] | None:
        return self.node_gpus

    def subscribe(self) -> asyncio.Event:
        self.events.append(asyncio.Event())
        return self.events[-1]

    def observed(self, value: T) -> Observed[T]:
        return Observed(value, CLOCK.monotonic(), CLOCK.unix())

    def change(self, engine: EngineId, changes: dict[BlockKey, Medium | None]) -> None:
        self.logs[engine].record(changes)
        self.logs[engine].flush()
        self.announce()

    def announce(self) -> None:
        for event in self.events:
            event.set()


@dataclass
class Coordinator:
    """The coordinator's write path, without discovery and doors."""

    cluster: Cluster = field(default_factory=Cluster)
    caches: Caches = field(default_factory=Caches)
    address: str = "127.0.0.1:0"
    store: str = ":memory:"
    secret: Secret = field(default_factory=lambda: Secret(SECRET))
    peers: Peers = field(default_factory=Peers)
    proof: Proof = field(default_factory=lambda: SharedToken(TOKEN))
    noted: Callable[[str], None] = lambda _: None
    servicer: AgentsServicer = field(init=False)

    def __post_init__(self) -> None:
        self.numbering = Numbering(SqliteStore(self.store), self.cluster)
        self.inflight, self.overlay = InFlight(self.peers.sums), Overlay()
        self.servicer = AgentsServicer(
            cluster=self.cluster,
            caches=self.caches,
            secret=self.secret,
            clock=CLOCK,
            coordinator="c1",
            proof=self.proof,
            numbering=self.numbering,
            own=Own(self.inflight, self.overlay),
            peers=self.peers,
            noted=self.noted,
        )

    def assign(self, *engines: Engine) -> None:
        self.cluster.assign(engines)
        self.caches.assign({each.id: each.group for each in engines})

    @asynccontextmanager
    async def up(self, *, writing: bool = True) -> AsyncIterator["Coordinator"]:
        """Serve on the same address each time, as a restarted process would."""
        await self.numbering.follow()
        writer = asyncio.create_task(self.servicer.run()) if writing else None
        try:
            async with serving(self.servicer, self.address) as self.address:
                yield self
        finally:
            if writer:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def view(self, engine: EngineId) -> EngineView:
        views = self.cluster.snapshot(CLOCK.monotonic()).engines
        return next(view for view in views if view.engine.id == engine)

    def units(self, keys: list[BlockKey]) -> dict[EngineId, tuple[int, int, int]]:
        return self.caches.overlap(GROUP, keys)


@asynccontextmanager
async def agent(
    hub: FakeHub, address: str, token: str = TOKEN, dialling: Dialling | None = None
) -> AsyncIterator[Reporter]:
    line = (dialling or Dialling.plaintext(token)).to(address)
    reporter = Reporter(line, NODE, "life", hub, CLOCK)
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
