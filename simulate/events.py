"""KV events on the wire, as vLLM 0.32.0 sends them: encoding, PUB socket, replay over ROUTER.

The only place that imports zmq. `Publisher` is used from one event loop; it never blocks it: a
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

from simulate.blocks import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KvEvent

MEDIUM = "GPU"
END_MARKER = b"\xff" * 8
PUBLISHER_HWM = 100_000
"""Messages kept for each subscriber; past that they are dropped."""


class CannotBind(Exception):
    """An address is taken or not ours."""


class _Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    """Fields in the order of the wire; those with a default are left out when equal to it."""

    block_hashes: list[int] | list[bytes]
    parent_block_hash: int | bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: Sequence[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int] | list[bytes]
    medium: str
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", omit_defaults=True):
    pass


class BatchEncoder:
    """Turns a step's events into a payload.

    Hashes leave as their last 8 bytes, a big-endian unsigned integer, or whole with `byte_hashes`.
    """

    def __init__(self, *, byte_hashes: bool = False, rank: int = 0) -> None:
        self._byte_hashes = byte_hashes
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, ts: float, events: Sequence[KvEvent]) -> bytes:
        """Return the payload of one message; `ts` in Unix seconds."""
        return self._encoder.encode([ts, [self._wire(event) for event in events], self._rank])

    def _wire(self, event: KvEvent) -> _Stored | _Removed | _Cleared:
        match event:
            case BlockStored():
                return _Stored(
                    block_hashes=self._hashes(event.block_hashes),
                    parent_block_hash=self._hashes([event.parent])[0] if event.parent else None,
                    token_ids=event.token_ids,
                    block_size=event.block_size,
                    lora_id=event.lora.number if event.lora else None,
                    medium=MEDIUM,
                    lora_name=event.lora.name if event.lora else None,
                    extra_keys=event.extra_keys,
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                    session_id=event.session_id,
                )
            case BlockRemoved(block_hash):
                return _Removed(self._hashes([block_hash]), MEDIUM, group_idx=0)
            case AllBlocksCleared():
                return _Cleared()

    def _hashes(self, hashes: Sequence[BlockHash]) -> list[int] | list[bytes]:
        if self._byte_hashes:
            return list[bytes](hashes)
        return [int.from_bytes(block_hash[-8:], "big") for block_hash in hashes]


class Publisher:
    """One engine's event sockets. `publish` numbers batches from 0; `serve_replays` runs beside."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        replay_port: int,
        topic: str,
        buffer_steps: int,
        encoder: BatchEncoder,
    ) -> None:
        """Bind both sockets; port 0 takes a free one. Raises `CannotBind`."""
        self._topic = topic.encode()
        self._encoder = encoder
        self._next_seq = 0
        # The oldest batch falls out: a replay that asks for it starts later, and nothing says so.
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(PUBLISHER_HWM)
        # ZMQ's default send limit of 1,000 stays: it is what makes long replays lossy.
        self._router = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        try:
            self.endpoint = _bind(self._pub, host, port)
            self.replay_endpoint = _bind(self._router, host, replay_port)
        except zmq.ZMQError as error:
            self.close()
            raise CannotBind(f"cannot listen on {host}: {error}") from error

    def publish(self, ts: float, events: Sequence[KvEvent]) -> None:
        """Send one step's events, at least one, as one message."""
        payload = self._encoder.encode(ts, events)
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        self._buffer.append((seq, payload))
        self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload], zmq.NOBLOCK)

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled; a request of another shape gets no answer."""
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            await self._replay(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, reader: bytes, start: int) -> None:
        for sent, (seq, payload) in enumerate(list(self._buffer)):
            if seq >= start:
                number = seq.to_bytes(8, "big")
                await self._router.send_multipart([reader, b"", self._topic, number, payload])
            if sent % 256 == 255:
                await asyncio.sleep(0)  # sends that need no wait do not let others run
        await self._router.send_multipart([reader, b"", b"", END_MARKER, b""])

    def close(self) -> None:
        """Close both sockets and drop what is unsent."""
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> str:
    socket.linger = 0
    socket.bind(f"tcp://{host}:{port or '*'}")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
