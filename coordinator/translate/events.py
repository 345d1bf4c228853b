"""What a model says and does, in no API's words: what every reader makes and every writer takes.

Pure values. An answer is `Began`, any number of blocks in their order, `Stopped`, `Counted` and
`Done`. Parts of one block come one after another, save for calls: several can go on at once.
"""

from enum import Enum
from typing import TypeAlias

import msgspec

from coordinator.limits import Usage


class Stop(Enum):
    """Why a model stopped."""

    END = "end"
    SEQUENCE = "sequence"
    LENGTH = "length"
    CONTEXT = "context"
    """Nothing more fits into what the model can look at."""
    TOOLS = "tools"
    REFUSED = "refused"
    PAUSED = "paused"


class Tokens(msgspec.Struct, frozen=True):
    """What an answer cost; each token counts in one field. `None`: not known."""

    fresh: int | None = None
    """Of the prompt, neither read from a cache nor written to one."""
    read: int | None = None
    written: int | None = None
    output: int | None = None
    reasoning: int | None = None
    """Of the output; counted there too."""

    @property
    def prompt(self) -> int | None:
        """The whole prompt."""
        if self.fresh is None:
            return None
        return self.fresh + (self.read or 0) + (self.written or 0)

    def after(self, before: "Tokens") -> "Tokens":
        """Return the last word on each count."""
        fields = self.__struct_fields__
        last = [getattr(before if getattr(self, f) is None else self, f) for f in fields]
        return Tokens(*last)

    def usage(self) -> Usage:
        """Return it as limits and records count."""
        return Usage(self.prompt, self.read, self.output)


def tokens_of_prompt(
    prompt: int | None,
    read: int | None,
    written: int | None,
    output: int | None,
    reasoning: int | None,
) -> Tokens:
    """Return the counts of an API whose prompt tokens include those of caches."""
    fresh = None if prompt is None else max(0, prompt - (read or 0) - (written or 0))
    return Tokens(fresh, read, written, output, reasoning)


class Began(msgspec.Struct, frozen=True):
    """An answer has begun. `id`: its name at the backend, where it says one."""

    id: str | None = None


class Said(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """Text that the model wrote for itself."""

    text: str


class Signed(msgspec.Struct, frozen=True):
    """The backend's proof that the thoughts before it are its own."""

    signature: str


class Withheld(msgspec.Struct, frozen=True):
    """Thoughts that only the backend can read."""

    data: str


class Called(msgspec.Struct, frozen=True):
    """A call of a tool has begun."""

    call: int
    id: str
    name: str


class Argued(msgspec.Struct, frozen=True):
    """A piece of the JSON of a call's arguments."""

    call: int
    text: str


class Closed(msgspec.Struct, frozen=True):
    """A block is complete. `call`: which one, if it is a call."""

    call: int | None = None


class Stopped(msgspec.Struct, frozen=True):
    """The model stopped. `sequence`: at these words, if they are known."""

    why: Stop
    sequence: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """What is known of the cost by now."""

    tokens: Tokens


class Failed(msgspec.Struct, frozen=True):
    """The backend broke off. `text`: in its own words, which clients may not be meant to see."""

    status: int
    text: str = ""


class Done(msgspec.Struct, frozen=True):
    """The backend said that the answer is complete."""


Event: TypeAlias = (
    Began
    | Said
    | Thought
    | Signed
    | Withheld
    | Called
    | Argued
    | Closed
    | Stopped
    | Counted
    | Failed
    | Done
)

BROKEN = Failed(502, "the backend's stream could not be read")
"""Instead of what is not in the backend's own format."""


class Unreadable(Exception):
    """An answer is not in the backend's own format. Holds nothing of it."""


def is_content(event: Event) -> bool:
    """Whether it is output of the model; frames around it are none."""
    match event:
        case Said(text) | Thought(text) | Argued(_, text):
            return bool(text)
        case Called() | Withheld():
            return True
        case _:
            return False
