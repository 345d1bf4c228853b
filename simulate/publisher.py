"""One rank's event sockets, as vLLM 0.32.0 has them: PUB for events, ROUTER for replay.

The only place that imports zmq. `Publisher` is used from one event loop and never blocks it: a
subscriber that falls behind loses messages silently, and so does a reader of a long replay, because
real engines do just that.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from lineside.clock import Clock
from simulate.content import KvEvent
from simulate.events import BatchEncoder
from simulate.faults import (
    Faults,
    IgnoreReplays,
    LoseReplies,
    MuteEvents,
    OldReplayLayout,
    ShrinkReplayBuffer,
)
from simulate.outlet import Outlet

END_MARKER = b"\xff" * 8
PUBLISHER_HWM = 100_000
"""Messages kept for each subscriber; past that they are dropped."""


class CannotBind(Exception):
    """An address is taken, not ours or none."""


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank publishes. Port 0 takes a free one; with `connect`, PUB connects to that; with
    `folder`, both sockets are in that folder."""

    host: str
    port: int = 0
    replay_port: int = 0
    connect: str = ""
    folder: str = ""


class Publisher:
    """Numbers batches from 0. `serve` runs beside."""

    def __init__(
        self,
        addresses: Addresses,
        *,
        topic: str,
        buffer_steps: int,
        encoder: BatchEncoder,
        faults: Faults,
        clock: Clock,
        rank: int = 0,
    ) -> None:
        """Open both sockets. Raises `CannotBind`."""
        self._topic = topic.encode()
        self._encoder = encoder
        self._faults = faults
        self._rank = rank
        self._next_seq = 0
        # The oldest batch falls out: a replay that asks for it starts later, and nothing says so.
        self._buffer: deque[tuple[int, bytes]] = deque()
        self._buffer_steps = buffer_steps
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(PUBLISHER_HWM)
        # ZMQ's default send limit of 1,000 stays: it is what makes long replays lossy.
        self._router = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._outlet = Outlet(self._send, faults, clock, rank)
        try:
            if addresses.connect:
                self._pub.connect(addresses.connect)
                self.endpoint = addresses.connect
            else:
                self.endpoint = _bind(self._pub, _at(addresses, "events", addresses.port))
            self.replay_endpoint = _bind(
                self._router, _at(addresses, "replay", addresses.replay_port)
            )
        except zmq.ZMQError as error:
            self.close()
            raise CannotBind(f"cannot listen for KV events on {addresses.host}: {error}") from error

    def publish(self, ts: float, events: Sequence[KvEvent]) -> None:
        """Send one step's events, at least one, as one message."""
        if self._faults.strike(MuteEvents, self._rank):
            return
        payload = self._encoder.encode(ts, events)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._buffer.append((seq, payload))
        self._trim()
        self._outlet.put([self._topic, _number(seq), payload])

    def restart(self) -> None:
        """Begin at 0 with an empty buffer, on the same sockets."""
        self._next_seq = 0
        self._buffer.clear()
        self._outlet.discard()

    async def serve(self) -> None:
        """Answer replay requests, and send what is delayed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outlet.run(), name="delayed messages")
            tasks.create_task(self._serve_replays(), name="replays")

    async def _serve_replays(self) -> None:
        """A request of another shape gets no answer."""
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            if not self._faults.strike(IgnoreReplays, self._rank):
                await self._replay(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, reader: bytes, start: int) -> None:
        loss = self._faults.strike(LoseReplies, self._rank)
        old = self._faults.strike(OldReplayLayout, self._rank)
        self._trim()
        head = [reader, b""] if old else [reader, b"", self._topic]
        wanted = [batch for batch in self._buffer if batch[0] >= start]
        for place, (seq, payload) in enumerate(wanted):
            if loss is None or not loss.loses(place):
                await self._router.send_multipart([*head, _number(seq), payload])
            if place % 256 == 255:
                await asyncio.sleep(0)  # sends that need no wait do not let others run
        if loss is None or loss.end_marker:
            head = [reader, b""] if old else [reader, b"", b""]
            await self._router.send_multipart([*head, END_MARKER, b""])

    def _trim(self) -> None:
        shrunk = self._faults.active(ShrinkReplayBuffer, self._rank)
        steps = self._buffer_steps if shrunk is None else shrunk.steps
        while len(self._buffer) > steps:
            self._buffer.popleft()

    def _send(self, frames: list[bytes]) -> None:
        self._pub.send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Close both sockets and drop what is unsent."""
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()


class NoPublisher:
    """Stands in for the publisher of an engine whose events are off: no socket, no word."""

    endpoint = replay_endpoint = ""

    def publish(self, ts: float, events: Sequence[KvEvent]) -> None:
        """Send nothing."""

    def restart(self) -> None:
        """Forget nothing."""

    async def serve(self) -> None:
        """Answer nobody."""

    def close(self) -> None:
        """Close nothing."""


def _number(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def _at(addresses: Addresses, name: str, port: int) -> str:
    if addresses.folder:
        return f"ipc://{addresses.folder}/{name}"
    return f"tcp://{addresses.host}:{port or '*'}"


def _bind(socket: zmq.Socket[Any], endpoint: str) -> str:
    socket.linger = 0
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
