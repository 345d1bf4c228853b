"""When the writer of agents' streams wakes: at once where something is due, else hardly ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from agent.digest_log import DigestLog
from coordinator.agents.session import Session
from coordinator.agents.sessions import ACK_S, CHORES_S, RESYNC_S, TELL_EACH_S, TELL_S, Sessions
from coordinator.agents.wire import Message
from coordinator.agents.wire import Peers as Words
from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import LEASE_S, Reason, Stream
from coordinator.holdings.overlay import Overlay
from coordinator.load.inflight import InFlight
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own, Peers, Word
from coordinator.state.stores.sqlite import SqliteStore
from lineside.digest import SnapshotChunk
from lineside.ids import BlockKey, EngineId, Generation, GroupId, Medium, NodeId
from tests.manual_clock import ManualClock, settle

A, B, G, NODE = EngineId("a"), EngineId("b"), GroupId("g"), NodeId("n")
FAR = 1e9


class CountingClock(ManualClock):
    """Counts what went to sleep."""

    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


class Writer:
    """The writer, all that it writes to, and a stream of one node."""

    def __init__(self) -> None:
        self.clock, self.cluster, self.caches = CountingClock(), Cluster(), Caches()
        self.inflight, self.peers = InFlight(), Peers()
        self.store = SqliteStore(":memory:")
        self.numbering = Numbering(self.store, self.cluster)
        own = Own(self.inflight, Overlay())
        self.sessions = Sessions(
            self.cluster, self.caches, self.clock, self.numbering, own, self.peers
        )
        self.session = Session(NODE, Stream("life", 1))

    async def assign(self, *names: EngineId) -> None:
        engines = [Engine(name, f"http://{name}", name, G, (), NODE, stride=1) for name in names]
        self.cluster.assign(engines)
        self.caches.assign({each.id: each.group for each in engines})
        async with asyncio.timeout(5):  # the store has a thread of its own
            while self.numbering.is_due:  # noqa: ASYNC110 - nobody rings
                await asyncio.sleep(0.001)
        await settle()

    async def hear(self, *said: Message) -> None:
        await self.sessions.hear(self.session, list(said))
        await settle()

    def woken(self) -> bool:
        """Whether something is to be sent at once; takes it as sent."""
        is_due = self.session.wake.is_set()
        self.session.wake.clear()
        if is_due:
            list(self.session.due(1))
        return is_due


@asynccontextmanager
async def running(*engines: EngineId) -> AsyncIterator[Writer]:
    writer = Writer()
    task = asyncio.create_task(writer.sessions.run())
    try:
        await writer.assign(*engines)
        writer.sessions.enter(writer.session)
        assert writer.woken()
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await writer.store.close()


def snapshot(engine: EngineId, keys: int) -> list[SnapshotChunk]:
    log = DigestLog(engine, 1)
    log.restart(1, {BlockKey(key): Medium.GPU for key in range(1, keys + 1)})
    cursor, chunks = log.resume(Generation(""), 0), list[SnapshotChunk]()
    while isinstance(part := cursor.next(), SnapshotChunk):
        chunks.append(part)
    return chunks


async def test_one_with_nothing_to_do_sleeps() -> None:
    async with running(A) as writer:
        await writer.clock.advance(1.0)
        writer.clock.sleeps = 0
        await writer.clock.advance(10.0)
        assert 10 <= writer.clock.sleeps <= 10 * (2 / ACK_S + 1) + 2
        assert not writer.woken()


async def test_another_assignment_goes_out_at_once() -> None:
    async with running(A) as writer:
        await writer.clock.advance(1.2)  # not just after a round
        before = writer.clock.now
        await writer.assign(A, B)
        assert (writer.woken(), writer.clock.now) == (True, before)
        assert set(writer.session.assigned) == {A, B}


async def test_assignments_that_follow_closely_go_out_together() -> None:
    async with running(A) as writer:
        await writer.clock.advance(1.2)
        await writer.assign(A, B)
        assert writer.woken()
        await writer.assign(A)
        await writer.assign(B)
        writer.woken()  # each number wakes; the engines are those of the round before
        assert set(writer.session.assigned) == {A, B}
        await writer.clock.advance(CHORES_S)
        assert set(writer.session.assigned) == {B}


async def test_a_resync_is_asked_for_at_once_and_the_next_one_in_its_turn() -> None:
    async with running(A) as writer:
        await writer.clock.advance(ACK_S + CHORES_S)
        writer.woken()
        await writer.clock.advance(RESYNC_S)
        (chunk,) = snapshot(A, 2)
        wrong = replace(chunk, checksum=chunk.checksum + 1)
        await writer.hear(wrong)
        assert writer.session.resyncs == {A: Reason.CHECKSUM}
        assert writer.woken()
        await writer.clock.advance(CHORES_S)
        await writer.hear(wrong)
        assert not writer.woken()
        await writer.clock.advance(RESYNC_S)
        assert writer.woken()


async def test_what_was_applied_is_said_twice_a_second() -> None:
    async with running(A) as writer:
        for chunk in snapshot(A, 2):
            await writer.hear(chunk)
        assert not writer.woken()
        assert writer.session.acks == {A}
        await writer.clock.advance(ACK_S)
        assert writer.woken()
        assert writer.session.acks == set()


async def test_sweeping_begins_within_half_a_second_and_goes_on_shard_by_shard() -> None:
    async with running(A, B) as writer:
        for engine in (A, B):
            for chunk in snapshot(engine, 1000):
                await writer.hear(chunk)
        await writer.assign(B)
        await writer.clock.advance(ACK_S)
        index = writer.caches._indexes()[0]
        assert index._sweep is not None
        await writer.clock.advance(256 * CHORES_S)
        assert index._sweep is None


async def test_leases_of_lost_streams_end() -> None:
    async with running(A) as writer:
        for chunk in snapshot(A, 2):
            await writer.hear(chunk)
        writer.sessions.leave(writer.session)
        await writer.clock.advance(LEASE_S - 2 * ACK_S)
        assert writer.caches.size()[0] == 2
        await writer.clock.advance(3 * ACK_S + 256 * CHORES_S)
        assert writer.caches.size()[0] == 0


async def test_many_agents_are_told_less_often() -> None:
    async with running(A) as writer:
        await writer.hear(Words([Word("another", {}, None)]))
        await writer.clock.advance(TELL_S)
        many = int(2 * TELL_S / TELL_EACH_S)
        for number in range(1, many):
            writer.sessions.enter(Session(NodeId(f"n{number}"), Stream("life", 1)))
        await writer.clock.advance(TELL_S)  # of the wait that began before they came
        writer.inflight.take(A, 5, own_s=1.0, now=writer.clock.now, deadline=FAR)
        await writer.clock.advance(1.9 * TELL_S)
        assert dict(writer.session.told) == {}
        await writer.clock.advance(0.1 * TELL_S)
        assert set(writer.session.told) == {A}


async def test_agents_are_told_of_requests_for_as_long_as_they_have_others_to_tell() -> None:
    async with running(A) as writer:
        writer.inflight.take(A, 5, own_s=1.0, now=writer.clock.now, deadline=FAR)
        await writer.clock.advance(2.0)
        assert dict(writer.session.told) == {}
        await writer.hear(Words([Word("another", {}, None)]))
        await writer.clock.advance(TELL_S)
        assert set(writer.session.told) == {A}
        writer.inflight.take(A, 5, own_s=1.0, now=writer.clock.now, deadline=FAR)
        await writer.clock.advance(TELL_S)
        assert writer.session.told[A].outstanding == 2
        await writer.hear(Words([]))
        await writer.clock.advance(TELL_S)
        writer.clock.sleeps = 0
        await writer.clock.advance(1.0)
        assert writer.clock.sleeps <= 2 / ACK_S + 2
