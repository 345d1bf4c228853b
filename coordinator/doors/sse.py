"""A backend's event stream on its way to the client: whole events out, byte for byte. Pure.

Notices the first content, the usage and how the stream ended, in each API's own words; takes the
usage event out where the client has not asked for it. An event is held until it is whole, so it
does not matter how the stream was cut into chunks; engines write whole events, so nearly nothing is
ever held.
"""

import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from coordinator.answer_parts import (
    CHUNK,
    MESSAGE_EVENT,
    RESPONSE_EVENT,
    STARTS,
    MessageUsage,
    message_finish,
    response_finish,
)
from coordinator.answer_parts import read_answer as read_answer
from coordinator.apis import Api
from coordinator.limits import Usage


class Carried(Protocol):
    """What carries a stream to its client: as it comes, or translated."""

    has_content: bool
    done: bool
    failed: bool
    pieces: int
    usage: Usage
    finish: str | None
    response: str | None

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be sent on."""
        ...

    def close(self) -> bytes:
        """Return what is left; now all is known."""
        ...


HELD_BYTES = 8 * 2**20
"""A longer event passes unread."""

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\r?\n\r?\n")


class Stream:
    """One stream. `feed` each chunk, send on what it returns, and call `close` at the end."""

    marks: tuple[bytes, bytes, bytes] = (b'"usage"', DONE, b'{"error"')
    """What an event has that must be read once content flows. Nothing else follows such an event,
    so that a chunk's last one tells."""
    lines = 2
    """Of an event, the empty one included."""

    def __init__(
        self, strip_usage: bool = False, reword: Callable[[bytes], bytes] | None = None
    ) -> None:
        """`reword`: makes another event of an error's data, whose words are not for clients."""
        self.has_content = False
        """Content has been sent on: the first token was seen."""
        self.done = False
        """The backend said that the stream is complete."""
        self.failed = False
        """The backend sent an error event."""
        self.error = b""
        """Its data."""
        self.pieces = 0
        """Events with content that have passed, each of about one token."""
        self.usage = Usage()
        self.finish: str | None = None
        """Why generation ended, by the last event that said so; complete after `close`."""
        self.response: str | None = None
        """The id under which the engine may keep this answer."""
        self._strip = strip_usage
        self._reword = reword
        self._is_error = False
        self._held = b""
        self._last = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be sent on."""
        # The common case, once content flows: whole events, and nothing to take note of.
        head = chunk
        if self._held or not self.has_content or chunk[-2:] != b"\n\n":
            data = self._held + chunk
            searched = max(0, len(self._held) - 3)  # no event ends in what is held
            end = data.rfind(b"\n\n", searched) + 2 if self.has_content else 0
            tail = data[end:]
            if end < 2 or b"\r" in tail or len(tail) > HELD_BYTES:
                return self._cut(data, searched)
            head, self._held = data[:end], tail
        last, find, (usage, done, error) = head.rfind(b"\n\n", 0, -2) + 1, head.find, self.marks
        if find(usage, last) >= 0 or find(done, last) >= 0 or find(error, last) >= 0:
            return self._events(head)
        if self._reword is not None and find(b'"error"') >= 0:
            return self._events(head)
        self._last = head
        self.pieces += head.count(b"\n") // self.lines  # by far cheaper than two at a time
        return head

    def close(self) -> bytes:
        """Return what is left of an event that never became whole; now all is known."""
        rest, self._held = self._held, b""
        if self.finish is None:
            for event in _BOUNDARY.split(self._last):
                self._read(event)
        return rest

    def _cut(self, data: bytes, searched: int) -> bytes:
        end = 0
        for boundary in _BOUNDARY.finditer(data, searched):
            end = boundary.end()
        self._held = data[end:]
        if len(self._held) > HELD_BYTES:
            end, self._held = len(data), b""
        return self._events(data[:end]) if end else b""

    def _events(self, data: bytes) -> bytes:
        kept, start = [], 0
        for boundary in _BOUNDARY.finditer(data):
            self._is_error = False
            is_for_all = self._read(data[start : boundary.start()])
            if self._is_error and self._reword is not None:
                kept.append(self._reword(self.error))
            elif is_for_all or not self._strip:
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
            return self._note(data)
        except msgspec.MsgspecError:
            return True

    def _note(self, data: bytes) -> bool:
        chunk = CHUNK.decode(data)
        if chunk.error is not None:
            self._fail(data)
        for choice in chunk.choices or ():
            self.finish = choice.finish_reason or self.finish
            if choice.says_something():
                self._pass_content()
        if chunk.usage is not None:
            self.usage = chunk.usage.read()
        return chunk.usage is None or bool(chunk.choices) or chunk.choices is None

    def _pass_content(self) -> None:
        self.has_content = True
        self.pieces += 1

    def _fail(self, data: bytes) -> None:
        self.failed, self.error, self._is_error = True, data, True


class MessageStream(Stream):
    """A stream of Anthropic's messages API."""

    marks = (b'"usage"', b"message_stop", b"event: error")
    lines = 3

    def __init__(self, reword: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__(reword=reword)
        self._started = MessageUsage()

    def _note(self, data: bytes) -> bool:
        event = MESSAGE_EVENT.decode(data)
        match event.type:
            case "message_start" if event.message is not None:
                self._started = event.message.usage or self._started
                self.usage = self._started.read()
            case "content_block_start" | "content_block_delta":
                if event.says_something():
                    self._pass_content()
            case "message_delta":
                if event.usage is not None:
                    self.usage = event.usage.after(self._started).read()
                if event.delta is not None:
                    self.finish = message_finish(event.delta.get("stop_reason")) or self.finish
            case "message_stop":
                self.done = True
            case "error":
                self._fail(data)
        return True


class ResponseStream(Stream):
    """A stream of OpenAI's responses API."""

    marks = (b'"usage"', b"event: response.failed", b"event: error")
    lines = 3

    def __init__(self, reword: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__(reword=reword)

    def _note(self, data: bytes) -> bool:
        event = RESPONSE_EVENT.decode(data)
        if event.response is not None:
            self.response = event.response.id or self.response
            if event.response.usage is not None:
                self.usage = event.response.usage.read()
        match event.type:
            case "error" | "response.failed":
                self._fail(data)
            case "response.completed" | "response.incomplete":
                self.done = True
                if event.response is not None:
                    self.finish = response_finish(event.response) or self.finish
            case kind if kind not in STARTS:
                self._pass_content()
        return True


def stream_of(
    api: Api, usage_asked: bool, reword: Callable[[bytes], bytes] | None = None
) -> Stream:
    """Return what carries a stream of an API, without the usage that nobody has asked for."""
    match api:
        case Api.ANTHROPIC_MESSAGES:
            return MessageStream(reword)
        case Api.OPENAI_RESPONSES:
            return ResponseStream(reword)
        case _:
            return Stream(not usage_asked, reword)
