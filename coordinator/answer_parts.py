"""What is read of answers, whole or in events: usage, output, and why it ended. Pure.

Every API's words come down to those of a chat: `stop`, `length`, `tool_calls`; prompt tokens count
what was cached and what was not.
"""

from typing import Any

import msgspec

from coordinator.apis import Api
from coordinator.limits import Usage
from lineside.decoding import Reader


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _ChatUsage(msgspec.Struct):
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


class Chunk(msgspec.Struct):
    """A chat or completion, whole or a chunk of one; also embeddings."""

    choices: list[_Choice] | None = None
    usage: _ChatUsage | None = None
    error: Any = None


class MessageUsage(msgspec.Struct):
    """Usage as Anthropic counts it: input is what was neither read from the cache nor written."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def after(self, started: "MessageUsage") -> "MessageUsage":
        """Return the last word on each count: a stream's end may leave out what its start said."""
        fields = self.__struct_fields__
        return MessageUsage(
            *(getattr(started if getattr(self, f) is None else self, f) for f in fields)
        )

    def read(self) -> Usage:
        """Return the usage in the words of a chat."""
        cached = self.cache_read_input_tokens
        fresh = None
        if self.input_tokens is not None:
            fresh = self.input_tokens + (cached or 0) + (self.cache_creation_input_tokens or 0)
        return Usage(fresh, cached, self.output_tokens)


class _Message(msgspec.Struct):
    usage: MessageUsage | None = None
    stop_reason: str | None = None


class MessageEvent(msgspec.Struct):
    """An event of a stream of messages."""

    type: str = ""
    message: _Message | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None

    def says_something(self) -> bool:
        """Whether there is output: a block that is announced empty is none."""
        said = self.delta or self.content_block or {}
        if said.get("type") in ("tool_use", "server_tool_use", "redacted_thinking"):
            return True
        return any(said.get(key) for key in ("text", "thinking", "partial_json", "signature"))


class _ResponseUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None

    def read(self) -> Usage:
        details = self.input_tokens_details
        cached = None if details is None else details.cached_tokens
        return Usage(self.input_tokens, cached, self.output_tokens)


class Response(msgspec.Struct):
    """A response, whole or as some events carry it."""

    id: str | None = None
    status: str | None = None
    usage: _ResponseUsage | None = None
    incomplete_details: dict[str, Any] | None = None


class ResponseEvent(msgspec.Struct):
    """An event of a stream of a response."""

    type: str = ""
    response: Response | None = None


CHUNK = Reader(Chunk)
MESSAGE_EVENT = Reader(MessageEvent)
RESPONSE_EVENT = Reader(ResponseEvent)
_MESSAGE = Reader(_Message)
_RESPONSE = Reader(Response)

STARTS = frozenset(
    {
        *("response.created", "response.queued", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.reasoning_part.added", "response.reasoning_summary_part.added"),
    }
)
"""Events of a response that announce, and bring no output."""


def message_finish(reason: Any) -> str | None:
    """Return why a message ended, in the words of a chat."""
    return _FINISH.get(reason, reason) if isinstance(reason, str) else None


def response_finish(response: Response) -> str | None:
    """Return why a response ended, in the words of a chat."""
    if response.status == "incomplete":
        reason = (response.incomplete_details or {}).get("reason")
        if isinstance(reason, str):
            return "length" if reason == "max_output_tokens" else reason
        return None
    return "stop" if response.status == "completed" else None


_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def read_answer(body: bytes, api: Api = Api.OPENAI_CHAT) -> tuple[Usage, str | None]:
    """Return the usage of an answer that was not streamed, and why its generation ended."""
    try:
        match api:
            case Api.ANTHROPIC_MESSAGES:
                message = _MESSAGE.decode(body)
                usage = message.usage.read() if message.usage else Usage()
                return usage, message_finish(message.stop_reason)
            case Api.OPENAI_RESPONSES:
                response = _RESPONSE.decode(body)
                usage = response.usage.read() if response.usage else Usage()
                return usage, response_finish(response)
            case _:
                answer = CHUNK.decode(body)
    except msgspec.MsgspecError:
        return Usage(), None
    finish = next((c.finish_reason for c in answer.choices or () if c.finish_reason), None)
    return (answer.usage.read() if answer.usage else Usage()), finish


def response_id(body: bytes) -> str | None:
    """Return the id of a response that was not streamed."""
    try:
        return _RESPONSE.decode(body).id
    except msgspec.MsgspecError:
        return None
