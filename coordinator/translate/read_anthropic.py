"""Anthropic messages, whole and streamed, as neutral events. Pure.

Blocks of tools that run at Anthropic's are left out: nobody who is translated can have asked for
them. Kinds of events that are not known are passed over, as the API demands.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from coordinator.translate.events import (
    BROKEN,
    Argued,
    Began,
    Called,
    Closed,
    Counted,
    Done,
    Event,
    Failed,
    Said,
    Signed,
    Stop,
    Stopped,
    Thought,
    Tokens,
    Unreadable,
    Withheld,
)
from coordinator.translate.frames import BrokenFrame, ServerSentEvents
from coordinator.translate.stops import FROM_ANTHROPIC
from lineside.decoding import Reader

STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error would have been as an answer; any other is a 500."""


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None

    def read(self) -> Tokens:
        details = self.output_tokens_details or _OutputDetails()
        return Tokens(
            self.input_tokens,
            self.cache_read_input_tokens,
            self.cache_creation_input_tokens,
            self.output_tokens,
            details.thinking_tokens,
        )


class _Message(msgspec.Struct):
    id: str | None = None
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None
    type: str = "message"


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Kind(msgspec.Struct):
    """Of an event, what says whether to read the rest of it."""

    type: str = ""


class _Event(_Kind):
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_KIND = Reader(_Kind)
_EVENT = Reader(_Event)
_KINDS = frozenset(
    {
        *("message_start", "message_delta", "message_stop", "error"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    }
)
_MESSAGE = Reader(_Message)


class AnthropicReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self.complete = False
        """Nothing is missing if the stream ends here."""
        self._frames = ServerSentEvents()
        self._open: dict[int, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield what became known."""
        try:
            for data in self._frames.feed(chunk):
                if _KIND.decode(data).type in _KINDS:
                    yield from self._read(_EVENT.decode(data))
        except (BrokenFrame, msgspec.MsgspecError):
            yield BROKEN

    def whole(self, body: bytes) -> Iterator[Event]:
        """Yield all of an answer that was not streamed. Raises `Unreadable`."""
        try:
            message = _MESSAGE.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable from error
        if message.type != "message":
            raise Unreadable
        yield Began(message.id)
        for at, block in enumerate(message.content):
            yield from self._start(at, block)
            yield from self._stop(at)
        yield from _ended(message.stop_reason, message.stop_sequence)
        if message.usage is not None:
            yield Counted(message.usage.read())
        yield Done()

    def close(self) -> Iterator[Event]:
        """Yield nothing: a message says itself when it is done."""
        return iter(())

    def _read(self, event: _Event) -> Iterator[Event]:
        match event:
            case _Event(type="message_start", message=_Message() as message):
                yield Began(message.id)
                if message.usage is not None:
                    yield Counted(message.usage.read())
            case _Event(type="content_block_start", content_block=_Block() as block):
                yield from self._start(event.index, block)
            case _Event(type="content_block_delta", delta=_Delta() as delta):
                yield from self._delta(event.index, delta)
            case _Event(type="content_block_stop"):
                yield from self._stop(event.index)
            case _Event(type="message_delta"):
                if event.delta is not None:
                    yield from _ended(event.delta.stop_reason, event.delta.stop_sequence)
                if event.usage is not None:
                    yield Counted(event.usage.read())
            case _Event(type="message_stop"):
                self.complete = True
                yield Done()
            case _Event(type="error"):
                error = event.error or _Error()
                yield Failed(STATUSES.get(error.type, 500), error.message)

    def _start(self, index: int, block: _Block) -> Iterator[Event]:
        self._open[index] = block.type
        match block.type:
            case "text":
                yield Said(block.text)
            case "thinking":
                yield Thought(block.thinking)
                if block.signature:
                    yield Signed(block.signature)
            case "redacted_thinking":
                yield Withheld(block.data)
            case "tool_use":
                yield Called(index, block.id, block.name)
                if block.input:
                    yield Argued(index, msgspec.json.encode(block.input).decode())
            case _:
                del self._open[index]

    def _delta(self, index: int, delta: _Delta) -> Iterator[Event]:
        match self._open.get(index), delta.type:
            case "text", "text_delta":
                yield Said(delta.text)
            case "thinking", "thinking_delta":
                yield Thought(delta.thinking)
            case "thinking", "signature_delta":
                yield Signed(delta.signature)
            case "tool_use", "input_json_delta":
                yield Argued(index, delta.partial_json)

    def _stop(self, index: int) -> Iterator[Event]:
        kind = self._open.pop(index, None)
        if kind is not None:
            yield Closed(index if kind == "tool_use" else None)


def _ended(reason: str | None, sequence: str | None) -> Iterator[Event]:
    if reason is not None:
        yield Stopped(FROM_ANTHROPIC.get(reason, Stop.END), sequence)
