"""An answer's events put together into whole blocks. Pure."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from coordinator.translate.events import (
    Argued,
    Began,
    Called,
    Closed,
    Counted,
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


class Text(msgspec.Struct):
    """What the model said."""

    text: str


class Thinking(msgspec.Struct):
    """What it thought; `signature`: the backend's proof."""

    text: str
    signature: str = ""


class Redacted(msgspec.Struct):
    """What it thought and does not show."""

    data: str


class Call(msgspec.Struct):
    """A tool that it called; `arguments` are the JSON as it wrote it."""

    id: str
    name: str
    arguments: str = ""

    def parsed(self) -> dict[str, Any] | None:
        """Return the arguments; `None`: they are not whole, or no object."""
        return parsed(self.arguments)


Block: TypeAlias = Text | Thinking | Redacted | Call


class Answer(msgspec.Struct):
    """All of it."""

    id: str | None = None
    blocks: list[Block] = []
    stop: Stop = Stop.END
    sequence: str | None = None
    tokens: Tokens = Tokens()

    @property
    def calls(self) -> list[Call]:
        """The tools that were called."""
        return [block for block in self.blocks if isinstance(block, Call)]

    @property
    def text(self) -> str | None:
        """All that was said."""
        return "".join(b.text for b in self.blocks if isinstance(b, Text)) or None

    @property
    def thinking(self) -> str | None:
        """All that was thought, as far as it is shown."""
        return "".join(b.text for b in self.blocks if isinstance(b, Thinking)) or None


def parsed(arguments: str) -> dict[str, Any] | None:
    """Return a call's arguments; none at all are an empty object, `None` is no object."""
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


CUT_SHORT = frozenset({Stop.LENGTH, Stop.CONTEXT, Stop.SEQUENCE, Stop.REFUSED})
"""Stops that may leave a last call without all of its arguments."""


def stop_of(why: Stop, called: bool, whole: bool) -> Stop:
    """Return the stop as clients act on it. `whole`: the last call has all of its arguments.

    Backends say that a call which they were made to do ended as any text does; and a call that a
    stop sequence cut short must not run.
    """
    if called and (why is Stop.END or (why is Stop.SEQUENCE and whole)):
        return Stop.TOOLS
    return why


def collected(events: Iterable[Event]) -> Answer:
    """Put an answer together. A call that was cut short is left out. Raises `Unreadable`."""
    answer = Answer()
    calls: dict[int, Call] = {}
    is_open = False
    for event in events:
        last = answer.blocks[-1] if answer.blocks and is_open else None
        match event:
            case Began(name):
                answer.id = name
            case Said(text) if isinstance(last, Text):
                last.text += text
            case Thought(text) if isinstance(last, Thinking):
                last.text += text
            case Said(text) if text:
                answer.blocks.append(Text(text))
            case Thought(text) if text:
                answer.blocks.append(Thinking(text))
            case Signed(signature) if isinstance(last, Thinking):
                last.signature += signature
            case Signed(signature) if signature:
                answer.blocks.append(Thinking("", signature))
            case Withheld(data):
                answer.blocks.append(Redacted(data))
            case Called(key, name, function):
                answer.blocks.append(calls.setdefault(key, Call(name, function)))
            case Argued(key, text):
                calls[key].arguments += text
            case Stopped(why, sequence):
                answer.stop, answer.sequence = why, sequence
            case Counted(tokens):
                answer.tokens = tokens.after(answer.tokens)
            case Failed():
                raise Unreadable
        is_open = not isinstance(event, Closed)
    return _settled(answer)


def _settled(answer: Answer) -> Answer:
    partial = [call for call in answer.calls if call.parsed() is None]
    if partial and answer.stop not in CUT_SHORT:
        raise Unreadable
    answer.blocks = [b for b in answer.blocks if not isinstance(b, Call) or b.parsed() is not None]
    answer.stop = stop_of(answer.stop, bool(answer.calls), whole=not partial)
    return answer
