"""Servers that come, go and publish in either direction, over sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from coordinator.cluster import Cluster
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.discovery import Discovery
from coordinator.engines import Engine
from coordinator.publisher import Listener, listener_at
from lineside.ids import NodeId
from tests.fakes import FakeEngine, fake_engines

pytestmark = pytest.mark.flow


@asynccontextmanager
async def bound(kind: int) -> AsyncIterator[str]:
    """Bind a ZMQ socket of a kind; return its endpoint."""
    with zmq.asyncio.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        yield f"tcp://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("kind", "listener"),
    [
        (zmq.PUB, Listener.PUBLISHER),
        (zmq.XPUB, Listener.PUBLISHER),
        (zmq.SUB, Listener.SUBSCRIBER),
        (zmq.ROUTER, Listener.UNKNOWN),
    ],
    ids=["PUB", "XPUB", "SUB", "ROUTER"],
)
async def test_a_listener_says_what_it_is(kind: int, listener: Listener) -> None:
    async with bound(kind) as endpoint:
        assert await listener_at(endpoint) is listener


async def test_nobody_listens() -> None:
    async with bound(zmq.PUB) as endpoint:
        pass
    assert await listener_at(endpoint) is Listener.NOBODY
    assert await listener_at("ipc:///tmp/none") is Listener.UNKNOWN


class Watched:
    """A discovery at work."""

    def __init__(self, specs: Sequence[EngineSpec], session: aiohttp.ClientSession) -> None:
        self.cluster = Cluster()
        self.appeared: list[str] = []
        self.looked: set[str] = set()
        self.changes = 0
        self.discovery = Discovery(
            specs,
            self.cluster,
            session,
            Credentials({}),
            node=NodeId("n"),
            stride=4,
            probe_s=0.05,
            changed=self._note_change,
            appeared=self._note_appeared,
            looked=self.looked.add,
        )

    def _note_change(self, engines: Sequence[Engine]) -> None:
        self.changes += 1

    async def _note_appeared(self, engine: Engine) -> None:
        self.appeared.append(engine.id)

    def engines(self) -> list[Engine]:
        return [view.engine for view in self.cluster.snapshot(0.0).engines]

    def away(self) -> list[str]:
        return [view.away for view in self.cluster.snapshot(0.0).engines]


@asynccontextmanager
async def watching(*specs: EngineSpec) -> AsyncIterator[Watched]:
    async with aiohttp.ClientSession() as session:
        watched = Watched(specs, session)
        task = asyncio.create_task(watched.discovery.run())
        try:
            yield watched
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def watched_engine(engine: FakeEngine) -> AsyncIterator[tuple[FakeEngine, Watched]]:
    async with fake_engines(engine), watching(EngineSpec(url=engine.url)) as watched:
        yield engine, watched


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not so():  # noqa: ASYNC110  what is watched knows no events
            await asyncio.sleep(0.01)


def source(endpoint: str) -> dict[str, Any]:
    return {"0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}}


async def test_a_server_may_come_later_leave_and_return() -> None:
    engine = FakeEngine()
    await engine.start()
    port = int(engine.endpoint.rpartition(":")[2])
    await engine.stop()
    async with watching(EngineSpec(url=engine.url)) as watched:
        await until(lambda: watched.away() == ["cannot connect: Connection refused"])
        assert watched.engines()[0].models == ()
        for _ in range(2):
            await engine.start(port)
            await until(lambda: watched.away() == [""])
            assert watched.engines()[0].models != ()
            await engine.stop()
            await until(lambda: watched.away() != [""])
            assert watched.engines()[0].models != ()  # what it served is still known
        assert watched.appeared == [engine.endpoint] * 2
        assert watched.changes == 2


async def test_a_server_that_answers_badly_is_away() -> None:
    async with watched_engine(FakeEngine()) as (engine, watched):
        await until(lambda: watched.away() == [""])
        engine.ready = False
        await until(lambda: watched.away() == ["GET /v1/models answers 503"])


async def test_a_suspected_engine_is_out_until_it_answers() -> None:
    async with watched_engine(FakeEngine()) as (_, watched):
        await until(lambda: watched.away() == [""])
        watched.discovery.suspect(watched.engines()[0].id)
        assert watched.away() == ["a request could not connect"]
        await until(lambda: watched.away() == [""])


async def test_an_engine_may_change_its_models() -> None:
    async with watched_engine(FakeEngine()) as (engine, watched):
        await until(lambda: watched.away() == [""])
        revision = watched.cluster.revision
        engine.adapters = ("sql",)
        await until(lambda: len(watched.engines()[0].models) == 2)
        assert watched.cluster.revision == revision + 1


@pytest.mark.parametrize(
    ("kind", "binds"),
    [
        pytest.param(zmq.PUB, False, id="the publisher binds: connect"),
        pytest.param(zmq.SUB, True, id="our agent is bound already: stay bound"),
        pytest.param(None, True, id="nobody listens: the publisher connects, so bind"),
    ],
)
async def test_the_direction_of_events_is_found_out(kind: int | None, binds: bool) -> None:
    async with bound(kind or zmq.PUB) as endpoint:
        if kind is not None:
            await _expect_direction(endpoint, binds)
    if kind is None:
        await _expect_direction(endpoint, binds)


async def _expect_direction(endpoint: str, binds: bool) -> None:
    async with watched_engine(FakeEngine(sources=source(endpoint))) as (_, watched):
        await until(lambda: watched.away() == [""])
        (found,) = watched.engines()
        assert (found.events, found.events_bind) == (endpoint, binds)


async def test_the_usual_ports_are_taken_only_where_somebody_listens() -> None:
    async with watched_engine(FakeEngine(sources=None)) as (_, watched):
        await until(lambda: watched.away() == [""])
        (found,) = watched.engines()
        listener = await listener_at("tcp://127.0.0.1:5557")
        assert bool(found.events) == (listener is not Listener.NOBODY)
