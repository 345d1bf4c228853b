"""A flood of events from one engine: the other engine's reach the index in time, memory stays.

The agent is a process of its own; publishers and the coordinator's write path are this one.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import msgspec
import psutil
import pytest
import zmq

from coordinator.caches import Caches
from coordinator.cluster import Cluster, Engine, ServedModel
from coordinator.ingest import AgentsServicer, serving
from coordinator.numbering import Numbering
from coordinator.store import SqliteStore
from lineside.clock import SystemClock
from lineside.ids import EngineId, GroupId, ModelName, NodeId

pytestmark = pytest.mark.flow

FLOOD_BLOCKS = 1_000_000
HELD_BLOCKS = 51_200
"""Of the flooding engine: its cache is small, so that it evicts what it stores soon after."""

RUN, BLOCK = 128, 16
FLOODING, CALM = EngineId("10.0.0.1:8000"), EngineId("10.0.0.2:8000")
NODE = NodeId("n1")

DELAY_S = 1.0
AGENT_MIB = 200
"""It starts with 63; holding takes 0.5 KB a block, and what is not read waits at the engine."""

LIMIT_S = 30.0


class Publisher:
    """One engine's publisher, with a queue that takes all; hears of subscriptions."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.sndhwm = 0
        self._seq = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    def is_heard(self) -> bool:
        return bool(self._socket.poll(0))

    def publish(self, payload: bytes) -> None:
        self._socket.send_multipart([b"kv", self._seq.to_bytes(8, "big"), payload])
        self._seq += 1


def stored(hashes: Sequence[int], parent: int | None, first_token: int) -> dict[str, object]:
    tokens = [first_token, *range(1, BLOCK * len(hashes))]
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent}
    return event | {"token_ids": tokens, "block_size": BLOCK, "lora_id": None, "medium": "GPU"}


def flood() -> Iterator[bytes]:
    """Yield messages that store `RUN` blocks each, and evict as many once the cache is full."""
    encode, held = msgspec.msgpack.Encoder().encode, deque[int]()
    for start in range(0, FLOOD_BLOCKS, RUN):
        hashes = range(start, start + RUN)
        held += hashes
        events = [stored(list(hashes), None, first_token=start)]
        if len(held) > HELD_BLOCKS:
            gone = [held.popleft() for _ in range(RUN)]
            events.insert(0, {"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        yield encode([0.0, events, 0])


class Bench:
    """The coordinator's write path with an agent of two engines."""

    def __init__(self, publishers: dict[EngineId, Publisher]) -> None:
        self.cluster, self.caches = Cluster(), Caches()
        numbering = Numbering(SqliteStore(":memory:"), self.cluster)
        self.servicer = AgentsServicer(
            self.cluster, self.caches, b"secret", SystemClock(), "c1", None, numbering
        )
        engines = [self._engine(engine, publisher) for engine, publisher in publishers.items()]
        self.cluster.assign(engines)
        self.caches.assign({engine.id: engine.group for engine in engines})

    def _engine(self, engine: EngineId, publisher: Publisher) -> Engine:
        return Engine(
            id=engine,
            base_url="http://127.0.0.1:1",
            endpoint=engine,
            group=GroupId("weights"),
            models=(ServedModel(ModelName("m")),),
            node=NODE,
            events=publisher.endpoint,
            stride=4,
        )

    def keys(self, engine: EngineId) -> int:
        feed = self.caches.feed(engine)
        return feed.visible.count if feed and feed.visible else 0

    def batches(self, engine: EngineId) -> int:
        views = self.cluster.snapshot(time.monotonic()).engines
        status = next(view.status for view in views if view.engine.id == engine)
        return status.batches if status else 0


@asynccontextmanager
async def running(publishers: dict[EngineId, Publisher]) -> AsyncIterator[Bench]:
    bench = Bench(publishers)
    writing = asyncio.create_task(bench.servicer.run())
    try:
        async with serving(bench.servicer, "127.0.0.1:0") as address:
            with agent(address):
                yield bench
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@contextmanager
def agent(coordinator: str) -> Iterator[None]:
    """Run an agent. Not by `cli.children`, which forks: gRPC's threads run here already."""
    settings = {"coordinators": [coordinator], "transport": "plaintext", "node": NODE}
    process = subprocess.Popen(
        [sys.executable, "-m", "agent.main", "--config", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(settings | {"log_level": "error"}).encode())
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline()
            yield
        finally:
            process.terminate()
            assert process.wait(LIMIT_S) == 0


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not so():  # noqa: ASYNC110 - what is waited for is another process's
            await asyncio.sleep(0.005)


async def delays(
    bench: Bench, calm: Publisher, begin: int, over: Callable[[], bool]
) -> list[float]:
    """Publish four blocks, that is one key, at a time; return how long each took to be seen."""
    encode, taken = msgspec.msgpack.Encoder().encode, []
    while not over():
        number = begin + len(taken)
        hashes = list(range(4 * number, 4 * number + 4))
        published_at = time.monotonic()
        calm.publish(encode([0.0, [stored(hashes, None, first_token=number)], 0]))
        await until(lambda: bench.keys(CALM) > number)  # noqa: B023 - awaited here
        taken.append(time.monotonic() - published_at)
        await asyncio.sleep(0.05)
    return taken


async def test_a_flood_delays_no_other_engine_and_fills_no_memory() -> None:
    messages = list(flood())
    context = zmq.Context()
    publishers = {FLOODING: Publisher(context), CALM: Publisher(context)}
    try:
        async with running(publishers) as bench:
            (process,) = psutil.Process().children()
            await until(lambda: all(each.is_heard() for each in publishers.values()))
            await delays(bench, publishers[CALM], 0, lambda: bench.keys(CALM) > 0)
            before_mib, most_mib = process.memory_info().rss / 2**20, 0.0
            for message in messages:
                publishers[FLOODING].publish(message)

            def over() -> bool:
                nonlocal most_mib
                most_mib = max(most_mib, process.memory_info().rss / 2**20)
                return bench.batches(FLOODING) == len(messages)

            begun_at = time.monotonic()
            taken = await delays(bench, publishers[CALM], bench.keys(CALM), over)
            took_s = time.monotonic() - begun_at
            print(f"{took_s:.1f} s, {len(taken)} looks, the longest {max(taken):.3f} s;")
            print(f"the agent had {before_mib:.0f} MiB and at most {most_mib:.0f}")
            await until(lambda: bench.keys(FLOODING) == HELD_BLOCKS // 4)
            assert max(taken) < DELAY_S
            assert len(taken) > 5
            assert most_mib < AGENT_MIB
    finally:
        context.destroy(linger=0)
