"""Who listens at a ZMQ endpoint: the engine's publisher, a subscriber, or nobody.

vLLM's publisher binds some endpoints and connects to others, and does not say which it did. When it
connects, its agent has to bind. So the endpoint itself is asked, with the first two messages of
ZMTP 3: a greeting, and READY, which names the peer's socket type. Never subscribes, never reads
an event; nothing here needs libzmq.
"""

import asyncio
from enum import Enum
from urllib.parse import urlsplit

WAIT_S = 1.0
"""A listener that says nothing for this long is not asked again until the next look."""

_GREETING = (
    b"\xff" + bytes(8) + b"\x7f"  # signature
    b"\x03\x00"  # version 3.0
    + b"NULL".ljust(20, b"\0")  # security mechanism
    + bytes(32)  # not a server; filler
)
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"


class Listener(Enum):
    """What was found."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    NOBODY = "nobody"
    UNKNOWN = "unknown"
    """No answer in time, or one that is not ZMTP."""


async def listener_at(endpoint: str) -> Listener:
    """Ask a tcp endpoint who listens there."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        return Listener.UNKNOWN
    try:
        async with asyncio.timeout(WAIT_S):
            return await _ask(parts.hostname, parts.port)
    except ConnectionRefusedError:
        return Listener.NOBODY
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return Listener.UNKNOWN


async def _ask(host: str, port: int) -> Listener:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_GREETING)
        greeting = await reader.readexactly(len(_GREETING))
        if greeting[0] != 0xFF or greeting[10] < 3:
            return Listener.UNKNOWN
        writer.write(bytes([4, len(_READY)]) + _READY)
        return _listener(await _first_command(reader))
    finally:
        writer.transport.abort()


async def _first_command(reader: asyncio.StreamReader) -> bytes:
    flags, short = await reader.readexactly(2)
    if not flags & 4:
        return b""
    if not flags & 2:
        return await reader.readexactly(short)
    size = int.from_bytes(bytes([short]) + await reader.readexactly(7), "big")
    return await reader.readexactly(size) if size < 4096 else b""


def _listener(ready: bytes) -> Listener:
    _, found, value = ready.partition(b"Socket-Type")
    if not ready.startswith(b"\x05READY") or not found:
        return Listener.UNKNOWN
    match value[4 : 4 + int.from_bytes(value[:4], "big")]:
        case b"PUB" | b"XPUB":
            return Listener.PUBLISHER
        case b"SUB" | b"XSUB":
            return Listener.SUBSCRIBER
        case _:
            return Listener.UNKNOWN
