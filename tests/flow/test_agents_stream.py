"""Agent and coordinator over real gRPC on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from agent.assignment import Scheme
from agent.digest_log import DigestLog
from agent.report import Call
from agent.stream import FOREIGN
from coordinator.holdings.feed import Phase
from coordinator.state.secret import SECRET_BYTES, Secret
from lineside.digest import DeltaPacker, encode_snapshot
from lineside.ids import BlockKey, EngineId
from lineside.signals import Events, Gpu, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc
from tests.streams import (
    CLOCK,
    NODE,
    SECRET,
    TOKEN,
    A,
    B,
    Coordinator,
    FakeHub,
    agent,
    chain,
    engine,
    gpu,
)
from tests.waiting import until

pytestmark = pytest.mark.flow


async def test_holdings_and_signals_arrive() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    hub.load = hub.observed(Load(waiting=2, kv_cache_usage=0.5, missing=("running",)))
    hub.node_gpus = hub.observed(NodeGpus((Gpu("u", 0, "H", utilization=0.25, engines=(A,)),)))
    coordinator.assign(engine(A), engine(B))
    async with coordinator.up(), agent(hub, coordinator.address) as reporter:
        await until(lambda: coordinator.view(A).cache_state == "live")
        assert set(hub.schemes) == {Scheme(16, "xxh3_64", SECRET)}
        assert [each.id for each in hub.words[0].engines] == [A, B]
        hub.change(A, gpu(chain(9)))
        hub.change(B, gpu(chain(3)))
        await until(lambda: len(coordinator.units(chain(9))) == 2)
        assert coordinator.units(chain(12)) == {A: (9, 9, 9), B: (3, 3, 3)}
        await until(lambda: coordinator.view(A).load)
        view = coordinator.view(A)
        assert view.status == Status(Events.LIVE, block_size=16, blocks=7, batches=3)
        assert view.load == Load(waiting=2, kv_cache_usage=0.5, missing=("running",))
        assert (view.linked, view.fresh, view.generation) == (True, True, hub.logs[A].generation)
        (gpus, age_s) = coordinator.cluster.node_gpus(CLOCK.monotonic())[NODE]
        assert gpus == NodeGpus((Gpu("u", 0, "H", utilization=0.25, engines=(A,)),))
        assert 0 <= age_s < 5
        await until(lambda: reporter.acked.get(A) == (hub.logs[A].generation, 1))


async def test_a_coordinator_whose_secret_the_agent_does_not_follow_is_told_so() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    hub.schemes.append(Scheme(16, "xxh3_64", b"another coordinator's"))
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(hub, coordinator.address):
        await until(lambda: coordinator.view(A).cache_state == "unusable")
        assert coordinator.view(A).reason == FOREIGN
        assert coordinator.view(A).status == Status(Events.UNUSABLE, FOREIGN, 16, 7, 3)


async def test_one_without_a_secret_takes_it_over_from_the_first_agent_that_has_one() -> None:
    held = Secret(None)
    coordinator, fresh, knows = Coordinator(secret=held), FakeHub(), FakeHub()
    coordinator.assign(engine(A))
    async with coordinator.up():
        async with agent(fresh, coordinator.address):
            await until(lambda: coordinator.servicer.counters()["refused"])
            assert (held.value, fresh.schemes) == (None, [])
        knows.schemes.append(Scheme(16, "xxh3_64", b"k" * SECRET_BYTES))
        async with agent(knows, coordinator.address):
            await until(lambda: coordinator.view(A).cache_state == "live")
        assert held.value == b"k" * SECRET_BYTES
        async with agent(fresh, coordinator.address):
            await until(lambda: fresh.schemes)
        assert fresh.schemes == [Scheme(16, "xxh3_64", b"k" * SECRET_BYTES)]
    assert "kkk" not in repr(held)


async def test_a_stream_that_comes_back_brings_only_what_was_missed() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with agent(hub, "127.0.0.1:1"):  # nobody there: it keeps trying, and gives up nothing
        pass
    async with coordinator.up(), agent(hub, coordinator.address):
        await until(lambda: coordinator.view(A).cache_state == "live")
        hub.change(A, gpu(chain(9)))
        await until(lambda: coordinator.units(chain(9)))
    assert hub.released == [word.coordinator for word in hub.words[:1]]
    feed = coordinator.caches.feed(A)
    assert feed
    assert (feed.phase, feed.snapshots, coordinator.view(A).linked) == (Phase.DOWN, 1, False)
    assert coordinator.units(chain(9)) == {A: (9, 9, 9)}  # the lease runs
    hub.change(A, {BlockKey(9): None})
    async with coordinator.up(), agent(hub, coordinator.address):
        await until(lambda: feed.current)
        assert (feed.snapshots, coordinator.units(chain(9))) == (1, {A: (8, 8, 8)})


async def test_an_agent_hears_what_it_is_vouched_for() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(hub, coordinator.address):
        await until(lambda: coordinator.view(A).cache_state == "live")
        coordinator.servicer.vouch({A: "a generation", EngineId("another"): "g"})
        await until(lambda: hub.vouches == [(A, "a generation")])


async def test_a_restarted_coordinator_is_warm_again() -> None:
    hub, old = FakeHub(), Coordinator()
    old.assign(engine(A))
    async with old.up():
        pass
    async with agent(hub, old.address):
        async with old.up():
            await until(lambda: A in hub.logs)
            hub.change(A, gpu(chain(5000)))
            await until(lambda: old.units(chain(5000)) == {A: (5000,) * 3})
        new = Coordinator(address=old.address)
        new.assign(engine(A))
        async with new.up():
            await until(lambda: new.units(chain(5000)) == {A: (5000,) * 3})
            assert new.view(A).cache_state == "live"


async def test_a_new_assignment_reaches_a_connected_agent() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(hub, coordinator.address):
        await until(lambda: A in hub.logs)
        hub.change(A, gpu(chain(8)))
        await until(lambda: A in coordinator.units(chain(8)))
        coordinator.assign(engine(B, stride=4))
        assert coordinator.units(chain(8)) == {}
        await until(lambda: B in hub.logs)
        hub.change(B, gpu([BlockKey(4), BlockKey(8)]))
        await until(lambda: coordinator.units(chain(11)) == {B: (8, 8, 8)})
        coordinator.assign(engine(A), engine(B, stride=2))  # A is back, B counts otherwise
        await until(lambda: A in hub.logs and hub.logs[B].stride == 2)
        hub.change(A, gpu(chain(2)))
        hub.change(B, gpu([BlockKey(2)]))
        await until(lambda: coordinator.units(chain(8)) == {A: (2, 2, 2), B: (2, 2, 2)})


async def test_a_coordinator_that_did_not_keep_up_reads_snapshots_instead() -> None:
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with coordinator.up(writing=False), agent(hub, coordinator.address):
        await until(lambda: A in hub.logs)
        for start in range(1, 150_000, 1000):
            hub.change(A, gpu(chain(1000, start)))
            await asyncio.sleep(0)
        await until(coordinator.servicer.sessions.queue.full)
        writer = asyncio.create_task(coordinator.servicer.run())
        feed = coordinator.caches.feed(A)
        assert feed
        await until(lambda: feed.current and feed.visible.count == 150_000)  # type: ignore[union-attr]
        assert feed.deltas < 150
        assert feed.resyncs == {}
        writer.cancel()


# --- the handshake, by hand ---------------------------------------------------------------------


def hello(**changed: object) -> pb.AgentMessage:
    fields = {"protocol_min": 1, "protocol_max": 1, "node": NODE, "life": "life", "connection": 1}
    return pb.AgentMessage(hello=pb.AgentHello(**(fields | changed)))  # type: ignore[arg-type]


@dataclass
class Caller:
    """An agent that says what the test wants."""

    channel: grpc.aio.Channel

    def connect(self, token: str = TOKEN) -> Call:
        stub = rpc.AgentsStub(self.channel)
        return stub.Connect(metadata=(("authorization", f"Bearer {token}"),))

    async def greet(self, connection: int = 1, life: str = "life") -> Call:
        """Shake hands and take the assignment of one engine."""
        call = self.connect()
        await call.write(hello(connection=connection, life=life))
        messages = [await call.read() for _ in range(3)]
        said = [each.WhichOneof("body") for each in messages]  # type: ignore[attr-defined]
        assert said == ["hello", "assignment", "resume"]
        return call


@asynccontextmanager
async def calling() -> AsyncIterator[tuple[Caller, Coordinator]]:
    coordinator = Coordinator()
    coordinator.assign(engine(A))
    async with (
        coordinator.up(),
        grpc.aio.insecure_channel(coordinator.address) as channel,
    ):
        yield Caller(channel), coordinator


async def ending(call: Call) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(5):
        with contextlib.suppress(grpc.aio.AioRpcError):  # a status comes after all messages
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code(), await call.details()


@pytest.mark.parametrize(
    ("first", "token", "code", "text"),
    [
        pytest.param(
            hello(),
            "guess",
            grpc.StatusCode.UNAUTHENTICATED,
            "the agent's token is missing or not the one that this coordinator expects",
            id="a wrong token",
        ),
        pytest.param(
            hello(protocol_min=2, protocol_max=3),
            TOKEN,
            grpc.StatusCode.FAILED_PRECONDITION,
            "the agent speaks protocol 2 to 3, this coordinator 1 to 1:"
            " upgrade the older of the two",
            id="an agent from the future",
        ),
        pytest.param(
            hello(life=""),
            TOKEN,
            grpc.StatusCode.INVALID_ARGUMENT,
            "the hello lacks `node`, `life` or `connection`, or one is too long",
            id="no life",
        ),
        pytest.param(
            pb.AgentMessage(update=pb.Update()),
            TOKEN,
            grpc.StatusCode.INVALID_ARGUMENT,
            "a stream begins with a hello",
            id="no hello",
        ),
    ],
)
async def test_a_handshake_that_cannot_be_is_refused_with_a_reason(
    first: pb.AgentMessage, token: str, code: grpc.StatusCode, text: str
) -> None:
    async with calling() as (caller, coordinator):
        call = caller.connect(token)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(first)  # a wrong token may have ended it already
        assert await ending(call) == (code, text)
        assert coordinator.servicer.counters()["refused"] == 1
        assert coordinator.servicer.counters()["streams"] == 0


async def test_a_newer_connection_takes_over_and_an_older_one_is_refused() -> None:
    async with calling() as (caller, coordinator):
        log = DigestLog(A, 1)
        log.record(gpu(chain(3)))
        (chunk,) = [log.resume(log.generation, 99).next()]
        snapshot = pb.AgentMessage(snapshot=encode_snapshot(chunk))  # type: ignore[arg-type]
        first = await caller.greet(connection=1)
        second = await caller.greet(connection=2)
        text = "a newer connection of node `n1` took over"
        assert await ending(first) == (grpc.StatusCode.ABORTED, text)
        third = caller.connect()
        await third.write(hello(connection=1))
        text = "connection 1 of node `n1` is outdated"
        assert await ending(third) == (grpc.StatusCode.ABORTED, text)
        assert coordinator.view(A).linked
        await second.write(snapshot)
        await until(lambda: coordinator.units(chain(3)))
        await caller.greet(connection=1, life="another life")
        text = "a newer connection of node `n1` took over"
        assert await ending(second) == (grpc.StatusCode.ABORTED, text)


async def test_what_a_replaced_stream_left_in_the_queue_is_dropped() -> None:
    coordinator = Coordinator()
    coordinator.assign(engine(A))
    log = DigestLog(A, 1)
    log.record(gpu(chain(3)))
    snapshot = pb.AgentMessage(snapshot=encode_snapshot(log.resume(log.generation, 99).next()))  # type: ignore[arg-type]
    async with (
        coordinator.up(writing=False),
        grpc.aio.insecure_channel(coordinator.address) as channel,
    ):
        caller = Caller(channel)
        first = await caller.greet(connection=1)
        await first.write(snapshot)
        await until(lambda: coordinator.servicer.sessions.queue.qsize())
        await caller.greet(connection=2)
        writer = asyncio.create_task(coordinator.servicer.run())
        await until(lambda: coordinator.servicer.counters()["late"])
        assert coordinator.units(chain(3)) == {}
        writer.cancel()


async def test_a_malformed_message_ends_the_stream_and_says_why() -> None:
    async with calling() as (caller, coordinator):
        call = await caller.greet()
        torn = pb.Delta(engine=A, added=[pb.MediumKeys(keys=b"torn")])
        await call.write(pb.AgentMessage(update=pb.Update(deltas=[torn])))
        text = "`keys` is not a multiple of 8 bytes"
        assert await ending(call) == (grpc.StatusCode.INVALID_ARGUMENT, text)
        counters = coordinator.servicer.counters()
        assert (counters["malformed"], counters["refused"]) == (1, 1)
        assert not coordinator.view(A).linked


async def test_an_engine_of_another_node_cannot_be_fed() -> None:
    async with calling() as (caller, coordinator):
        call = await caller.greet()
        log = DigestLog(B, 1)
        chunk = log.resume(log.generation, 99).next()
        await call.write(pb.AgentMessage(snapshot=encode_snapshot(chunk)))  # type: ignore[arg-type]
        status, delta = pb.EngineStatus(engine=B), DeltaPacker().pack(log.assurance())
        await call.write(pb.AgentMessage(update=pb.Update(statuses=[status], deltas=[delta])))
        await call.write(pb.AgentMessage())
        await until(lambda: coordinator.servicer.counters()["unknown_engine"] == 3)
        await until(lambda: coordinator.servicer.counters()["unknown_message"] == 1)
        assert coordinator.view(A).cache_state == "filling"


async def test_a_contradicted_digest_is_asked_for_again_once() -> None:
    async with calling() as (caller, coordinator):
        call = await caller.greet()
        log = DigestLog(A, 1)
        chunk = log.resume(log.generation, 99).next()
        await call.write(pb.AgentMessage(snapshot=encode_snapshot(chunk)))  # type: ignore[arg-type]
        for number in (5, 6, 7):
            late = pb.Delta(engine=A, generation=log.generation, digest_seq=number)
            await call.write(pb.AgentMessage(update=pb.Update(deltas=[late])))
        asked = [message async for message in first(call, 2)]
        assert pb.CoordinatorMessage(resync=pb.Resync(engine=A, reason="gap")) in asked
        assert coordinator.servicer.counters()["resyncs"] == 1
        assert coordinator.view(A).cache_state == "unsure"


async def first(call: Call, count: int) -> AsyncIterator[object]:
    async with asyncio.timeout(5):
        for _ in range(count):
            yield await call.read()


async def test_a_refused_agent_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    hub, coordinator = FakeHub(), Coordinator()
    coordinator.assign(engine(A))
    async with coordinator.up(), agent(hub, coordinator.address, token="guess") as reporter:
        await until(lambda: coordinator.servicer.counters()["refused"] >= 3)
        assert not reporter.connected
    said = [
        (record.message, vars(record)["fields"]["reason"])
        for record in caplog.records
        if record.name == "agent.report"
    ]
    reason = "the agent's token is missing or not the one that this coordinator expects"
    assert said == [("coordinator refuses this agent", f"UNAUTHENTICATED: {reason}")]
    assert "guess" not in caplog.text
    assert hub.words == []


async def test_a_coordinator_that_stops_says_so() -> None:
    coordinator = Coordinator()
    coordinator.assign(engine(A))
    async with AsyncExitStack() as stack:
        async with coordinator.up():
            channel = grpc.aio.insecure_channel(coordinator.address)
            await stack.enter_async_context(channel)
            call = await Caller(channel).greet()
        text = "the coordinator is stopping"
        assert await ending(call) == (grpc.StatusCode.UNAVAILABLE, text)


async def test_two_coordinators_cannot_share_an_address() -> None:
    async with Coordinator().up() as one:
        with pytest.raises(OSError, match="cannot listen"):
            async with Coordinator(address=one.address).up():
                pass
