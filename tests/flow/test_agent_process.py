"""The whole agent on real sockets: an engine that replays captured bytes, and a coordinator."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest
import zmq
import zmq.asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.config import AgentConfig
from agent.kv_events import decode
from agent.main import run
from agent.residency import Residency
from lineside.digest import Delta, DeltaReader, checksum, decode_snapshot
from lineside.ids import BlockKey, Medium
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc
from tests.captures import frames, rows
from tests.processes import running
from tests.waiting import until

pytestmark = pytest.mark.flow

SECRET = b"a secret of this test"
STRIDE = 2
TOKEN = "a token of this test"
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests/cases/metrics/under_load.txt").read_bytes()
MAIN = [frames(row) for row in rows("main")]


def held_after(messages: list[list[bytes]]) -> dict[BlockKey, Medium]:
    residency = Residency(SECRET, STRIDE)
    for message in messages:
        for event in decode(message).events:
            residency.apply(event)
    return dict(residency.held())


class FakeEngine:
    """Publishes captured messages, answers replays from its buffer, serves a captured page."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._live = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self.events = f"tcp://127.0.0.1:{self._live.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.buffer: list[list[bytes]] = []
        self.url = ""

    async def publish(self, message: list[bytes]) -> None:
        self.buffer.append(message)
        await self._live.send_multipart(message)

    async def _answer(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            for message in self.buffer[int.from_bytes(start, "big") :]:
                await self._router.send_multipart([client, b"", *message])
            await self._router.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEngine"]:
        async def page(_: web.Request) -> web.Response:
            return web.Response(body=PAGE)

        app = web.Application()
        app.router.add_get("/metrics", page)
        answering = asyncio.create_task(self._answer())
        try:
            async with TestServer(app) as server:
                self.url = f"http://127.0.0.1:{server.port}"
                yield self
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            self._context.destroy(linger=0)


@dataclass
class FakeCoordinator(rpc.AgentsServicer):
    """Keeps what an agent says, and rebuilds each engine's holdings from its digest."""

    engines: list[pb.AssignedEngine]
    name: str = "c1"
    hellos: list[pb.AgentHello] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    generations: list[str] = field(default_factory=list)
    held: dict[BlockKey, Medium] = field(default_factory=dict)
    filling: dict[BlockKey, Medium] = field(default_factory=dict)
    statuses: list[pb.EngineStatus] = field(default_factory=list)
    loads: list[pb.EngineLoad] = field(default_factory=list)
    gpus: list[pb.NodeGpu] = field(default_factory=list)
    deltas: int = 0
    reader: DeltaReader = field(default_factory=DeltaReader)

    async def Connect(
        self,
        request_iterator: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.CoordinatorMessage],
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        metadata = dict(context.invocation_metadata() or ())
        self.tokens.append(str(metadata["authorization"]))
        self.hellos.append((await anext(aiter(request_iterator))).hello)
        self.reader = DeltaReader()
        scheme = pb.KeyScheme(unit=16, hash="xxh3_64")
        yield pb.CoordinatorMessage(
            hello=pb.CoordinatorHello(
                protocol=1, coordinator=self.name, key_scheme=scheme, secret=SECRET
            )
        )
        yield pb.CoordinatorMessage(assignment=pb.Assignment(revision=1, engines=self.engines))
        for engine in self.engines:
            yield pb.CoordinatorMessage(resume=pb.Resume(engine=engine.id))
        async for message in request_iterator:
            self.take(message)

    def take(self, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "snapshot":
                self.take_snapshot(message.snapshot)
            case "update":
                update = message.update
                self.statuses += update.statuses
                self.loads += update.loads
                self.gpus += [update.gpu] if update.HasField("gpu") else []
                for delta in self.reader.read(update.deltas):
                    self.take_delta(delta)

    def take_snapshot(self, wire: pb.SnapshotChunk) -> None:
        chunk = decode_snapshot(wire)
        if chunk.chunk == 0:
            self.filling = {}
            assert chunk.stride == STRIDE
        self.filling.update(chunk.keys)
        if chunk.last:
            assert (len(self.filling), checksum(self.filling.items())) == (
                chunk.count,
                chunk.checksum,
            )
            self.held = self.filling
            self.generations.append(chunk.generation)

    def take_delta(self, delta: Delta) -> None:
        assert delta.generation == self.generations[-1]
        for key, medium in delta.removed:
            assert self.held.pop(key) == medium
        assert self.held.keys().isdisjoint(key for key, _ in delta.added)
        self.held.update(delta.added)
        assert (len(self.held), checksum(self.held.items())) == (delta.count, delta.checksum)
        self.deltas += 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = grpc.aio.server()
        rpc.add_AgentsServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


@asynccontextmanager
async def agent(*coordinators: str) -> AsyncIterator[str]:
    """Run an agent in this process; yields the address of its listener."""
    config = AgentConfig(coordinators=coordinators, transport="plaintext", node="n1", token=TOKEN)
    stop = asyncio.Event()
    listening: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run(config, stop, listening.set_result))
    await asyncio.wait([running, listening], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    try:
        yield f"http://{listening.result()['metrics']}"
    finally:
        stop.set()
        async with asyncio.timeout(5):
            await running


async def test_a_coordinator_ends_up_with_what_the_engine_holds() -> None:
    async with FakeEngine().serving() as engine:
        for message in MAIN[:90]:
            await engine.publish(message)
        assigned = pb.AssignedEngine(
            id="e1",
            base_url=engine.url,
            events=engine.events,
            replay=engine.replay,
            topic="kv@",
            stride=STRIDE,
            version="0.32.0",
        )
        coordinator = FakeCoordinator([assigned])
        async with coordinator.serving() as address, agent(address) as listener:
            await until(lambda: coordinator.held == held_after(MAIN[:90]) != {})
            for message in MAIN[90:]:
                await engine.publish(message)
            await until(
                lambda: (
                    coordinator.held == held_after(MAIN)
                    and coordinator.statuses[-1].batches == len(MAIN)
                )
            )
            assert coordinator.deltas > 0
            assert coordinator.tokens == [f"Bearer {TOKEN}"]
            assert coordinator.hellos[0].node == "n1"
            status = coordinator.statuses[-1]
            assert (status.engine, status.events, status.reason) == ("e1", pb.EngineStatus.LIVE, "")
            assert (status.block_size, status.unmatched_removals, status.undecodable) == (32, 0, 0)

            await until(lambda: bool(coordinator.loads and coordinator.gpus))
            load = coordinator.loads[0]
            assert (load.engine, load.waiting, load.running) == ("e1", 6, 4)
            assert (load.num_gpu_blocks, list(load.missing)) == (48, [])
            gpus = coordinator.gpus[-1]
            assert bool(gpus.gpus) is not bool(gpus.unavailable)

            await is_ready_and_counts(listener)

            before = coordinator.generations[-1]
            engine.buffer.clear()
            for message in MAIN[:5]:  # the engine begins a new life
                await engine.publish(at_another_time(message))
            await until(lambda: coordinator.held == held_after(MAIN[:5]) != {})
            assert coordinator.generations[-1] != before


def at_another_time(message: list[bytes]) -> list[bytes]:
    """Return what a later life says of the same step: the time alone differs."""
    ts, *rest = msgspec.msgpack.decode(message[-1])
    return [*message[:-1], msgspec.msgpack.encode([ts + 1000, *rest])]


async def is_ready_and_counts(listener: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(listener) as response:
            assert "/healthz /readyz /metrics" in await response.text()
        async with session.get(f"{listener}/healthz") as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        async with session.get(f"{listener}/readyz") as response:
            assert (response.status, await response.json()) == (
                200,
                {"ready": True, "reasons": [], "degraded": []},
            )
        async with session.get(f"{listener}/metrics") as response:
            lines = (await response.text()).splitlines()
    assert f'lineside_agent_event_batches_total{{engine="e1"}} {float(len(MAIN))}' in lines
    assert 'lineside_agent_events_state{engine="e1",state="live"} 1.0' in lines
    assert any(line.startswith("lineside_agent_stream_up{") and "1.0" in line for line in lines)


async def test_every_coordinator_gets_the_same_digest() -> None:
    async with FakeEngine().serving() as engine:
        for message in MAIN[:60]:
            await engine.publish(message)
        assigned = pb.AssignedEngine(
            id="e1", base_url=engine.url, events=engine.events, replay=engine.replay, stride=STRIDE
        )
        one, other = FakeCoordinator([assigned]), FakeCoordinator([assigned], "c2")
        async with one.serving() as first, other.serving() as second, agent(first, second):
            await until(lambda: one.held == other.held == held_after(MAIN[:60]) != {})
        assert one.generations[-1] == other.generations[-1]


async def test_an_engine_that_is_not_there_is_waited_for() -> None:
    assigned = pb.AssignedEngine(
        id="e1", base_url="http://127.0.0.1:1", events="tcp://127.0.0.1:1", stride=STRIDE
    )
    coordinator = FakeCoordinator([assigned])
    async with coordinator.serving() as address, agent(address):
        await until(lambda: len(coordinator.statuses) > 1)
        assert coordinator.statuses[-1].events == pb.EngineStatus.CONNECTING
        assert coordinator.loads == []


# --- the process --------------------------------------------------------------------------------


async def test_the_process_says_where_it_listens_and_ends_on_term() -> None:
    process = await running(
        "agent.main",
        {"coordinators": ["127.0.0.1:1"], "transport": "plaintext", "token": "hunter2"},
    )
    assert process.stdout
    async with asyncio.timeout(10):
        listening = json.loads(await process.stdout.readline())["listening"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{listening['metrics']}/readyz") as response,
        ):
            assert response.status == 503
            assert (await response.json())["reasons"] == [
                "no coordinator is connected",
                "no assignment has arrived yet",
            ]
        process.send_signal(signal.SIGTERM)
        output, errors = await process.communicate()
    assert (process.returncode, output) == (0, b"")
    assert b"Traceback" not in errors
    assert b"hunter2" not in errors


@pytest.mark.parametrize(
    ("config", "code", "error"),
    [
        pytest.param({"coordinators": []}, 1, b"`coordinators` must be", id="no coordinator"),
        pytest.param(
            {"coordinators": ["c:1"], "tls": {"ca_file": "/nowhere"}},
            3,
            b"could not run: `tls.ca_file` cannot be read: no such file or directory",
            id="authorities that are not there",
        ),
        pytest.param(
            {"coordinators": ["c:1"], "transport": "plaintext", "metrics": "192.0.2.1:1"},
            3,
            b"could not run",
            id="an address of another machine",
        ),
    ],
)
async def test_the_process_says_why_it_cannot_run(config: object, code: int, error: bytes) -> None:
    process = await running("agent.main", config)
    async with asyncio.timeout(10):
        output, errors = await process.communicate()
    assert (process.returncode, output) == (code, b"")
    assert error in errors
    assert b"Traceback" not in errors
