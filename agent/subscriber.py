"""One engine's event publisher, read in order: what went missing is asked for again, or named.

The agent's only ZMQ import. Written for one reader; what to ask and what to believe is decided in
`agent.sequence`, and here are the sockets.

One SUB socket lives for one connection and is replaced when that ends, so that nothing queued from
an engine's earlier life is read after something of its next one. A connection's events are looked
at after each message is taken: they are always older than what came over it.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator
from typing import TypeAlias

import zmq
from xxhash import xxh3_128_digest
from zmq.utils.monitor import parse_monitor_message

from agent.kv_events import Undecodable, decode, is_replay_end, replay_request
from agent.sequence import Item, Message, Place, Sequence

SILENCE_S = 2.0
"""A replay that says nothing for this long is over; the engine serves one within 0.1 s."""

QUIET_S = 2.0
QUIET_MAX_S = 30.0
"""With no message for the first, a replay is asked for: the last one may have got lost. Then again
after twice the time, up to the second."""

# Full: libzmq stops reading from the connection, and the rest waits in the engine's send queue.
# What that drops in turn is a gap here, and asked for again.
LIVE_QUEUE = 1_000
REPLAY_QUEUE = 4_000

MAX_MESSAGE_BYTES = 64 * 2**20
"""A longer message is no engine's: libzmq drops the connection and reconnects."""

HEARTBEAT_MS = 10_000
"""Finds a connection whose other end went without a word, as with the network of a lost pod."""

REOPEN_S = 0.05
REOPENS = 40
"""Between two tries to bind an address that the socket before is about to free, and how many."""

TURN_MESSAGES = 64
"""Messages after which others get a turn on the loop, whatever became of them."""

_Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
_Socket: TypeAlias = "zmq.Socket[bytes]"

_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class CannotSubscribe(Exception):
    """An endpoint that cannot be bound or is no address."""


