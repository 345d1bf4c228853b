"""The agents' streams: handshake, order, bounds; one writer applies what they say.

Everything that agents report enters here and nowhere else. Generated types stop here. No stream
writes anything itself: all go through one queue to one task, which never waits between taking a
message and applying it. A stream that was replaced, or an engine that was removed, writes nothing.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from coordinator import wire
from coordinator.caches import Caches
from coordinator.cluster import Cluster
from coordinator.engines import Doubt
from coordinator.feed import Feed, Stream
from coordinator.fence import Fence
from coordinator.numbering import Numbering
from coordinator.session import Session
from coordinator.wire import Message
from lineside import logs
from lineside.clock import Clock
from lineside.digest import PROTOCOL_MAX, PROTOCOL_MIN, Delta, MalformedDigest, SnapshotChunk
from lineside.ids import EngineId, NodeId
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc

HELLO_S = 10.0
"""For an agent's first message."""

QUEUE_MESSAGES = 64
"""Messages read and not applied, over all streams."""

CHORES_S = 0.01
"""Between two looks for a new assignment and for a shard to sweep: a whole sweep takes 3 s."""

RESYNC_S = 0.1
"""Between resync requests, so that an agent which only sends nonsense is not asked in a circle."""

STORE_RETRY_S = 1.0
"""Between two tries to number an assignment while the store is away."""

ACK_S = 0.5
EXPIRE_S = 1.0

CLOSE_S = 1.0
"""What a stream gets to end in when the coordinator stops; it never ends by itself."""

MAX_NAME = 253
"""Characters of a node's name or a life."""

COUNTED = ("refused", "malformed", "late", "unknown_engine", "unknown_message", "resyncs")

OPTIONS = [
    ("grpc.max_receive_message_length", 4 * 2**20),  # twice 65,536 keys and their frame fit
    ("grpc.so_reuseport", 0),  # a second coordinator on the same address is an error
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]

log = logs.get("coordinator.ingest")

Requests: TypeAlias = AsyncIterator[pb.AgentMessage]
Context: TypeAlias = "grpc.aio.ServicerContext[pb.AgentMessage, pb.CoordinatorMessage]"


@dataclass(eq=False)
class _Refused(Exception):
    """A stream is closed by us: a status and one sentence for the agent's operator."""

    code: grpc.StatusCode
    text: str


class _Ended(_Refused):
    """A stream that was in order is closed all the same."""


