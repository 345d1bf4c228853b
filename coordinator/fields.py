"""Single fields of a body, read and judged: what routing needs, and in which words it is refused.

Pure. No message repeats what the client sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lineside.hashing import pack

Prompt: TypeAlias = str | bytes
"""A completion's prompt: text, or token ids packed as `lineside.hashing.chain` reads them."""

TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"}
)
"""Content parts that end up as text in the prompt; every other type counts as media."""

MAX_DEPTH = 128
"""A body nested deeper is refused, so that nothing behind the door can run out of stack."""

MAX_MODEL_CHARS = 256
"""A longer name serves nothing, and records keep names."""

MAX_CACHE_SALT_CHARS = 1024
"""Bounds what is hashed; engines may take less, and say so."""

MAX_ID_CHARS = 256
"""A longer id of a response was made by no engine, and is remembered of none."""


@dataclass(frozen=True, slots=True)
class BadRequest:
    """What the client must change, in one sentence, and the field that it concerns."""

    message: str
    param: str | None


class Invalid(Exception):
    """A field that routing needs is unusable. Ends in a `BadRequest`; leaves no door's parsing."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def model_of(body: Mapping[str, Any]) -> str:
    """Return the name of the model."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Invalid("`model` must name a model", "model")
    if len(model) > MAX_MODEL_CHARS:
        raise Invalid(f"`model` must have at most {MAX_MODEL_CHARS} characters", "model")
    return model


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a conversation."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Invalid("`messages` must be a list with at least one message", "messages")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise Invalid(f"`messages[{at}]` must be an object", "messages")
        if not isinstance(message.get("role"), str):
            raise Invalid(f"`messages[{at}].role` must be a string", "messages")
        _check_content(message.get("content"), f"messages[{at}].content")
    return messages


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Invalid(f"`{where}` must be a string or a list of content parts", "messages")
    for at, part in enumerate(content):
        if not isinstance(part, str | dict):
            raise Invalid(f"`{where}[{at}]` must be an object with a `type`", "messages")
        if isinstance(part, dict) and not isinstance(part.get("type", ""), str):
            raise Invalid(f"`{where}[{at}].type` must be a string", "messages")


def parts_of(message: Mapping[str, Any]) -> Sequence[Any]:
    """Return the parts of a message; text alone is none."""
    content = message.get("content")
    return content if isinstance(content, list) else ()


def is_media(part: Any) -> bool:
    """Whether a content part is something else than text."""
    if isinstance(part, str):
        return False
    kind = part.get("type")
    return kind not in TEXT_PARTS and not (kind is None and isinstance(part.get("text"), str))


def prompts_of(body: Mapping[str, Any], name: str = "prompt") -> tuple[Prompt, ...]:
    """Return the prompts of a completion; none for one of embeddings."""
    prompt = body.get(name)
    if prompt is None and body.get("prompt_embeds") is not None:
        return ()
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise Invalid(f"`{name}` must be text, token ids, or a list of either", name)
    if isinstance(prompt[0], int):
        return (_packed(prompt, name),)
    return tuple(each if isinstance(each, str) else _packed(each, name) for each in prompt)


def inputs_of(body: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """Return the texts to embed, as a completion's prompts."""
    given = body.get("input")
    if given is None:
        raise Invalid("`input` must be text, token ids, or a list of either", "input")
    return prompts_of(body, "input")


def _packed(ids: Any, name: str) -> bytes:
    if not isinstance(ids, list) or not ids:
        raise Invalid("each prompt must be text or a list of at least one token id", name)
    try:
        return pack(ids)
    except TypeError:
        raise Invalid("a prompt of token ids must hold whole numbers only", name) from None
    except OverflowError:
        raise Invalid("each token id must be between 0 and 4294967295", name) from None


def tools_of(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools; `None` where the client names none."""
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Invalid("`tools` must be a list of objects", "tools")
    return tools


def stream_options_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a stream."""
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Invalid("`stream_options` must be an object", "stream_options")
    if not isinstance(options.get("include_usage") or False, bool):
        raise Invalid("`stream_options.include_usage` must be true or false", "stream_options")
    return options


def most_of(body: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return what bounds the output: the first of these fields that is there."""
    most = None
    for name in names:
        limit = whole_of(body, name, at_least=0)
        most = limit if most is None else most
    return most


def cache_salt_of(body: Mapping[str, Any]) -> str | None:
    """Return what keeps this prompt's cache apart."""
    salt = body.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_CACHE_SALT_CHARS:
        message = f"`cache_salt` must be a string of 1 to {MAX_CACHE_SALT_CHARS} characters"
        raise Invalid(message, "cache_salt")
    return salt


def flag_of(body: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; absent is false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Invalid(f"`{name}` must be true or false", name)
    return bool(value)


def whole_of(body: Mapping[str, Any], name: str, at_least: int) -> int | None:
    """Return a whole number."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # some clients send 16.0
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise Invalid(f"`{name}` must be a whole number of at least {at_least}", name)
    return value


def session_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> bytes | None:
    """Return what the client calls its conversation, with the kind of name in front."""
    for kind, value in (
        ("session", headers.get("x-session-id")),
        ("session", body.get("session_id")),
        ("response", body.get("previous_response_id")),
    ):
        if isinstance(value, str) and value:
            # A header that is not UTF-8 arrives with lone surrogates.
            return f"{kind}:{value}".encode(errors="surrogateescape")
    return None


def previous_response_of(body: Mapping[str, Any]) -> str | None:
    """Return the id of the response that a request goes on from."""
    given = body.get("previous_response_id")
    if given is None:
        return None
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID_CHARS:
        message = f"`previous_response_id` must be a string of 1 to {MAX_ID_CHARS} characters"
        raise Invalid(message, "previous_response_id")
    return given


def is_too_deep(value: Any) -> bool:
    """Whether a body is nested beyond what anything here walks."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