class Subscriber:
    """Reads one publisher.

    `replay`: empty where it has no replay socket. `bind`: the publisher connects to us. `topic` is
    a prefix; empty: everything. `place`: where to go on, if the holdings of then are at hand.
    """

    def __init__(
        self,
        events: str,
        replay: str = "",
        *,
        bind: bool = False,
        topic: str = "",
        place: Place | None = None,
        silence_s: float = SILENCE_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._events, self._replay = events, replay
        self._bind, self._topic = bind, topic
        self._silence_s, self._quiet_s = silence_s, quiet_s
        self._sequence = Sequence(bool(replay), place)
        self._bell = _Bell()
        self._line: _Line | None = None
        self._request: _Request | None = None
        self._quiet_for_s = quiet_s
        self._check_due = False
        self._anew_due = False
        self._requests_before = 0
        self._taken = 0
        self.undecodable = 0
        """Messages of which nothing could be read. With a number they are lost gaps as well."""

    @property
    def place(self) -> Place | None:
        """The last batch passed on, as a later reader can go on from it."""
        return self._sequence.place

    @property
    def replays(self) -> int:
        """Replays asked for."""
        return self._requests_before + self._sequence.requests

    def check(self) -> None:
        """Ask the engine soon whether it is where it seems to be."""
        self._check_due = True
        self._bell.ring()

    def read_anew(self) -> None:
        """Read again soon from the oldest batch that the engine still has."""
        self._anew_due = True
        self._bell.ring()

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield batches in order, from the oldest that the engine still has, for ever.

        Close the iterator (`contextlib.aclosing`) to close the sockets. Raises `CannotSubscribe`.
        """
        context = zmq.Context()
        try:
            if self._replay:  # an address that is none is to be known now, not at the first gap
                with context.socket(zmq.DEALER) as socket:
                    _connect(socket, self._replay)
            while True:
                for item in await self._step(context):
                    yield item
        finally:
            self._hang_up()
            context.destroy(linger=0)

    async def _step(self, context: _Context) -> list[Item]:
        """Take one message, or wait for one; return what is to be passed on."""
        if self._anew_due:
            self._anew_due = False
            self._hang_up()
            self._requests_before += self._sequence.requests
            self._sequence = Sequence(bool(self._replay))
            await asyncio.sleep(REOPEN_S)
        if self._line is None:
            self._line = await self._open(context)
        self._taken += 1
        if self._taken % TURN_MESSAGES == 0:
            await asyncio.sleep(0)
        self._bell.clear()
        if self._sequence.asks is None:
            items = await self._live(self._line)
        else:
            items = await self._replayed(context, self._line, self._sequence.asks)
        if self._line.ended or self._sequence.stale:
            self._hang_up()
            items += self._sequence.disconnected()
            await asyncio.sleep(REOPEN_S)
        return items

    async def _live(self, line: "_Line") -> list[Item]:
        frames = None if self._check_due else _take(line.socket)
        items = self._sequence.connected() if line.news() and not line.ended else []
        if line.ended:
            return []  # what was taken is of a connection that has ended: it comes by a replay
        if frames is not None:
            self._quiet_for_s = self._quiet_s
            message = self._message(frames)
            if message and self._sequence.asks is None:  # else the replay brings it too
                items += self._sequence.heard(message)
        elif not items and (self._check_due or not await self._bell.wait(self._quiet_for_s)):
            self._check_due = False
            self._quiet_for_s = min(2 * self._quiet_for_s, QUIET_MAX_S)
            self._sequence.check()
        return items

    async def _replayed(self, context: _Context, line: "_Line", first: int) -> list[Item]:
        """Take one reply to the request under way, which is made if there is none."""
        if self._request is None:
            await asyncio.sleep(self._sequence.wait_s)
            self._request = _Request(context, self._replay, first, self._bell)
        frames = self._request.take()
        if frames is None:
            if line.news() and line.ended:
                return []
            left_s = self._request.left_s(self._silence_s)
            if left_s > 0 and await self._bell.wait(left_s):
                return []
        if frames is None or is_replay_end(frames):
            self._request.close()
            self._request = None
            return self._sequence.ended(marked=frames is not None)
        message = self._message(frames)
        return self._sequence.replied(message) if message else []

    def _message(self, frames: list[bytes]) -> Message | None:
        try:
            batch = decode(frames)
        except Undecodable as unreadable:
            self.undecodable += 1
            if unreadable.seq is None:
                return None  # if it had a number, that will be missed
            return Message(unreadable.seq, xxh3_128_digest(frames[-1]), str(unreadable))
        return Message(batch.seq, xxh3_128_digest(frames[-1]), batch)

    # --- sockets ----------------------------------------------------------------------------------

    async def _open(self, context: _Context) -> "_Line":
        """Open a line; the address of the one before is free a little after it closed."""
        tries = REOPENS if self._bind else 0
        while True:
            try:
                return _Line(context, self._events, self._topic, self._bell, bind=self._bind)
            except CannotSubscribe:
                if not tries:
                    raise
            tries -= 1
            await asyncio.sleep(REOPEN_S)

    def _hang_up(self) -> None:
        if self._request is not None:
            self._request.close()
            self._request = None
        if self._line is not None:
            self._line.close()
            self._line = None


class _Bell:
    """Rings when any of its sockets may have something; the sockets do not block."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def clear(self) -> None:
        """Note that all sockets are about to be looked at."""
        self._rung.clear()

    def ring(self) -> None:
        """Let the reader look."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> bool:
        """Return whether it rang in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._rung.wait()
        except TimeoutError:
            return False

    def watch(self, socket: _Socket) -> None:
        """Ring for this socket too."""
        asyncio.get_running_loop().add_reader(socket.FD, self._look, socket)

    def leave(self, socket: _Socket) -> None:
        """Ring no more for a socket that is about to close."""
        asyncio.get_running_loop().remove_reader(socket.FD)

    def _look(self, socket: _Socket) -> None:
        # Reading it makes libzmq work off what the descriptor signals: also that a connection is
        # new and the subscription has to be sent.
        socket.get(zmq.EVENTS)
        self._rung.set()


class _Line:
    """A SUB socket for one connection, and the monitor of that. Raises `CannotSubscribe`."""

    def __init__(
        self, context: _Context, endpoint: str, topic: str, bell: _Bell, *, bind: bool
    ) -> None:
        self.ended = False
        self._connected = False
        self._bell = bell
        self.socket = context.socket(zmq.SUB)
        self._monitor = self.socket.get_monitor_socket(_WATCHED)
        try:
            self.socket.rcvhwm = LIVE_QUEUE
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self.socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
            _connect(self.socket, endpoint, bind=bind)
        except CannotSubscribe:
            self._free()
            raise
        bell.watch(self.socket)
        bell.watch(self._monitor)

    def news(self) -> bool:
        """Return whether the connection began or ended since the last look."""
        news = False
        while (frames := _take(self._monitor)) is not None:
            event = parse_monitor_message(frames)["event"]
            self.ended = self.ended or self._connected or event == zmq.EVENT_DISCONNECTED
            self._connected = news = True
        return news

    def close(self) -> None:
        """Close both sockets."""
        self._bell.leave(self.socket)
        self._bell.leave(self._monitor)
        self._free()

    def _free(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)


class _Request:
    """One request for a replay. Raises `CannotSubscribe`."""

    def __init__(self, context: _Context, endpoint: str, first: int, bell: _Bell) -> None:
        # A socket of its own: what is left of an earlier replay must not be taken for this one's.
        self._socket = context.socket(zmq.DEALER)
        self._bell = bell
        try:
            self._socket.rcvhwm = REPLAY_QUEUE
            _connect(self._socket, endpoint)
            self._socket.send_multipart(replay_request(first), zmq.DONTWAIT)
        except CannotSubscribe:
            self._socket.close(linger=0)
            raise
        bell.watch(self._socket)
        self._heard_at = asyncio.get_running_loop().time()

    def take(self) -> list[bytes] | None:
        """Return the next reply, if it is there."""
        frames = _take(self._socket)
        if frames is not None:
            self._heard_at = asyncio.get_running_loop().time()
        return frames

    def left_s(self, silence_s: float) -> float:
        """Return how much longer a reply is waited for."""
        return max(self._heard_at + silence_s - asyncio.get_running_loop().time(), 0.0)

    def close(self) -> None:
        """Ask no more."""
        self._bell.leave(self._socket)
        self._socket.close(linger=0)


def _take(socket: _Socket) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None


def _connect(socket: _Socket, endpoint: str, *, bind: bool = False) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        if not (bind and _bound(socket, endpoint)):
            socket.connect(endpoint)
    except zmq.ZMQError as error:
        verb = "bind" if bind else "connect to"
        reason = zmq.strerror(error.errno or 0)  # its own text names the address again
        raise CannotSubscribe(f"cannot {verb} `{endpoint}`: {reason}") from error


def _bound(socket: _Socket, endpoint: str) -> bool:
    """Bind an endpoint, unless its address is another machine's: then we are not to listen there.

    A coordinator that a network policy turns away takes an engine's port for one where nobody
    listens, and so the engine for one that connects to us.
    """
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
            return False
        raise
    return True
