"""An engine's event stream on its way to the client: whole events out, byte for byte. Pure.

Notices the first content, the usage and how the stream ended; takes the usage event out where the
client has not asked for it. An event is held until it is whole, so it does not matter how the
stream was cut into chunks; engines write whole events, so nearly nothing is ever held.
"""

import re
from typing import Any

import msgspec

from coordinator.limits import Usage

HELD_BYTES = 8 * 2**20
"""A longer event passes unread."""

DONE = b"[DONE]"
_ERROR = b'{"error"'
_USAGE = b'"usage"'
_BOUNDARY = re.compile(rb"\r?\n\r?\n")


class Stream:
    """One stream. `feed` each chunk, send on what it returns, and call `close` at the end."""

    def __init__(self, strip_usage: bool) -> None:
        self.has_content = False
        """Content has been sent on: the first token was seen."""
        self.done = False
        """The engine said that the stream is complete."""
        self.failed = False
        """The engine sent an error event."""
        self.pieces = 0
        """Events with content that have passed, each of about one token."""
        self.usage = Usage()
        self.finish: str | None = None
        """Why generation ended, by the last event that said so; complete after `close`."""
        self._strip = strip_usage
        self._held = b""
        self._last = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be sent on."""
        data = self._held + chunk if self._held else chunk
        end = data.rfind(b"\n\n") + 2 if self.has_content else 0
        tail = data[end:]
        if end < 2 or b"\r" in tail or len(tail) > HELD_BYTES:
            return self._cut(data)
        head, self._held = (data[:end], tail) if tail else (data, b"")
        # The common case, once content flows: nothing to take note of. Usage, errors and the end
        # are followed by nothing else, so that the last event tells.
        last, find = head.rfind(b"\n\n", 0, end - 2) + 1, head.find
        if find(_USAGE, last) >= 0 or find(DONE, last) >= 0 or find(_ERROR, last) >= 0:
            return self._events(head)
        self._last = head
        self.pieces += head.count(b"\n") // 2  # by far cheaper than two at a time
        return head

    def close(self) -> bytes:
        """Return what is left of an event that never became whole; now all is known."""
        rest, self._held = self._held, b""
        if self.finish is None:
            for event in _BOUNDARY.split(self._last):
                self._read(event)
        return rest

    def _cut(self, data: bytes) -> bytes:
        end = 0
        for boundary in _BOUNDARY.finditer(data):
            end = boundary.end()
        self._held = data[end:]
        if len(self._held) > HELD_BYTES:
            end, self._held = len(data), b""
        return self._events(data[:end]) if end else b""

    def _events(self, data: bytes) -> bytes:
        kept, start = [], 0
        for boundary in _BOUNDARY.finditer(data):
            if self._read(data[start : boundary.start()]) or not self._strip:
                kept.append(data[start : boundary.end()])
            start = boundary.end()
        kept.append(data[start:])
        return b"".join(kept)

    def _read(self, event: bytes) -> bool:
        """Take note of an event; return whether it may be sent on to any client."""
        data = b"\n".join(
            line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")
        )
        if data == DONE:
            self.done = True
            return True
        try:
            chunk = _CHUNK.decode(data)
        except msgspec.MsgspecError:
            return True
        if chunk.error is not None:
            self.failed = True
        for choice in chunk.choices or ():
            self.finish = choice.finish_reason or self.finish
            if choice.says_something():
                self.has_content = True
                self.pieces += 1
        if chunk.usage is not None:
            self.usage = chunk.usage.read()
        return chunk.usage is None or bool(chunk.choices) or chunk.choices is None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    def read(self) -> Usage:
        details = self.prompt_tokens_details
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            completion_tokens=self.completion_tokens,
        )


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None

    def says_something(self) -> bool:
        """Whether there is output: text, reasoning or a tool call; a role alone is none."""
        if self.text:
            return True
        return any(value for key, value in (self.delta or {}).items() if key != "role")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def read_answer(body: bytes) -> tuple[Usage, str | None]:
    """Return the usage of an answer that was not streamed, and why its generation ended."""
    try:
        answer = _CHUNK.decode(body)
    except msgspec.MsgspecError:
        return Usage(), None
    finish = next((c.finish_reason for c in answer.choices or () if c.finish_reason), None)
    return (answer.usage.read() if answer.usage else Usage()), finish