class AgentsServicer(rpc.AgentsServicer):
    """`lineside.v1.Agents`. `run` must run beside it. `token` `None`: none is asked for."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        secret: bytes,
        clock: Clock,
        coordinator: str,
        token: str | None,
        numbering: Numbering,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._clock = clock
        self._token = token
        self._secret = secret
        self._coordinator = coordinator
        self._sessions: dict[NodeId, Session] = {}
        self._fence = Fence()
        self._numbering = numbering
        # Full: the stream's handler waits, reads no more, and HTTP/2 slows the agent down.
        self._queue: asyncio.Queue[tuple[Session, list[Message], float]] = asyncio.Queue(
            QUEUE_MESSAGES
        )
        self._counts: Counter[str] = Counter()
        self._last_refusal = ""

    def counters(self) -> dict[str, int]:
        """Return what was counted since the start, and how many `streams` are open."""
        return {"streams": len(self._sessions), **{name: self._counts[name] for name in COUNTED}}

    # --- one stream -------------------------------------------------------------------------------

    async def Connect(self, requests: Requests, context: Context) -> None:
        """Serve one stream until either side ends it."""
        refused: _Refused | None = None
        try:
            await self._serve(requests, context)
        except* _Refused as reasons:
            refused = _first(reasons)
        except* grpc.aio.InternalError:
            pass  # the agent went away while we wrote to it
        if refused is not None:
            self._note(refused)
            await context.abort(refused.code, refused.text)

    async def _serve(self, requests: Requests, context: Context) -> None:
        hello = await self._read_hello(requests)
        self._authenticate(context)  # not before: an agent still writing would not hear why
        self._check(hello)
        session = self._enter(hello)
        try:
            spoken = min(hello.protocol_max, PROTOCOL_MAX)
            await context.write(wire.hello(spoken, self._coordinator, self._secret))
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(session, context))
                await self._receive(requests, session)
                sending.cancel()
        finally:
            self._leave(session)

    def _authenticate(self, context: Context) -> None:
        if self._token is None:
            return
        sent = dict(context.invocation_metadata() or ()).get("authorization", "")
        given = sent if isinstance(sent, bytes) else sent.encode()
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            text = "the agent's token is missing or not the one that this coordinator expects"
            raise _Refused(grpc.StatusCode.UNAUTHENTICATED, text)

    async def _read_hello(self, requests: Requests) -> pb.AgentHello:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(aiter(requests), pb.AgentMessage())
        except TimeoutError:
            text = f"no hello within {HELLO_S:.0f} s"
            raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        if first.WhichOneof("body") != "hello":
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with a hello")
        return first.hello

    def _check(self, hello: pb.AgentHello) -> None:
        if hello.protocol_min > PROTOCOL_MAX or hello.protocol_max < PROTOCOL_MIN:
            text = (
                f"the agent speaks protocol {hello.protocol_min} to {hello.protocol_max}, this"
                f" coordinator {PROTOCOL_MIN} to {PROTOCOL_MAX}: upgrade the older of the two"
            )
            raise _Refused(grpc.StatusCode.FAILED_PRECONDITION, text)
        names = (hello.node, hello.life)
        if not all(names) or max(map(len, names)) > MAX_NAME or not hello.connection:
            text = "the hello lacks `node`, `life` or `connection`, or one is too long"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, text)

    def _enter(self, hello: pb.AgentHello) -> Session:
        """Make this the node's only stream. Raises `_Refused` if the one before is newer."""
        session = Session(NodeId(hello.node), Stream(hello.life, hello.connection))
        before = self._sessions.get(session.node)
        if why_not := self._fence.admit(session.node, session.stream, before is not None):
            raise _Refused(grpc.StatusCode.ABORTED, why_not)
        if before:
            text = f"a newer connection of node `{session.node}` took over"
            self._end(before, _Ended(grpc.StatusCode.ABORTED, text))
        self._sessions[session.node] = session
        log.info("agent connected", node=session.node, connection=hello.connection)
        self._follow_assignment(session)
        return session

    def vouch(self, due: Mapping[EngineId, str]) -> None:
        """Tell agents of which engines what they say of a generation has proved right."""
        for session in self._sessions.values():
            session.vouch(due)

    def doubt(self, doubts: Mapping[EngineId, Doubt]) -> None:
        """Tell agents of which engines what they say of a generation has proved wrong."""
        for session in self._sessions.values():
            session.doubt(doubts)

    def close(self) -> None:
        """End every stream: the process is about to."""
        stopping = _Ended(grpc.StatusCode.UNAVAILABLE, "the coordinator is stopping")
        for session in list(self._sessions.values()):
            self._end(session, stopping)

    def _end(self, session: Session, reason: _Ended) -> None:
        self._leave(session)
        session.ended = reason
        session.wake.set()

    def _leave(self, session: Session) -> None:
        """Let go of a stream: what it says from here on counts for nothing."""
        if self._sessions.get(session.node) is not session:
            return
        del self._sessions[session.node]
        now = self._clock.monotonic()
        for engine in session.feeds:
            self._caches.disconnect(engine, session.stream, now)
        for engine in session.assigned:
            self._cluster.link(engine, False)
        log.info("agent disconnected", node=session.node, connection=session.stream.connection)

    async def _receive(self, requests: Requests, session: Session) -> None:
        """Read until the agent ends the stream. Raises `_Refused` for what cannot be read."""
        async for request in requests:
            try:
                said = wire.decode(request, session.deltas)
            except MalformedDigest as error:
                self._counts["malformed"] += 1
                raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
            if said:
                await self._queue.put((session, said, self._clock.monotonic()))
            else:
                self._counts["unknown_message"] += 1

    async def _send(self, session: Session, context: Context) -> None:
        """Send what is due, whenever something is. Raises why the stream was ended."""
        while True:
            await session.wake.wait()
            session.wake.clear()
            if session.ended:
                raise session.ended
            if session.is_assignment_due and session.revision != self._numbering.revision:
                continue  # its number comes from the store, and wakes us
            for message in list(session.due(self._numbering.number)):
                await context.write(message)

    def _note(self, refused: _Refused) -> None:
        """Count a refusal; log it unless it only repeats the last one."""
        if isinstance(refused, _Ended):
            return
        self._counts["refused"] += 1
        if refused.text != self._last_refusal:
            log.warning("agent refused", status=refused.code.name, reason=refused.text)
        self._last_refusal = refused.text

    # --- the one writer ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply what streams say, until cancelled. The only writer of caches and signals."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(), name="ingest")
            tasks.create_task(self._do_chores(), name="ingest chores")
            tasks.create_task(self._keep_number(), name="assignment number")

    async def _write(self) -> None:
        while True:
            session, said, received_at = await self._queue.get()
            self._apply(session, said, received_at)
            await asyncio.sleep(0)  # a flood of messages must not keep requests waiting

    async def _do_chores(self) -> None:
        """Follow discovery, sweep, let leases expire. Never waits half-way through a change."""
        resync_at = ack_at = expire_at = 0.0
        while True:
            await self._clock.sleep(CHORES_S)
            now = self._clock.monotonic()
            for session in self._sessions.values():
                self._follow_assignment(session)
                if (session.resyncs and now >= resync_at) or (session.acks and now >= ack_at):
                    session.wake.set()
            self._caches.sweep_step()
            resync_at = now + RESYNC_S if now >= resync_at else resync_at
            ack_at = now + ACK_S if now >= ack_at else ack_at
            if now >= expire_at:
                expire_at = now + EXPIRE_S
                self._caches.expire(now)
                if unclosed := self._caches.check():
                    log.warning("holes in holdings", engines=unclosed)
                self._fence.keep({e.node for e in self._cluster.assigned()} | self._sessions.keys())

    async def _keep_number(self) -> None:
        """Number every assignment before it goes out."""
        while True:
            away = self._numbering.away
            if self._numbering.is_due and await self._numbering.follow():
                for session in self._sessions.values():
                    session.is_assignment_due = True
                    session.wake.set()
            if away != self._numbering.away:
                log.warning("store", away=self._numbering.away or None)
            await self._clock.sleep(STORE_RETRY_S if self._numbering.away else CHORES_S)

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
            moved = any(gone in other.feeds for other in self._sessions.values())
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
        if self._sessions.get(session.node) is not session:
            self._counts["late"] += 1
            return
        self._follow_assignment(session)
        for message in said:
            self._take(session, message, received_at)

    def _take(self, session: Session, message: Message, received_at: float) -> None:
        match message:
            case SnapshotChunk() | Delta():
                self._apply_digest(session, message, received_at)
            case wire.NodeGpu(gpus, age_s):
                self._cluster.observe_gpus(session.node, gpus, received_at - age_s)
            case wire.EngineStatus() | wire.EngineLoad() if message.engine not in session.assigned:
                self._counts["unknown_engine"] += 1
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
            self._counts["unknown_engine"] += 1
            return
        if reason := self._caches.apply(session.stream, message):
            log.warning("digest diverged", engine=engine, reason=reason.value)
            self._counts["resyncs"] += 1
            session.resyncs[engine] = reason  # sent by the chores, at their pace
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
        )


def _first(reasons: BaseExceptionGroup[_Refused]) -> _Refused:
    """Return one of the reasons; there are two when both directions end at once."""
    first = reasons.exceptions[0]
    return first if isinstance(first, _Refused) else _first(first)


@asynccontextmanager
async def serving(servicer: AgentsServicer, address: str) -> AsyncIterator[str]:
    """Serve agents on HOST:PORT; yields the address with the port that was bound.

    Raises `OSError` where the address cannot be had.
    """
    server = grpc.aio.server(options=OPTIONS)
    rpc.add_AgentsServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on `{address}` for agents") from error
    await server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        servicer.close()
        await server.stop(CLOSE_S)
