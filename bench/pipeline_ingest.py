"""The coordinator's ingest under load: 512 engines in 64 simulated agents, made beforehand.

    python bench/pipeline_ingest.py WINDOW_S        prints its figures as JSON

The coordinator's write path runs in this process, on uvloop as in `coordinator.main`; the agents in
a child, which sends ready bytes by a schedule. A delta's latency runs from its schedule, so that an
agent which is held up counts as a late delta.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
import uvloop

from agent import wire
from agent.digest_log import DigestLog
from agent.signals import Observed
from coordinator.agents.ingest import AgentsServicer, serving
from coordinator.cluster import Cluster
from coordinator.engines import Engine, ServedModel
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import Reason, Stream
from coordinator.holdings.overlay import Overlay
from coordinator.load.inflight import InFlight
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own, Peers
from coordinator.state.secret import Secret
from coordinator.state.stores.sqlite import SqliteStore
from coordinator.trust.proof import All
from lineside.clock import SystemClock
from lineside.digest import Delta, SnapshotChunk
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium, ModelName, NodeId
from lineside.signals import Events, Load, Status
from lineside.v1 import agents_pb2 as pb

SEED = 20261
NODES, ENGINES_EACH = 64, 8
CHANGES_PER_S = 200_000
SECONDS = 10.0
KEYS_EACH = 2000
SHARED = 0.3
"""Of the keys, what all engines of a node hold."""

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, pb.CoordinatorMessage]"
Connect: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, pb.CoordinatorMessage]"

REPORT_S = 0.5
LAG_LOOK_S = 0.01


# --- the agents -----------------------------------------------------------------------------------


@dataclass
class Script:
    """What one agent sends: its first messages, then one for each window."""

    node: NodeId
    first: list[bytes]
    windows: list[bytes]


class Keys:
    """One engine's cache: first in, first out; some keys are those of its neighbours too."""

    def __init__(self, node: int, engine: int) -> None:
        self._own = random.Random(f"{SEED} {node} {engine}")
        self._shared = random.Random(f"{SEED} {node}")
        self._held: list[BlockKey] = []
        self._oldest = 0

    def add(self, count: int) -> list[BlockKey]:
        alike = int(count * SHARED)
        keys = [BlockKey(self._shared.getrandbits(64)) for _ in range(alike)]
        keys += [BlockKey(self._own.getrandbits(64)) for _ in range(count - alike)]
        self._held += keys
        return keys

    def evict(self, count: int) -> list[BlockKey]:
        keys = self._held[self._oldest : self._oldest + count]
        self._oldest += count
        return keys


def script(node: int, window_s: float) -> Script:
    """Write one agent's messages by the agent's own code."""
    each = max(1, round(CHANGES_PER_S / NODES / ENGINES_EACH * window_s / 2))
    updates = wire.Updates()
    keys = [Keys(node, number) for number in range(ENGINES_EACH)]
    logs = [DigestLog(engine_id(node, number), 4) for number in range(ENGINES_EACH)]
    for log, cache in zip(logs, keys, strict=True):
        log.record(dict.fromkeys(cache.add(KEYS_EACH), Medium.GPU))
    cursors = [log.resume(Generation(""), 0) for log in logs]
    windows = []
    for number in range(-1, round(SECONDS / window_s)):
        if number >= 0:
            for log, cache in zip(logs, keys, strict=True):
                log.record(dict.fromkeys(cache.evict(each), None))
                log.record(dict.fromkeys(cache.add(each), Medium.GPU))
                log.flush()
        if int(number * window_s / REPORT_S) != int((number - 1) * window_s / REPORT_S):
            report(updates, logs)
        for cursor in cursors:
            while part := cursor.next():
                updates.snapshot(part) if isinstance(part, SnapshotChunk) else updates.delta(part)
        sent = [message.SerializeToString() for message in updates.take()]
        if number < 0:
            first = sent
        else:
            windows += sent
    return Script(node_id(node), first, windows)


def report(updates: wire.Updates, logs: list[DigestLog]) -> None:
    status = Status(Events.LIVE, block_size=16, blocks=31_250, batches=10_000)
    load = Load(3, 20, 0.8, 10**9, 10**7, 10**9, 10**8, 12, 16, 31_250, 1.7e9, asleep=False)
    for log in logs:
        updates.status(log.engine, Observed(status, 0.0, 1.7e9), 0.0)
        updates.load(log.engine, Observed(load, 0.0, 1.7e9), 0.0)


