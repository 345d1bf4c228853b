"""Streams of bytes cut into whole frames: server-sent events, and Bedrock's event stream. Pure.

It makes no difference where the bytes were cut on their way. What is too long to be held is broken.
"""

import re
import struct
from collections.abc import Iterator

from botocore.eventstream import EventStreamBuffer, ParserError

HELD_BYTES = 8 * 2**20
"""A longer event of a stream ends it: nothing that is translated can pass unread."""

_BOUNDARY = re.compile(rb"\r?\n\r?\n")


class BrokenFrame(Exception):
    """Bytes that are no frame; nothing after them can be read."""


class ServerSentEvents:
    """Gives the data of each event; names, comments and empty events are left out."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what became whole. Raises `BrokenFrame`."""
        self._held += chunk
        start = 0
        for boundary in _BOUNDARY.finditer(self._held, self._searched):
            if data := _data(bytes(self._held[start : boundary.start()])):
                yield data
            start = boundary.end()
        del self._held[:start]
        self._searched = max(0, len(self._held) - 3)
        if len(self._held) > HELD_BYTES:
            raise BrokenFrame


def _data(event: bytes) -> bytes:
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


class EventStreamFrames:
    """Gives the kind and the payload of each message; checksums are verified."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str, bytes]]:
        """Yield (message type, what it is, payload) of what became whole. Raises `BrokenFrame`."""
        self._buffer.add_data(chunk)
        try:
            for message in self._buffer:
                headers = message.headers
                kind = str(headers.get(":message-type", "event"))
                name = headers.get(_NAMES.get(kind, ":event-type"), "")
                yield kind, str(name), message.payload
        except (ParserError, struct.error, KeyError, UnicodeDecodeError) as error:
            raise BrokenFrame from error


_NAMES = {"exception": ":exception-type", "error": ":error-code"}
