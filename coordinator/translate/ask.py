"""A request in no API's words: what every reader of bodies makes and every writer takes. Pure.

Each part knows the place that it has in the client's body, so that whoever cannot carry it can say
which one to change.
"""

from typing import Any, Literal, TypeAlias

import msgspec

from coordinator.translate.untranslatable import Untranslatable, cannot_carry

Json: TypeAlias = dict[str, Any]


class Text(msgspec.Struct):
    """Text."""

    text: str
    at: str
    cache: Json | None = None
    """Anthropic's mark: what is up to here is worth to be cached."""


class Image(msgspec.Struct):
    """An image: at an address, or its data in base64."""

    at: str
    url: str = ""
    media_type: str = ""
    data: str = ""
    cache: Json | None = None


class Document(msgspec.Struct):
    """A PDF in base64."""

    at: str
    data: str
    title: str | None = None
    cache: Json | None = None


class Thinking(msgspec.Struct):
    """What the model thought in an earlier turn; without a signature no API takes it back."""

    text: str
    signature: str
    at: str


class Redacted(msgspec.Struct):
    """The same, readable to the backend alone."""

    data: str
    at: str


class Use(msgspec.Struct):
    """A call of a tool."""

    id: str
    name: str
    input: Json
    at: str
    cache: Json | None = None


Shown: TypeAlias = Text | Image | Document


class Result(msgspec.Struct):
    """What a call came to."""

    id: str
    shown: list[Shown]
    is_error: bool
    at: str
    cache: Json | None = None


Block: TypeAlias = Text | Image | Document | Thinking | Redacted | Use | Result


class Turn(msgspec.Struct):
    """What one side says. Results of calls are the user's, and come first."""

    role: Literal["user", "assistant", "system"]
    blocks: list[Block]
    at: str


class Tool(msgspec.Struct):
    """A tool that the model may call."""

    name: str
    description: str | None
    schema: Json
    strict: bool | None = None
    cache: Json | None = None


class Choice(msgspec.Struct):
    """How the model must use tools; `name`: the one that it must call."""

    kind: Literal["auto", "any", "none", "tool"]
    name: str | None = None


class Ask(msgspec.Struct):
    """All of it. `None`: not said."""

    model: str
    turns: list[Turn]
    fields: dict[str, str]
    """What the client's API calls a field here, where it is not the same."""
    system: list[Text] = []
    tools: list[Tool] = []
    choice: Choice | None = None
    parallel: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stops: list[str] = []
    user: str | None = None
    stream: bool = False
    effort: str | None = None
    """How much to think: `minimal` to `max`."""
    thinking: Json | None = None
    """Anthropic's way to say whether to think."""
    schema: Json | None = None
    """What the answer must be an instance of."""

    def refuse(self, field: str, instead: str = "leave it out") -> Untranslatable:
        """Return the error for a field that the backend's API does not have, or not so."""
        return cannot_carry(self.fields.get(field, field), instead)

    @property
    def uses(self) -> list[Use]:
        """All calls in earlier turns."""
        return [block for turn in self.turns for block in turn.blocks if isinstance(block, Use)]