async def play(address: str, window_s: float) -> None:
    """Be all agents. Lines on standard input say when to begin."""
    scripts = [script(node, window_s) for node in range(NODES)]
    channels = [
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in scripts
    ]
    calls = [await greeted(channel, s) for channel, s in zip(channels, scripts, strict=True)]
    print("ready", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    begin = float(line)
    await asyncio.gather(
        *(
            send(call, each.windows, begin + window_s * number / NODES, window_s)
            for number, (call, each) in enumerate(zip(calls, scripts, strict=True))
        )
    )
    await asyncio.sleep(1)
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()


async def greeted(channel: grpc.aio.Channel, script: Script) -> Call:
    connect: Connect = channel.stream_stream(
        "/lineside.v1.Agents/Connect",
        response_deserializer=pb.CoordinatorMessage.FromString,
    )
    call = connect()
    await call.write(wire.hello(script.node, "life", 1, b"").SerializeToString())
    for _ in range(2 + ENGINES_EACH):  # hello, assignment, resumes
        await call.read()
    for message in script.first:
        await call.write(message)
    return call


async def send(call: Call, messages: list[bytes], begin: float, window_s: float) -> None:
    for number, message in enumerate(messages):
        await asyncio.sleep(begin + number * window_s - time.monotonic())
        await call.write(message)


# --- the coordinator ------------------------------------------------------------------------------


class TimedCaches(Caches):
    """Notes when each delta has been applied."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[tuple[EngineId, int, float]] = []
        self.reasons: list[Reason] = []

    def apply(self, stream: Stream, message: SnapshotChunk | Delta) -> Reason | None:
        reason = super().apply(stream, message)
        if reason is not None:
            self.reasons.append(reason)
        if isinstance(message, Delta):
            self.applied.append((message.engine, message.digest_seq, time.monotonic()))
        return reason


@dataclass
class Lag:
    """How much too late short sleeps end."""

    late_s: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.late_s.append(time.monotonic() - due)


def node_id(number: int) -> NodeId:
    return NodeId(f"node-{number}")


def engine_id(node: int, number: int) -> EngineId:
    return EngineId(f"10.42.{node}.{number}:8000")


def engines() -> list[Engine]:
    return [
        Engine(
            id=engine_id(node, number),
            base_url=f"http://{engine_id(node, number)}",
            endpoint=engine_id(node, number),
            group=GroupId("weights"),
            models=(ServedModel(ModelName("m")),),
            node=node_id(node),
            events="tcp://127.0.0.1:1",
            stride=4,
        )
        for node in range(NODES)
        for number in range(ENGINES_EACH)
    ]


@asynccontextmanager
async def served(known: Sequence[Engine], caches: Caches) -> AsyncIterator[str]:
    """Run a coordinator's write path into `caches`; yield where agents find it."""
    cluster = Cluster()
    servicer = AgentsServicer(
        cluster=cluster,
        caches=caches,
        secret=Secret(b"secret"),
        clock=SystemClock(),
        coordinator="c1",
        proof=All(()),
        numbering=Numbering(SqliteStore(":memory:"), cluster),
        own=Own(InFlight(), Overlay()),
        peers=Peers(),
    )
    cluster.assign(known)
    caches.assign({engine.id: engine.group for engine in known})
    writer = asyncio.create_task(servicer.run())
    async with serving(servicer, "127.0.0.1:0") as address:
        yield address
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def measure(window_s: float) -> dict[str, float]:
    """Run the coordinator's write path while the agents play."""
    known, caches = engines(), TimedCaches()
    async with served(known, caches) as address:
        agents = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, str(window_s), address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert agents.stdin and agents.stdout
        assert await agents.stdout.readline() == b"ready\n"
        feeds = [caches.feed(engine.id) for engine in known]
        while not all(feed and feed.current for feed in feeds):  # noqa: ASYNC110 - nobody rings
            await asyncio.sleep(0.05)
        gc.collect()
        gc.freeze()  # as the coordinator does when it begins
        figures = await _under_load(agents.stdin, caches, window_s)
        await agents.wait()
    return figures


async def _under_load(
    agents: asyncio.StreamWriter, caches: TimedCaches, window_s: float
) -> dict[str, float]:
    lag = Lag()
    watching = asyncio.create_task(lag.watch())
    begin = time.monotonic() + 0.5
    agents.write(f"{begin}\n".encode())
    await asyncio.sleep(begin - time.monotonic())
    caches.applied.clear()
    lag.late_s.clear()
    before = time.process_time()
    await asyncio.sleep(SECONDS)
    share = (time.process_time() - before) / (time.monotonic() - begin)
    late = sorted(lag.late_s)
    watching.cancel()
    await asyncio.sleep(0.5)  # what is under way
    if caches.reasons:
        raise SystemExit(f"the digests diverged: {set(caches.reasons)}: the bench is void")
    phases = {node_id(node): window_s * node / NODES for node in range(NODES)}
    taken = sorted(
        at - (begin + phases[_node_of(engine)] + (seq - 2) * window_s)
        for engine, seq, at in caches.applied
    )
    expected = NODES * ENGINES_EACH * round(SECONDS / window_s)
    changes = round(CHANGES_PER_S / NODES / ENGINES_EACH * window_s / 2) * 2 * expected / SECONDS
    return {
        "share": share,
        "applied": len(taken) / expected,
        "changes_per_s": changes,
        "messages_per_s": NODES / window_s,
        "p50_ms": 1e3 * taken[len(taken) // 2],
        "p99_ms": 1e3 * taken[len(taken) * 99 // 100],
        "lag_p99_ms": 1e3 * late[len(late) * 99 // 100],
        "lag_max_ms": 1e3 * late[-1],
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _node_of(engine: EngineId) -> NodeId:
    return node_id(int(engine.split(".")[2]))


if __name__ == "__main__":
    window_s, *address = sys.argv[1:] or ("0.1",)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if address:
            runner.run(play(address[0], float(window_s)))
        else:
            print(json.dumps(runner.run(measure(float(window_s)))))
