"""One coordinator's stream: digests, status, load and GPUs up; what to read down.

Reads the latest of everything from the hub and keeps no queue: a coordinator that reads slowly gets
newer values later, and one snapshot instead of deltas that ran away. It reconnects for ever.
"""

import asyncio
import random
from typing import TypeAlias

import grpc

from agent import wire
from agent.assignment import Scheme
from agent.dialling import Line
from agent.stream import REASON_CHARS, Hub, Stream
from lineside import hashing, logs
from lineside.clock import Clock
from lineside.digest import PROTOCOL_MAX, PROTOCOL_MIN
from lineside.ids import EngineId, Generation, NodeId
from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc

HELLO_S = 10.0
"""For the coordinator's first message; connecting is part of it."""

BACKOFF_S = 0.2
BACKOFF_MAX_S = 2.0
"""A coordinator that is back has every agent again within this, however long it was gone."""
STEADY_S = 10.0
"""A stream that lasted this long starts the waiting anew when it ends."""

REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
"""Nothing changes until a person does something."""

log = logs.get("agent.report")

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.AgentMessage, pb.CoordinatorMessage]"


class _Unfit(Exception):
    """This agent and the coordinator cannot work together. Says which one to change."""


class Reporter:
    """Keeps one stream to one coordinator. `life` is new at each start of the agent."""

    def __init__(
        self,
        line: Line,
        node: NodeId,
        life: str,
        hub: Hub,
        clock: Clock,
    ) -> None:
        self.connected = False
        self.acked: dict[EngineId, tuple[Generation, int]] = {}
        """What the coordinator has applied of each engine, by its last word."""
        self._line = line
        self._node = node
        self._life = life
        self._welcome = False
        self._hub = hub
        self._clock = clock
        self._rng = random.Random()
        self._connection = 0
        self._state = ""

    async def run(self) -> None:
        """Report until cancelled."""
        changed = self._hub.subscribe()
        backoff_s = BACKOFF_S
        while True:
            began_at = self._clock.monotonic()
            self._connection += 1
            await self._try(changed)
            if _is_cancelled():
                raise asyncio.CancelledError
            if self._clock.monotonic() - began_at >= STEADY_S:
                backoff_s = BACKOFF_S
            await self._clock.sleep(backoff_s * self._rng.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _try(self, changed: asyncio.Event) -> None:
        """Keep one stream for as long as it lasts, and note how it ended."""
        event, reason = "stream lost", "the coordinator ended it"
        self._welcome = is_broken = False
        async with await self._line.channel() as channel:
            stub = rpc.AgentsStub(channel)  # type: ignore[no-untyped-call]
            call: Call = stub.Connect(metadata=await self._line.metadata())
            try:
                await self._talk(call, changed)
            except* _Unfit as errors:
                event, reason = "coordinator refused", str(errors.exceptions[0])
            except* TimeoutError:
                reason = f"no hello within {HELLO_S:.0f} s"
            except* grpc.aio.AioRpcError as errors:
                event, reason = _told(errors)
                is_broken = event == "stream lost"
            except* asyncio.InvalidStateError:  # written to after its end
                event, reason = _word(await call.code(), await call.details())
            finally:
                self.connected = False
                call.cancel()
        is_broken = is_broken and not self._welcome and not _is_cancelled()
        if is_broken and (why := await self._line.why()):
            event, reason = "no trust", why
        self._note(event, reason)

    async def _talk(self, call: Call, changed: asyncio.Event) -> None:
        async with asyncio.timeout(HELLO_S):
            known = self._hub.scheme()
            secret = b"" if known is None else known.secret
            await call.write(wire.hello(self._node, self._life, self._connection, secret))
            hello = _expect_hello(await call.read())
        scheme = _fitting(hello)
        self.connected = self._welcome = True
        self._note("connected", hello.coordinator)
        stream = Stream(self._hub, hello.coordinator, scheme, self.acked)
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(call, stream, changed))
                while isinstance(message := await call.read(), pb.CoordinatorMessage):
                    stream.hear(message, self._clock.monotonic())
                    changed.set()
                sending.cancel()
        finally:
            self._hub.peers.leave(hello.coordinator)
            self._hub.release(hello.coordinator)

    async def _send(self, call: Call, stream: Stream, changed: asyncio.Event) -> None:
        """Send whatever is due at every change, and heartbeats in between."""
        while True:
            changed.clear()
            while due := stream.due(self._clock.monotonic()):
                for message in due:
                    await call.write(message)  # waits while the coordinator does not read
            try:
                async with asyncio.timeout(stream.rest_s(self._clock.monotonic())):
                    await changed.wait()
            except TimeoutError:
                pass

    def _note(self, event: str, reason: str) -> None:
        """Log a change of state once, however often it is tried again."""
        state = f"{event}: {reason}"
        if state != self._state:
            say = log.info if event == "connected" else log.warning
            say(event, coordinator=self._line.address, reason=reason)
        self._state = state


def _is_cancelled() -> bool:
    """Tell whether this task was cancelled, though what it awaited raised something else.

    A task group whose tasks fail in the moment of a cancellation raises their errors alone (before
    Python 3.13): a coordinator's death hides our own end.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _told(errors: BaseExceptionGroup[grpc.aio.AioRpcError]) -> tuple[str, str]:
    """Return what ended a stream. When both directions failed, one may only know of the other."""
    told = [error for error in errors.exceptions if isinstance(error, grpc.aio.AioRpcError)]
    told.sort(key=lambda error: error.code() is grpc.StatusCode.CANCELLED)
    return _word(told[0].code(), told[0].details())


def _word(code: grpc.StatusCode, details: str | None) -> tuple[str, str]:
    event = "coordinator refuses this agent" if code in REFUSALS else "stream lost"
    return event, f"{code.name}: {(details or '')[:REASON_CHARS]}"


def _expect_hello(message: object) -> pb.CoordinatorHello:
    if not isinstance(message, pb.CoordinatorMessage) or message.WhichOneof("body") != "hello":
        raise _Unfit("the coordinator did not begin with a hello")
    return message.hello


def _fitting(hello: pb.CoordinatorHello) -> Scheme:
    """Return the coordinator's key scheme. Raises `_Unfit` where this agent cannot follow it."""
    if not PROTOCOL_MIN <= hello.protocol <= PROTOCOL_MAX:
        raise _Unfit(f"the coordinator answers in protocol {hello.protocol}, unknown to this agent")
    scheme = wire.scheme(hello)
    if (scheme.unit, scheme.hash) != (hashing.UNIT, hashing.HASH):
        raise _Unfit(
            f"the coordinator makes keys by `{scheme.hash[:20]}` over {scheme.unit} tokens, this"
            f" agent by `{hashing.HASH}` over {hashing.UNIT}: upgrade the older of the two"
        )
    return scheme
