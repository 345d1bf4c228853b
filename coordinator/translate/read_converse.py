"""Answers of Bedrock's Converse and ConverseStream as neutral events. Pure.

Binary values are base64 in JSON, as in Anthropic's API. A stream ends with its metadata; one that
ends without, but after its stop, is complete too.
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
from coordinator.translate.frames import BrokenFrame, EventStreamFrames
from coordinator.translate.stops import FROM_CONVERSE
from lineside.decoding import Reader

STATUSES = {
    "validationException": 400,
    "throttlingException": 429,
    "modelStreamErrorException": 424,
    "serviceUnavailableException": 503,
}
"""What an exception in a stream would have been as an answer; any other is a 500."""


class _ReasoningText(msgspec.Struct):
    text: str = ""
    signature: str | None = None


class _Reasoning(msgspec.Struct, rename="camel"):
    """Reasoning; in a stream its fields come alone."""

    reasoning_text: _ReasoningText | None = None
    redacted_content: str | None = None
    text: str | None = None
    signature: str | None = None


class _ToolUse(msgspec.Struct, rename="camel"):
    tool_use_id: str = ""
    name: str = ""
    input: Any = None
    type: str | None = None


class _Block(msgspec.Struct, rename="camel"):
    """A block, or a piece of one: one of these."""

    text: str | None = None
    tool_use: _ToolUse | None = None
    reasoning_content: _Reasoning | None = None


class _Usage(msgspec.Struct, rename="camel"):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None

    def read(self) -> Tokens:
        return Tokens(
            self.input_tokens,
            self.cache_read_input_tokens,
            self.cache_write_input_tokens,
            self.output_tokens,
        )


class _Event(msgspec.Struct, rename="camel"):
    content_block_index: int = 0
    start: _Block | None = None
    delta: _Block | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    message: str | None = None


class _Message(msgspec.Struct):
    content: list[_Block] = []


class _Output(msgspec.Struct):
    message: _Message | None = None


class _Answer(msgspec.Struct, rename="camel"):
    output: _Output
    stop_reason: str | None = None
    usage: _Usage | None = None


_EVENT = Reader(_Event)
_ANSWER = Reader(_Answer)


class ConverseReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self.complete = False
        """Nothing is missing if the stream ends here."""
        self._frames = EventStreamFrames()
        self._calls: set[int] = set()
        self._done = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield what became known."""
        try:
            for kind, name, payload in self._frames.feed(chunk):
                event = _EVENT.decode(payload or b"{}")
                if kind != "event":
                    yield Failed(STATUSES.get(name, 500), event.message or "")
                else:
                    yield from self._read(name, event)
        except (BrokenFrame, msgspec.MsgspecError):
            yield BROKEN

    def whole(self, body: bytes) -> Iterator[Event]:
        """Yield all of an answer that was not streamed. Raises `Unreadable`."""
        try:
            answer = _ANSWER.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable from error
        yield Began()
        for at, block in enumerate((answer.output.message or _Message()).content):
            yield from self._begin(at, block)
            yield from self._piece(at, _in_pieces(block))
            yield from self._end(at)
        yield _stopped(answer.stop_reason)
        if answer.usage is not None:
            yield Counted(answer.usage.read())
        yield Done()

    def close(self) -> Iterator[Event]:
        """Yield the end of a stream that stopped, and then ended without its metadata."""
        if self.complete and not self._done:
            yield Done()

    def _read(self, name: str, event: _Event) -> Iterator[Event]:
        at = event.content_block_index
        match name:
            case "messageStart":
                yield Began()
            case "contentBlockStart" if event.start is not None:
                yield from self._begin(at, event.start)
            case "contentBlockDelta" if event.delta is not None:
                yield from self._piece(at, event.delta)
            case "contentBlockStop":
                yield from self._end(at)
            case "messageStop":
                self.complete = True
                yield _stopped(event.stop_reason)
            case "metadata":
                if event.usage is not None:
                    yield Counted(event.usage.read())
                if self.complete:
                    self._done = True
                    yield Done()

    def _begin(self, at: int, block: _Block) -> Iterator[Event]:
        if block.tool_use is not None and block.tool_use.type is None:
            self._calls.add(at)
            yield Called(at, block.tool_use.tool_use_id, block.tool_use.name)

    def _piece(self, at: int, piece: _Block) -> Iterator[Event]:
        if piece.text is not None:
            yield Said(piece.text)
        if piece.tool_use is not None and at in self._calls:
            yield Argued(at, str(piece.tool_use.input or ""))
        if (reasoning := piece.reasoning_content) is not None:
            if reasoning.text is not None:
                yield Thought(reasoning.text)
            if reasoning.signature is not None:
                yield Signed(reasoning.signature)
            if reasoning.redacted_content is not None:
                yield Withheld(reasoning.redacted_content)

    def _end(self, at: int) -> Iterator[Event]:
        is_call = at in self._calls
        self._calls.discard(at)
        yield Closed(at if is_call else None)


def _in_pieces(block: _Block) -> _Block:
    """Return a whole block as a stream would bring it."""
    tool, reasoning = block.tool_use, block.reasoning_content
    if tool is not None and tool.input:
        tool = _ToolUse(input=msgspec.json.encode(tool.input).decode())
    if reasoning is not None and (whole := reasoning.reasoning_text) is not None:
        reasoning = _Reasoning(text=whole.text, signature=whole.signature)
    return _Block(block.text, tool, reasoning)


def _stopped(reason: str | None) -> Stopped:
    return Stopped(FROM_CONVERSE.get(reason or "", Stop.END))
