"""Servers that come, go and publish in either direction, over sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio
from aiohttp import web

from coordinator.cluster import Cluster
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.discovery import NOT_ASKED, Discovery
from coordinator.engines import Engine, Hosting
from coordinator.publisher import Listener, listener_at
from lineside.ids import NodeId, PodIdent
from tests.fakes import FakeEngine, fake_engines
from tests.waiting import until

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

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        session: aiohttp.ClientSession,
        credentials: Credentials | None = None,
    ) -> None:
        self.cluster = Cluster()
        self.appeared: list[str] = []
        self.looked: set[str] = set()
        self.changes = 0
        self.discovery = Discovery(
            specs,
            self.cluster,
            session,
            credentials or Credentials({}),
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

    async def two_looks(self, engine: str) -> None:
        """Wait until an engine has been asked twice more: one look may have been under way."""
        for _ in range(2):
            self.looked.clear()
            await until(lambda: engine in self.looked)


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


def pod(uid: str = "u1", unfit: str = "", **labels: str) -> Hosting:
    ident = PodIdent("inference", "vllm-0", uid)
    return Hosting(ident, tuple(sorted(labels.items())), unfit)


async def test_servers_of_pods_come_are_held_back_and_leave() -> None:
    async with (
        fake_engines(FakeEngine(), FakeEngine()) as (named, other),
        watched_by(named) as watched,
    ):
        spec = EngineSpec(url=other.url, node="n2")
        watched.discovery.follow({spec: pod(app="vllm")})
        await until(lambda: watched.away() == ["", ""])
        found = watched.engines()[1]
        assert (found.node, found.namespace, found.labels) == (
            "n2",
            "inference",
            (("app", "vllm"),),
        )
        appeared = watched.appeared.count(found.id)
        watched.discovery.follow({spec: pod(unfit="its pod is not ready", app="vllm")})
        assert watched.away() == ["", "its pod is not ready"]
        await watched.two_looks(found.id)  # they change nothing of it
        assert watched.away() == ["", "its pod is not ready"]
        watched.discovery.follow({spec: pod(app="vllm", tier="gold")})
        assert watched.away() == ["", ""]
        assert watched.engines()[1].labels == (("app", "vllm"), ("tier", "gold"))
        await until(lambda: watched.appeared.count(found.id) == appeared + 1)
        watched.discovery.follow({})
        assert [engine.endpoint for engine in watched.engines()] == [found_at(named)]
        await watched.two_looks(found_at(named))
        assert len(watched.engines()) == 1


async def test_another_pod_at_the_same_address_is_another_engine() -> None:
    async with fake_engines(FakeEngine()) as (engine,), watching() as watched:
        spec = EngineSpec(url=engine.url)
        watched.discovery.follow({spec: pod("u1")})
        await until(lambda: watched.away() == [""])
        id = watched.engines()[0].id
        watched.cluster.link(id, True)
        watched.discovery.follow({spec: pod("u2")})
        assert watched.away() == [NOT_ASKED]
        assert not watched.cluster.snapshot(0.0).engines[0].linked
        await until(lambda: watched.away() == [""])
        assert watched.appeared == [id, id]


async def test_the_direction_of_another_pods_events_is_found_out_anew() -> None:
    async with bound(zmq.PUB) as endpoint:
        engine = FakeEngine(sources=source(endpoint))
    async with fake_engines(engine), watching() as watched:
        spec = EngineSpec(url=engine.url)
        with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as socket:
            socket.bind(endpoint)
            watched.discovery.follow({spec: pod("u1")})
            await until(lambda: watched.away() == [""])
            assert not watched.engines()[0].events_bind
        watched.discovery.follow({spec: pod("u2")})  # nobody is bound there: its publisher connects
        await until(lambda: watched.away() == [""])
        assert watched.engines()[0].events_bind


async def test_servers_of_pods_get_their_key_and_others_at_the_address_do_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "key"
    file.write_text("k3y\n")
    credentials = Credentials({}, more=True)
    async with (
        fake_engines(FakeEngine(key="k3y")) as (engine,),
        aiohttp.ClientSession(middlewares=credentials.middlewares()) as session,
    ):
        watched = Watched([], session, credentials)
        task = asyncio.create_task(watched.discovery.run())
        spec = EngineSpec(url=engine.url, api_key_file=str(file))
        watched.discovery.follow({spec: pod()})
        await until(lambda: watched.away() == [""])
        assert credentials.headers(engine.url) == {"authorization": "Bearer k3y"}
        watched.discovery.follow({})
        assert credentials.headers(engine.url) == {}
        async with session.get(f"{engine.url}/v1/models") as answer:
            assert answer.status == 401
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_server_of_the_configuration_is_no_pods() -> None:
    async with fake_engines(FakeEngine()) as (engine,), watched_by(engine) as watched:
        watched.discovery.follow({EngineSpec(url=engine.url, node="n2"): pod()})
        assert [each.node for each in watched.engines()] == ["n"]
        watched.discovery.follow({})
        assert len(watched.engines()) == 1


def found_at(engine: FakeEngine) -> str:
    return engine.url.removeprefix("http://")


def watched_by(engine: FakeEngine) -> AbstractAsyncContextManager[Watched]:
    return watching(EngineSpec(url=engine.url))


# --- servers that say too much ------------------------------------------------------------------


def page_of(**said: Any) -> dict[str, web.StreamResponse | Any]:
    models = {"data": [{"id": "m", "root": "m"}]}
    return {"models": models, "version": {"version": "0.32.0"}, "sources": {}, **said}


@asynccontextmanager
async def saying(**said: Any) -> AsyncIterator[tuple[str, list[int]]]:
    """A server whose pages are these; bytes are sent without end. Also how much was sent."""
    pages, sent = page_of(**said), [0]

    def answering(name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            page = pages[name]
            if isinstance(page, web.HTTPException):
                raise page
            if not isinstance(page, bytes):
                return web.json_response(page)
            response = web.StreamResponse()
            await response.prepare(request)
            while sent[0] < 64 * 2**20:
                await response.write(page)
                sent[0] += len(page)
            return response

        return answer

    app = web.Application()
    app.router.add_get("/v1/models", answering("models"))
    app.router.add_get("/version", answering("version"))
    app.router.add_get("/kv_event_sources", answering("sources"))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", sent
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("page", ["models", "version", "sources"])
async def test_a_page_without_an_end_is_not_read_to_it(page: str) -> None:
    async with saying(**{page: b"x" * 2**18}) as (url, sent), watching(EngineSpec(url=url)) as w:
        await until(lambda: w.away() == ["it answers more than 4 MiB"])
        assert sent[0] < 32 * 2**20  # what was on its way


MANY = [{"id": f"m{n}"} for n in range(5000)]
ODD = "GET /v1/models answers something else than a list of models"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(
            {"models": {"data": MANY}}, "it serves 5000 models, and 4096 are taken", id="models"
        ),
        pytest.param({"models": {"data": [{"id": "m" * 2000}]}}, ODD, id="a name"),
        pytest.param(
            {"sources": {"-1": {}}},
            "it names a data-parallel rank that is not below 4096",
            id="rank",
        ),
        pytest.param(
            {"sources": {str(2**40): {}}},
            "it names a data-parallel rank that is not below 4096",
            id="a rank beyond all",
        ),
        pytest.param(
            {"models": web.HTTPTemporaryRedirect("http://127.0.0.1:1/")},
            "GET /v1/models answers 307",
            id="somewhere else",
        ),
    ],
)
async def test_a_server_that_says_what_none_can_is_away(said: dict[str, Any], why: str) -> None:
    async with saying(**said) as (url, _), watching(EngineSpec(url=url)) as watched:
        await until(lambda: watched.away() == [why])


async def test_an_address_beyond_all_bounds_is_told_to_no_agent() -> None:
    said = {"sources": {"0": {"endpoint": "tcp://*:" + "5" * 5000}}}
    async with saying(**said) as (url, _), watching(EngineSpec(url=url)) as watched:
        await until(lambda: watched.away() == [""])
        (found,) = watched.engines()
        assert len(found.events) < 100
