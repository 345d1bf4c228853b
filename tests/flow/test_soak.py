"""A soak of churn: whatever comes and goes, nothing is left behind. `make test-soak` alone runs it.

SOAK_S=60 makes a short one; ten minutes otherwise, and a warm-up until the ring of records is full.
Coordinator and agent run in this process, so that their tasks, sockets, slots, claims and leases
can be counted; the engines are processes, which are killed, stopped and replaced. The stream
between agent and coordinator is cut, agents restart, clients hang up, and the engines' caches are
far too small.

Resident memory alone tells a leak badly: free bytes between used ones stay resident, in each of the
allocator's arenas, of which glibc makes one more for each thread that finds the others busy. So
what is in use is counted as well, by Python and by malloc, and has much closer bounds.
"""

import asyncio
import ctypes
import gc
import logging
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
import pytest

import agent.main
import coordinator.build
import coordinator.main
from agent.config import AgentConfig
from agent.node import Node
from coordinator.build import Parts
from coordinator.config import EngineSpec
from coordinator.holdings.caches import Caches
from coordinator.holdings.index import GroupIndex
from coordinator.records import CAPACITY
from tests import gateways, simulated
from tests.captures import ids

pytestmark = [pytest.mark.flow, pytest.mark.soak]

SOAK_S = float(os.environ.get("SOAK_S", "600"))
WARM_S, WARM_LIMIT_S = 20.0, 900.0
"""A part of the warm-up, and all of it."""

ENGINES, CLIENTS = 3, 4
QUIET_S = 40.0
"""Idle connections are kept for 15 s, and claims for 2; after that nothing may be left."""

LIMIT_S = 30.0
"""For an answer that takes a tenth of a second: whoever waits longer waits for ever."""

OBJECTS = 0.05
"""Of growth in Python's memory blocks once warm, as a share."""

MALLOC_MIB = 1.5
"""Of growth in what malloc has given out: threads, sockets, gRPC and ZMQ beside the objects."""

RESIDENT_MIB, LATE_MIB = 16.0, 4.0
"""Of growth in resident memory once warm: in all, and in the second half."""


# --- what churns ----------------------------------------------------------------------------------


