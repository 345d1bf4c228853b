"""The agents' open streams and what they say: one writer applies it. No sockets.

Everything that agents report enters caches and signals here and nowhere else. No stream writes
anything itself: all go through one queue to one task, which never waits between taking a message
and applying it. A stream that was replaced, or an engine that was removed, writes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from coordinator.agents import wire
from coordinator.agents.fence import Fence
from coordinator.agents.session import Session
from coordinator.agents.wire import Message
from coordinator.cluster import Cluster
from coordinator.engines import Doubt
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import Feed
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own, Peers
from lineside import logs
from lineside.clock import Clock, heard_within
from lineside.digest import Delta, SnapshotChunk
from lineside.ids import EngineId, NodeId

QUEUE_MESSAGES = 64
"""Messages read and not applied, over all streams."""

CHORES_S = 0.01
"""Between two rounds of chores at least, and between two shards: a whole sweep takes 3 s."""

RESYNC_S = 0.1
"""Between resync requests, so that an agent which only sends nonsense is not asked in a circle."""

STORE_RETRY_S = 1.0
"""Between two tries to number an assignment while the store is away, and between two looks whether
it lost the number."""

TELL_S = 0.05
TELL_EACH_S = 0.0015
"""Between two looks at what agents are to be told of requests in flight: so long, or so long for
each of them where there are many, for each word costs as much as a request's part."""

ACK_S = 0.5
"""Between two rounds of chores while nothing asks for one: acks are due, and leases may be over."""

log = logs.get("coordinator.agents.sessions")


