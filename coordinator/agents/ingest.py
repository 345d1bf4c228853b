"""The agents' streams as gRPC has them: handshake, refusals, bounds, flow control.

Generated types stop here. What a stream says goes to `sessions`, whose one writer applies it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from coordinator.agents import wire
from coordinator.agents.session import Session
from coordinator.agents.sessions import Sessions
from coordinator.cluster import Cluster
from coordinator.engines import Doubt
from coordinator.holdings.caches import Caches
from coordinator.holdings.feed import Stream
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own, Peers
from coordinator.state.secret import SECRET_BYTES, Secret
from coordinator.trust.proof import Proof, Shown, Why
from lineside import logs
from lineside.clock import Clock
from lineside.digest import PROTOCOL_MAX, PROTOCOL_MIN, MalformedDigest
from lineside.ids import EngineId, NodeId
from lineside.schema import bound
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc

HELLO_S = 10.0
"""For an agent's first message."""

MOST_STREAMS = 10_000
"""At a time, those that have not said who they are among them; another is `RESOURCE_EXHAUSTED`."""

CLOSE_S = 1.0
"""What a stream gets to end in when the coordinator stops; it never ends by itself."""

MAX_NAME = 253
"""Characters of a node's name or a life."""

OPTIONS = [
    ("grpc.max_receive_message_length", 4 * 2**20),  # twice 65,536 keys and their frame fit
    ("grpc.so_reuseport", 0),  # a second coordinator on the same address is an error
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]

COUNTED = ("refused", "malformed", "late", "unknown_engine", "unknown_message", "resyncs")

CODES = {
    Why.UNKNOWN: grpc.StatusCode.UNAUTHENTICATED,
    Why.NOT_ITS_NODE: grpc.StatusCode.PERMISSION_DENIED,
    Why.CANNOT_TELL: grpc.StatusCode.UNAVAILABLE,
}

log = logs.get("coordinator.agents.ingest")

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
    """`lineside.v1.Agents`. `run` must run beside it. `noted` hears of each agent refused."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        caches: Caches,
        secret: Secret,
        clock: Clock,
        coordinator: str,
        proof: Proof,
        numbering: Numbering,
        own: Own,
        peers: Peers,
        noted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.sessions = Sessions(cluster, caches, clock, numbering, own, peers)
        self._proof = proof
        self._noted = noted
        self._secret = secret
        # Agents keep each coordinator's word by its name: replicas share one configuration.
        self._coordinator = f"{coordinator}-{secrets.token_hex(4)}"
        peers.call_me(self._coordinator)
        self._numbering = numbering
        self._last_refusal = ""

    @property
    def name(self) -> str:
        """What agents know this coordinator by; no other has the same."""
        return self._coordinator

    def counters(self) -> dict[str, int]:
        """Return what was counted since the start, and how many `streams` are open."""
        counts = self.sessions.counts
        return {"streams": len(self.sessions.open), **{name: counts[name] for name in COUNTED}}

    async def run(self) -> None:
        """Apply what streams say, until cancelled."""
        await self.sessions.run()

    def vouch(self, due: Mapping[EngineId, str]) -> None:
        """Tell agents of which engines what they say of a generation has proved right."""
        self.sessions.vouch(due)

    def doubt(self, doubts: Mapping[EngineId, Doubt]) -> None:
        """Tell agents of which engines what they say of a generation has proved wrong."""
        self.sessions.doubt(doubts)

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
        # Not before: an agent that is still writing would not hear why.
        await self._authenticate(context, NodeId(hello.node[:MAX_NAME]))
        self._check(hello)
        secret = self._known(hello)
        session = self._enter(hello)
        try:
            spoken = min(hello.protocol_max, PROTOCOL_MAX)
            await context.write(wire.hello(spoken, self._coordinator, secret))
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(session, context))
                await self._receive(requests, session)
                sending.cancel()
        finally:
            self.sessions.leave(session)

    async def _authenticate(self, context: Context, node: NodeId) -> None:
        if denied := await self._proof.judge(_shown(context), node):
            self._noted(denied.text)
            raise _Refused(CODES[denied.why], denied.text)

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

    def _known(self, hello: pb.AgentHello) -> bytes:
        """Return the cluster's secret, if need be the one that the agent brings along."""
        if len(hello.secret) == SECRET_BYTES and self._secret.learn(hello.secret):
            log.warning("secret taken over from an agent", node=hello.node)
        if self._secret.value is None:
            text = "the store is away, and the cluster's secret is not known without it"
            raise _Refused(grpc.StatusCode.UNAVAILABLE, text)
        return self._secret.value

    def _enter(self, hello: pb.AgentHello) -> Session:
        """Make this the node's only stream. Raises `_Refused` if the one before is newer."""
        session = Session(NodeId(hello.node), Stream(hello.life, hello.connection))
        if why_not := self.sessions.admit(session):
            raise _Refused(grpc.StatusCode.ABORTED, why_not)
        if before := self.sessions.open.get(session.node):
            text = f"a newer connection of node `{session.node}` took over"
            self._end(before, _Ended(grpc.StatusCode.ABORTED, text))
        self.sessions.enter(session)
        return session

    def close(self) -> None:
        """End every stream: the process is about to."""
        stopping = _Ended(grpc.StatusCode.UNAVAILABLE, "the coordinator is stopping")
        for session in list(self.sessions.open.values()):
            self._end(session, stopping)

    def _end(self, session: Session, reason: _Ended) -> None:
        self.sessions.leave(session)
        session.ended = reason
        session.wake.set()

    async def _receive(self, requests: Requests, session: Session) -> None:
        """Read until the agent ends the stream. Raises `_Refused` for what cannot be read."""
        async for request in requests:
            try:
                said = wire.decode(request, session.deltas)
            except MalformedDigest as error:
                self.sessions.counts["malformed"] += 1
                raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
            if said:
                await self.sessions.hear(session, said)
            else:
                self.sessions.counts["unknown_message"] += 1

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
        self.sessions.counts["refused"] += 1
        if refused.text != self._last_refusal:
            log.warning("agent refused", status=refused.code.name, reason=refused.text)
        self._last_refusal = refused.text


def _shown(context: Context) -> Shown:
    """Return what an agent shows of itself; gRPC has verified its certificate, if it has one."""
    sent = dict(context.invocation_metadata() or ()).get("authorization", "")
    said = context.auth_context()
    return Shown(
        sent if isinstance(sent, str) else sent.decode(errors="replace"),
        [each.decode(errors="replace") for each in said.get("peer_uri", ())],
        [each.decode(errors="replace") for each in said.get("peer_dns", ())],
    )


def _first(reasons: BaseExceptionGroup[_Refused]) -> _Refused:
    """Return one of the reasons; there are two when both directions end at once."""
    first = reasons.exceptions[0]
    return first if isinstance(first, _Refused) else _first(first)


@asynccontextmanager
async def serving(
    servicer: AgentsServicer, address: str, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[str]:
    """Serve agents on HOST:PORT; yields the address with the port that was bound.

    Without credentials in plaintext. Raises `OSError` where the address cannot be had.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_STREAMS)
    rpc.add_AgentsServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        if credentials is None:
            port = server.add_insecure_port(bound(address))
        else:
            port = server.add_secure_port(bound(address), credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on `{address}` for agents") from error
    await server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        servicer.close()
        await server.stop(CLOSE_S)