class Server:
    """A simulated engine with one HTTP port for all its lives; event ports change with each."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None

    async def start(self, ranks: int = 1) -> None:
        arguments = ("--port", str(self.port), "--data-parallel-size", str(ranks))
        self._process, _ = await asyncio.to_thread(simulated.launch, *arguments)

    async def end(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        self._process.kill() if kill else self._process.terminate()
        await asyncio.to_thread(self._process.wait, simulated.LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


@dataclass
class Relay:
    """Stands between agent and coordinator, and cuts."""

    target: tuple[str, int]
    address: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            upward, there = await asyncio.open_connection(*self.target)
            self._open |= {writer, there}
            await asyncio.gather(self._pass(reader, there), self._pass(upward, writer))
            self._open -= {writer, there}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await reader.read(2**16):
                writer.write(part)
                await writer.drain()
        writer.close()


class Agent:
    """The agent, which can be restarted: another life each time."""

    def __init__(self, coordinator: str) -> None:
        self._config = AgentConfig(coordinators=(coordinator,), transport="plaintext")

    async def start(self) -> None:
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(
            agent.main.run(self._config, self._stop, lambda _: None), name="agent"
        )

    async def end(self) -> None:
        self._stop.set()
        await self._running


@dataclass
class Whole:
    """Everything, while it runs."""

    gateway: gateways.Running
    servers: list[Server]
    relay: Relay
    agent: Agent
    parts: list[Parts]
    nodes: list[Node]
    until: float = 0.0
    """When the churn ends; nothing is broken off half-way."""
    dice: random.Random = field(default_factory=lambda: random.Random(20264))
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        return len(self.parts[-1].service.records.latest(limit=CAPACITY))

    @property
    def caches(self) -> Caches:
        caches = self.parts[-1].service.decider.overlaps
        assert isinstance(caches, Caches)
        return caches

    def index(self) -> GroupIndex:
        (group,) = self.caches._groups.values()
        (index,) = group.indexes.values()
        return index


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Whole]:
    parts: list[Parts] = []
    nodes: list[Node] = []
    build = coordinator.build.build

    async def built(*arguments: Any) -> Parts:
        parts.append(await build(*arguments))
        return parts[-1]

    def noded(**arguments: Any) -> Node:
        nodes[:] = [Node(**arguments)]
        return nodes[-1]

    monkeypatch.setattr(coordinator.main, "build", built)
    monkeypatch.setattr(agent.main, "Node", noded)
    async with AsyncExitStack() as stack:
        servers = [Server() for _ in range(ENGINES)]
        for server in servers:
            stack.push_async_callback(server.end)
            await server.start()
        specs = [EngineSpec(url=f"http://127.0.0.1:{server.port}") for server in servers]
        gateway = await stack.enter_async_context(gateways.coordinator(*specs, probe_s=0.5))
        host, _, port = gateway.grpc.rpartition(":")
        relay = await stack.enter_async_context(Relay((host, int(port))).running())
        reader = Agent(relay.address)
        await reader.start()
        stack.push_async_callback(reader.end)
        yield Whole(gateway, servers, relay, reader, parts, nodes)


async def disturb(whole: Whole) -> None:
    """Do one thing after another to engines, stream and agent."""
    while time.monotonic() < whole.until:
        await asyncio.sleep(whole.dice.uniform(0.5, 2.5))
        what = whole.dice.choice(["kill", "restart", "ranks", "away", "cut", "cut", "agent"])
        whole.seen[what] += 1
        server = whole.dice.choice(whole.servers)
        match what:
            case "cut":
                whole.relay.cut()
            case "agent":
                await whole.agent.end()
                await whole.agent.start()
            case _:
                await server.end(kill=what == "kill")
                if what == "away":
                    await asyncio.sleep(2.0)
                await server.start(ranks=2 if what == "ranks" else 1)


async def ask(whole: Whole) -> None:
    """Send completions of prompts that begin alike; hang up on some."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session:
        while time.monotonic() < whole.until:
            prefix = whole.dice.randrange(12)
            tokens = [*ids(prefix, 256), *ids(whole.dice.randrange(10**6), 64)]
            body = {"model": simulated.MODEL, "prompt": tokens, "max_tokens": 24, "stream": True}
            words = whole.dice.choice([None, None, 0, 3])
            try:
                async with session.post(
                    f"{whole.gateway.http}/v1/completions", json=body
                ) as answer:
                    whole.seen[f"status {answer.status}"] += 1
                    async for _ in answer.content:
                        if words == 0:
                            whole.seen["hung up"] += 1
                            break
                        words = None if words is None else words - 1
            except (aiohttp.ClientError, TimeoutError) as error:
                whole.seen[type(error).__name__] += 1
            await asyncio.sleep(whole.dice.uniform(0.0, 0.1))


async def churn(whole: Whole, seconds: float) -> None:
    """Churn for so long, then start every engine anew."""
    whole.until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for work in (disturb(whole), *(ask(whole) for _ in range(CLIENTS))):
            tasks.create_task(work, name="churn")
    for server in whole.servers:
        await server.end()
        await server.start()


# --- what is left ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """What the process has while nothing is asked of it."""

    tasks: Counter[str]
    descriptors: int
    connections: Counter[str]


def footprint() -> Footprint:
    gc.collect()  # a call that was cancelled is part of a cycle, and keeps its connection
    names = [re.sub(r"\d+", "N", task.get_name()) for task in asyncio.all_tasks()]
    here = psutil.Process()
    kinds = Counter(f"{c.type.name} {c.status}" for c in here.net_connections())
    return Footprint(Counter(names), here.num_fds(), kinds)


@dataclass(frozen=True)
class Memory:
    """What is in use, by Python and by malloc, and what is resident."""

    objects: int
    malloc_mib: float
    resident_mib: float

    def __str__(self) -> str:
        return (
            f"{self.objects} objects, {self.malloc_mib:.1f} MiB of malloc in use,"
            f" {self.resident_mib:.1f} MiB resident"
        )


