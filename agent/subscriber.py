"""One engine's event publisher, read in order: what went missing is asked for again, or named.

The agent's only ZMQ import. Written for one reader; keeps no events, only where it is in them.

Two facts shape it. A publisher numbers its messages from 0 in each of its lives and says nothing
else of its life. And a replay proves nothing by ending: the engine drops replies that do not fit
its send queue, from anywhere, and may send the end marker all the same. So a replay counts as
whole when asking again from the first number missing brings nothing more.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import zmq
import zmq.asyncio

from agent.kv_events import Batch, Undecodable, decode, is_replay_end, replay_request

SILENCE_S = 2.0
"""A replay that says nothing for this long is over; the engine serves one within 0.1 s."""

SILENT_REPLAYS = 3
"""After as many silent replays on end a gap is taken for lost."""

# Full: libzmq stops reading from the connection, and the rest waits in the engine's send queue.
# What that drops in turn is a gap here, and asked for again.
LIVE_QUEUE = 1_000
REPLAY_QUEUE = 4_000

MAX_MESSAGE_BYTES = 64 * 2**20
"""A longer message is no engine's: libzmq drops the connection and reconnects."""

OVERRUN = "the engine's replay buffer does not have it"

HEARTBEAT_MS = 10_000
"""Finds a connection whose other end went without a word, as with the network of a lost pod."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches `first` to `next - 1` did not come when they were due.

    Not `lost`: they follow, or a lost gap says which of them do not. Lost: they never will.
    """

    first: int
    next: int
    lost: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine began a new life with an empty cache; what follows is of that life."""


Item: TypeAlias = Batch | Gap | Restarted


class CannotSubscribe(Exception):
    """An endpoint that cannot be bound or is no address."""


class Subscriber:
    """Reads one publisher.

    `replay`: empty where it has no replay socket. `bind`: the publisher connects to us. `topic` is
    a prefix; empty: everything.
    """

    def __init__(
        self,
        events: str,
        replay: str = "",
        *,
        bind: bool = False,
        topic: str = "",
        silence_s: float = SILENCE_S,
    ) -> None:
        self._events, self._replay = events, replay
        self._bind, self._topic = bind, topic
        self._silence_s = silence_s
        self._next = 0  # the number that is due
        self._live = -1  # the last number that came by itself, not replayed
        self._ts = 0.0  # the time in the last batch passed on
        self.undecodable = 0
        """Messages of which nothing could be read. With a number they are lost gaps as well."""

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield batches in order, from the oldest that the engine still has, for ever.

        Close the iterator (`contextlib.aclosing`) to close the sockets. Raises `CannotSubscribe`.
        """
        context = zmq.asyncio.Context()
        try:
            live = self._open_live(context)
            if self._replay:  # an idle engine publishes nothing, however much it holds
                async with aclosing(self._catch_up(context, None)) as replayed:
                    async for missed in replayed:
                        yield missed
            while True:
                came = self._read(await live.recv_multipart())
                if came is not None:
                    async with aclosing(self._in_order(context, came)) as ordered:
                        async for item in ordered:
                            yield item
        finally:
            context.destroy(linger=0)

    async def _in_order(
        self, context: zmq.asyncio.Context, came: Batch | Gap
    ) -> AsyncGenerator[Item, None]:
        """Yield what is missing before a live message, then the message."""
        seq = _seq(came)
        if self._is_of_a_new_life(came):
            self._next = 0
            yield Restarted()
        elif seq < self._next:
            self._live = seq
            return  # a replay brought it already
        self._live = seq
        if seq > self._next and self._replay:
            yield Gap(self._next, seq, lost=False, reason="asking the engine again")
            async with aclosing(self._catch_up(context, seq)) as replayed:
                async for item in replayed:
                    yield item
        elif seq > self._next:
            yield Gap(self._next, seq, lost=True, reason="the engine has no replay socket")
        yield self._passed(came)

    def _is_of_a_new_life(self, came: Batch | Gap) -> bool:
        """Tell a restarted engine's message from one that a replay has overtaken.

        A live number never goes back within a life. Where only a replay has been as far, the time
        decides: one life's batches are stamped in order.
        """
        if _seq(came) <= self._live:
            return True
        return isinstance(came, Batch) and came.seq < self._next and came.ts > self._ts

    async def _catch_up(
        self, context: zmq.asyncio.Context, until: int | None
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Yield what is due before `until`, replayed; `None`: as far as the engine has any."""
        silent = 0
        while until is None or self._next < until:
            asked = self._next
            try:
                async with aclosing(self._replay_once(context, until)) as replayed:
                    async for item in replayed:
                        yield item
                ended = True
            except TimeoutError:
                ended = False
            if self._next > asked:
                silent = 0
                continue
            silent += not ended
            if ended or until is None or silent == SILENT_REPLAYS:
                break
        if until is not None and self._next < until:
            reason = "the engine's replay socket is silent" if silent else OVERRUN
            yield Gap(self._next, until, lost=True, reason=reason)
            self._next = until

    async def _replay_once(
        self, context: zmq.asyncio.Context, until: int | None
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Yield one request's replies as far as there is no hole. Raises `TimeoutError`."""
        asked = self._next
        async with aclosing(self._replies(context, asked)) as replies:
            async for reply in replies:
                seq = _seq(reply)
                if until is not None and seq >= until:
                    return
                if seq > self._next > asked:
                    return  # a hole: the next request starts there
                if seq > self._next:  # nothing was dropped yet: the engine's buffer begins here
                    yield Gap(self._next, seq, lost=True, reason=OVERRUN)
                if seq >= self._next:
                    yield self._passed(reply)

    async def _replies(
        self, context: zmq.asyncio.Context, first: int
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Yield replies to one request until the end marker. Raises `TimeoutError` on silence."""
        # A socket of its own: what is left of an earlier replay must not be taken for this one's.
        socket = context.socket(zmq.DEALER)
        try:
            socket.rcvhwm = REPLAY_QUEUE
            self._connect(socket, self._replay)
            await socket.send_multipart(replay_request(first))
            while True:
                async with asyncio.timeout(self._silence_s):
                    frames = await socket.recv_multipart()
                if is_replay_end(frames):
                    return
                reply = self._read(frames)
                if reply is not None:
                    yield reply
        finally:
            socket.close(linger=0)

    def _read(self, frames: list[bytes]) -> Batch | Gap | None:
        try:
            return decode(frames)
        except Undecodable as unreadable:
            self.undecodable += 1
            if unreadable.seq is None:
                return None  # if it had a number, that will be missed
            return Gap(unreadable.seq, unreadable.seq + 1, lost=True, reason=str(unreadable))

    def _passed(self, item: Batch | Gap) -> Batch | Gap:
        self._next = _seq(item) + 1
        if isinstance(item, Batch):
            self._ts = item.ts
        return item

    def _open_live(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.SUB)
        socket.rcvhwm = LIVE_QUEUE
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
        self._connect(socket, self._events, bind=self._bind)
        return socket

    def _connect(self, socket: zmq.asyncio.Socket, endpoint: str, *, bind: bool = False) -> None:
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        try:
            (socket.bind if bind else socket.connect)(endpoint)
        except zmq.ZMQError as error:
            verb = "bind" if bind else "connect to"
            raise CannotSubscribe(f"cannot {verb} `{endpoint}`: {error.strerror}") from error


def _seq(item: Batch | Gap) -> int:
    return item.seq if isinstance(item, Batch) else item.first