class Sessions:
    """One stream a node at most. `run` must run beside what enters and leaves."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        clock: Clock,
        numbering: Numbering,
        own: Own,
        peers: Peers,
    ) -> None:
        self.open: dict[NodeId, Session] = {}
        # Full: the stream's handler waits, reads no more, and HTTP/2 slows the agent down.
        self.queue: asyncio.Queue[tuple[Session, list[Message], float]] = asyncio.Queue(
            QUEUE_MESSAGES
        )
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._caches = caches
        self._clock = clock
        self._numbering = numbering
        self._own = own
        self._peers = peers
        self._fence = Fence()
        self._stirred, self._renumber = asyncio.Event(), asyncio.Event()
        """Set when something is due before its time: chores, and a number."""
        self._others = asyncio.Event()
        """Set while agents may have other coordinators to tell of us."""
        cluster.watch(self._assigned_anew)

    # --- streams that come and go -----------------------------------------------------------------

    def admit(self, session: Session) -> str:
        """Let a stream speak for its node from now on, or return why it may not."""
        return self._fence.admit(session.node, session.stream, session.node in self.open)

    def enter(self, session: Session) -> None:
        """Make this its node's only stream; the one before has left."""
        self.open[session.node] = session
        log.info("agent connected", node=session.node, connection=session.stream.connection)
        self._follow_assignment(session)

    def leave(self, session: Session) -> None:
        """Let go of a stream: what it says from here on counts for nothing."""
        if self.open.get(session.node) is not session:
            return
        del self.open[session.node]
        now = self._clock.monotonic()
        for engine in session.feeds:
            self._caches.disconnect(engine, session.stream, now)
        for engine in session.assigned:
            self._cluster.link(engine, False)
        self._peers.leave(session.node, now)
        log.info("agent disconnected", node=session.node, connection=session.stream.connection)

    def vouch(self, due: Mapping[EngineId, str]) -> None:
        """Tell agents of which engines what they say of a generation has proved right."""
        for session in self.open.values():
            session.vouch(due)

    def doubt(self, doubts: Mapping[EngineId, Doubt]) -> None:
        """Tell agents of which engines what they say of a generation has proved wrong."""
        for session in self.open.values():
            session.doubt(doubts)

    async def hear(self, session: Session, said: list[Message]) -> None:
        """Take in one message of a stream; waits while too many others do."""
        await self.queue.put((session, said, self._clock.monotonic()))

    # --- the one writer ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply what streams say, until cancelled. The only writer of caches and signals."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(), name="ingest")
            tasks.create_task(self._do_chores(), name="ingest chores")
            tasks.create_task(self._keep_number(), name="assignment number")
            tasks.create_task(self._keep_telling(), name="requests in flight")

    async def _write(self) -> None:
        while True:
            session, said, received_at = await self.queue.get()
            self._apply(session, said, received_at)
            await asyncio.sleep(0)  # a flood of messages must not keep requests waiting

    def _assigned_anew(self) -> None:
        self._stirred.set()
        self._renumber.set()

    async def _do_chores(self) -> None:
        """Do what is due, and wait for as long as nothing is: an idle coordinator sleeps."""
        resync_at = ack_at = 0.0
        while True:
            now = self._clock.monotonic()
            if now >= ack_at:
                self._expire(now)
            for session in self.open.values():
                self._follow_assignment(session)
                if (session.resyncs and now >= resync_at) or (session.acks and now >= ack_at):
                    session.wake.set()
            is_sweeping = self._caches.sweep_step()
            resync_at = now + RESYNC_S if now >= resync_at else resync_at
            ack_at = now + ACK_S if now >= ack_at else ack_at
            await self._clock.sleep(CHORES_S)
            due_at = min(ack_at, resync_at) if self._has_resyncs() else ack_at
            if not is_sweeping and due_at > (now := self._clock.monotonic()):
                await heard_within(self._stirred, due_at - now, self._clock)
            self._stirred.clear()

    def _has_resyncs(self) -> bool:
        return any(session.resyncs for session in self.open.values())

    def _expire(self, now: float) -> None:
        """Let go of what nobody has vouched for, and look whether what is held can be true."""
        self._caches.expire(now)
        if unclosed := self._caches.check():
            log.warning("holes in holdings", engines=unclosed)
        self._fence.keep({e.node for e in self._cluster.assigned()} | self.open.keys())

    async def _keep_telling(self) -> None:
        """Tell agents that have others to tell what is in flight on their engines."""
        while True:
            await self._others.wait()
            await self._clock.sleep(max(TELL_S, TELL_EACH_S * len(self.open)))
            now = self._clock.monotonic()
            self._peers.look(now)
            told = [each for each in self.open.values() if self._peers.has(each.node)]
            if not told:
                self._others.clear()
                continue
            self._own.look()
            for session in told:
                session.tell(self._own.word(list(session.assigned), now), now)

    async def _keep_number(self) -> None:
        """Number every assignment before it goes out."""
        while True:
            self._renumber.clear()
            away = self._numbering.away
            if self._numbering.is_due and await self._numbering.follow():
                for session in self.open.values():
                    session.is_assignment_due = True
                    session.wake.set()
            if away != self._numbering.away:
                log.warning("store", away=self._numbering.away or None)
            if self._numbering.away:
                await self._clock.sleep(STORE_RETRY_S)
            else:
                await heard_within(self._renumber, STORE_RETRY_S, self._clock)

    def _follow_assignment(self, session: Session) -> None:
        """Bring a stream in line with what discovery last said."""
        if session.revision == self._cluster.revision:
            return
        session.revision = self._cluster.revision
        before = session.assigned
        session.assigned = {e.id: e for e in self._cluster.assigned_to(session.node)}
        for gone in before.keys() - session.assigned.keys():
            session.feeds.pop(gone, None)
            self._caches.disconnect(gone, session.stream, self._clock.monotonic())
            # It may have moved to a node whose stream was brought in line before this one.
            moved = any(gone in other.feeds for other in self.open.values())
            self._cluster.link(gone, moved)
        for engine in session.assigned:
            self._cluster.link(engine, True)
            self._resume(session, engine)
        session.is_assignment_due = True
        session.wake.set()

    def _resume(self, session: Session, engine: EngineId) -> None:
        """Ask the agent to go on where the engine's feed stands, unless this stream feeds it."""
        feed = self._caches.feed(engine)
        if feed is None or session.feeds.get(engine) is feed:
            return
        session.feeds[engine] = feed
        session.resumes[engine] = feed.connect(session.stream)
        session.resyncs.pop(engine, None)
        self._note_digest(feed, self._clock.monotonic())

    def _apply(self, session: Session, said: list[Message], received_at: float) -> None:
        """Apply one message of a stream: what it says of several engines, in one step."""
        if self.open.get(session.node) is not session:
            self.counts["late"] += 1
            return
        self._follow_assignment(session)
        for message in said:
            self._take(session, message, received_at)

    def _take(self, session: Session, message: Message, received_at: float) -> None:
        match message:
            case SnapshotChunk() | Delta():
                self._apply_digest(session, message, received_at)
            case wire.Peers(words):
                self._others.set()
                self._peers.hear(session.node, words, session.assigned, received_at)
            case wire.NodeGpu(gpus, age_s):
                self._cluster.observe_gpus(session.node, gpus, received_at - age_s)
            case wire.EngineStatus() | wire.EngineLoad() if message.engine not in session.assigned:
                self.counts["unknown_engine"] += 1
            case wire.EngineStatus(engine, status, age_s):
                self._cluster.observe_status(engine, status, received_at - age_s)
            case wire.EngineLoad(engine, load, age_s):
                self._cluster.observe_load(engine, load, received_at - age_s)

    def _apply_digest(
        self, session: Session, message: SnapshotChunk | Delta, received_at: float
    ) -> None:
        engine = message.engine
        feed = session.feeds.get(engine)
        if feed is None or self._caches.feed(engine) is not feed:
            self.counts["unknown_engine"] += 1
            return
        if reason := self._caches.apply(session.stream, message):
            log.warning("digest diverged", engine=engine, reason=reason.value)
            self.counts["resyncs"] += 1
            session.resyncs[engine] = reason  # sent by the chores, at their pace
            self._stirred.set()
        session.acks.add(engine)
        self._note_digest(feed, received_at)

    def _note_digest(self, feed: Feed, heard_at: float) -> None:
        holding = feed.visible
        self._cluster.observe_digest(
            feed.engine,
            holding.generation if holding else "",
            live=holding is not None,
            diverged=holding is not None and not feed.current,
            heard_at=heard_at,
            hit_points=holding is not None and holding.hit_points,
            removed=holding.removed if holding else 0,
        )