def memory() -> Memory:
    gc.collect()
    resident = psutil.Process().memory_info().rss
    return Memory(sys.getallocatedblocks(), malloc_in_use() / 2**20, resident / 2**20)


def malloc_in_use() -> int:
    """Return the bytes that malloc has given out in all its arenas; 0 where it does not say."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2  # glibc from 2.33
    except AttributeError:
        return 0
    mallinfo2.restype = MallInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


class MallInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def left_behind(whole: Whole) -> dict[str, object]:
    """Return what should be gone by now, by name; empty: nothing."""
    parts, index = whole.parts[-1], whole.index()
    held = [log.held for log in map(whole.nodes[-1].log, whole.nodes[-1].engines) if log]
    visible = sum(
        len(feed.visible.slots) for _, feed in whole.caches._members.values() if feed.visible
    )
    found = {
        "claims": len(parts.service.overlay._open) + len(parts.service.overlay._settled),
        "claimed keys": parts.service.overlay.keys,
        "leases": parts.service.inflight.outstanding,
        "calls": parts.door.calls,
        "streams beyond one": len(parts.agents.sessions.open) - 1,
        "feeds beyond engines": len(whole.caches._members) - ENGINES,
        "engines not shown": ENGINES - visible,
        "slots beyond those shown": len(index._open) - visible,
        "freed slots not swept": len(index._freed) + (index._sweep is not None),
        "keys beyond those held": index.entries - len({key for each in held for key in each}),
        "engines read beyond": len(held) - ENGINES,
        "queued": parts.agents.sessions.queue.qsize(),
    }
    return {name: value for name, value in found.items() if value}


async def rest(whole: Whole, before: Footprint | None) -> tuple[Footprint, Memory]:
    """Wait until nothing is left behind; return what there is."""
    await settled(lambda: left_behind(whole), QUIET_S)
    if before is None:
        await asyncio.sleep(20)  # idle connections go
    else:
        await settled(lambda: beyond(footprint(), before), QUIET_S)
    return footprint(), memory()


def beyond(now: Footprint, before: Footprint) -> dict[str, object]:
    more = {
        "tasks": now.tasks - before.tasks,
        "connections": now.connections - before.connections,
        "descriptors": max(0, now.descriptors - before.descriptors),
    }
    return {name: value for name, value in more.items() if value}


async def settled(left: Callable[[], dict[str, object]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while found := left():
        assert time.monotonic() < deadline, f"left behind: {found}"
        await asyncio.sleep(0.5)


async def warm_up(whole: Whole) -> None:
    """Churn until every ring is full: what they hold then is all that they will ever hold."""
    deadline = time.monotonic() + WARM_LIMIT_S
    while whole.records < CAPACITY:
        assert time.monotonic() < deadline, f"only {whole.records} records"
        await churn(whole, WARM_S)


async def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as whole:
        monkeypatch.setattr(logging, "lastResort", None)  # nothing is said of what we do to them
        await warm_up(whole)
        before, warm = await rest(whole, None)
        print(f"\nwarm: {warm}, {before.descriptors} descriptors")
        whole.seen.clear()
        begun_at = time.monotonic()
        rests = []
        for _ in range(2):
            await churn(whole, SOAK_S / 2)
            after, now = await rest(whole, before)
            rests.append(now)
            minutes = (time.monotonic() - begun_at) / 60
            print(f"{minutes:.1f} min: {now}, {after.descriptors} descriptors")
        print(f"{sum(after.tasks.values())} tasks; {dict(whole.seen)}")
        for now in rests:
            assert now.objects < (1 + OBJECTS) * warm.objects
            assert now.malloc_mib - warm.malloc_mib < MALLOC_MIB
            assert now.resident_mib - warm.resident_mib < RESIDENT_MIB
        assert rests[-1].resident_mib - rests[0].resident_mib < LATE_MIB
        assert not whole.seen["TimeoutError"]
        assert whole.seen["status 200"] > 10 * minutes
