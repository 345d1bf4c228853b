"""One form for every inbound API: a body is parsed once, and all that follows works on this.

Pure. Strict only where routing needs a field; the engine judges all others, so unknown fields pass
through. No message of this module repeats what the client sent, and no `repr` shows it.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from lineside.hashing import pack

Prompt = str | bytes
"""A completion's prompt: text, or token ids packed as `lineside.hashing.chain` reads them."""

FORBIDDEN_KEYS = frozenset(
    {
        "kv_transfer_params",  # replaces the prompt's tokens, and names other engines' blocks
        "ec_transfer_params",  # the same for encoder outputs
        "priority",  # jumps the engine's queue
        "request_id",  # would collide with, and abort, another client's request
    }
)
"""Keys of a body that only the operator's side may set; `rewrite` drops them."""

VLLM_KEYS = frozenset({"cache_salt", "vllm_xargs", "chat_template_kwargs"})
"""Keys that only vLLM knows; other backends refuse a body with them."""

MAX_TOKENS_KEYS = ("max_completion_tokens", "max_tokens")
"""What bounds the output; an engine takes the first that is there."""

ANNOUNCE = {"kv_cache_report_mode": "full"}
FORBIDDEN_XARGS = frozenset(ANNOUNCE)  # upsets the count of a block's copies
"""The same inside `vllm_xargs`."""

TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"}
)
"""Content parts that end up as text in the prompt; every other type counts as media."""

MAX_DEPTH = 128
"""A body nested deeper is refused, so that nothing behind the door can run out of stack."""

MAX_CONTAINERS = 50_000
"""A body of more objects and lists is refused: reading one costs about 2 us of the event loop."""

MAX_VALUES = 2_000_000
"""The same for values in all of them, at 0.1 us each: a prompt of two million token ids."""

MAX_MODEL_CHARS = 256
"""A longer name serves nothing, and records keep names."""

MAX_CACHE_SALT_CHARS = 1024
"""Bounds what is hashed; engines may take less, and say so."""


class Api(Enum):
    """The inbound API, as records and metrics name it."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_COMPLETIONS = "openai-completions"


@dataclass(frozen=True, slots=True)
class BadRequest:
    """What the client must change, in one sentence, and the field that it concerns."""

    message: str
    param: str | None


@dataclass(frozen=True, slots=True)
class Canonical:
    """A request that can be routed. `body` and all that hangs from it is never changed."""

    api: Api
    model: str
    body: Mapping[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    """The body as it came."""
    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    """Empty for a completion."""
    prompts: tuple[Prompt, ...] = field(repr=False)
    """Empty for a chat, and for a completion of embeddings. Routing uses the first."""
    tools: Sequence[Mapping[str, Any]] | None = field(repr=False)
    stream: bool
    usage_asked: bool
    """The client wants the usage chunk in its stream."""
    max_tokens: int | None
    n: int
    cache_salt: str | None = field(repr=False)
    has_media: bool
    session: bytes | None = field(repr=False)
    """What the client calls this conversation, with the kind of name in front."""
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    """By lower-case name. Policies may ask for some."""

    @property
    def skips_cache(self) -> bool:
        """Whether engines compute the whole prompt anew: its log probabilities are asked for."""
        by_echo = "top_logprobs" if self.api is Api.OPENAI_CHAT else "logprobs"
        body = self.body
        return body.get("prompt_logprobs") is not None or (
            body.get("echo") is True and body.get(by_echo) is not None
        )

    @property
    def is_single(self) -> bool:
        """Whether it is one sequence, so that what an engine says of its cache is about one."""
        return self.n == 1 and len(self.prompts) <= 1

    def conversation(self, secret: bytes) -> str:
        """Return 16 hex digits that stay the same over a conversation's turns.

        From the client's session id, else from the first user turn. A completion without one has no
        turns to tell apart: its whole first prompt counts, so that a shared preamble does not put
        all of a tenant's requests on one side of a split.
        """
        name = self.session or b"turn:" + _encode(_first_turn(self))
        return hmac.digest(secret, name, "sha256")[:8].hex()


def parse(api: Api, headers: Mapping[str, str], body: bytes) -> Canonical | BadRequest:
    """Read a body. `headers` have lower-case names."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MAX_CONTAINERS or body.count(b",") > MAX_VALUES:
        bare = _STRINGS.sub(b"", body)  # about 2 ms per megabyte
        if bare.count(b"[") + bare.count(b"{") > MAX_CONTAINERS or bare.count(b",") > MAX_VALUES:
            return BadRequest(_TOO_MUCH, None)
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:  # also lone surrogates, NaN and infinities
        return BadRequest("the body must be valid JSON in UTF-8", None)
    except RecursionError:
        return BadRequest(_TOO_DEEP, None)
    if not isinstance(decoded, dict):
        return BadRequest("the body must be a JSON object", None)
    if brackets > MAX_DEPTH and _is_too_deep(decoded):
        return BadRequest(_TOO_DEEP, None)
    try:
        return _canonical(api, headers, decoded, body)
    except _Invalid as invalid:
        return BadRequest(invalid.message, invalid.param)


@dataclass(frozen=True, slots=True)
class Changes:
    """What the operator's side changes in a body."""

    model: str
    """Who will serve it, by the backend's own name."""
    meter: bool = True
    """Streams are to report usage."""
    announce: bool = False
    """The engine is to announce the blocks that it hits as if it had just stored them."""
    max_tokens: int | None = None
    """At most so many tokens of output."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameters where the client has none."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters whatever the client has."""
    foreign: bool = False
    """The backend is not an engine of ours: what only vLLM knows stays here."""


def rewrite(canonical: Canonical, changes: Changes) -> bytes:
    """Return the backend's body: the model that will serve, usage metered, no forbidden key.

    Order and all other fields stay; a body that needs no change is returned as it came.
    """
    body = canonical.body
    changed: dict[str, Any] = {k: v for k, v in changes.defaults.items() if body.get(k) is None}
    changed |= changes.parameters
    if changes.model != canonical.model:
        changed["model"] = changes.model
    if canonical.stream and changes.meter and not canonical.usage_asked:
        options = dict(body.get("stream_options") or {})
        # Without usage an engine ignores this option; with usage it would now add to every chunk.
        options.pop("continuous_usage_stats", None)
        changed["stream_options"] = {**options, "include_usage": True}
    if changes.max_tokens is not None:
        changed |= _capped(canonical.api, {**body, **changed}, changes.max_tokens)
    forbidden = FORBIDDEN_KEYS | VLLM_KEYS if changes.foreign else FORBIDDEN_KEYS
    if not changes.foreign:
        changed |= _xargs(body.get("vllm_xargs"), changes.announce)
    if not changed and forbidden.isdisjoint(body):
        return canonical.raw
    return _encode({k: v for k, v in body.items() if k not in forbidden} | changed)


def _xargs(xargs: Any, announce: bool) -> dict[str, Any]:
    kept = xargs
    if isinstance(xargs, dict) and not FORBIDDEN_XARGS.isdisjoint(xargs):
        kept = {k: v for k, v in xargs.items() if k not in FORBIDDEN_XARGS}
    if announce and (xargs is None or isinstance(xargs, dict)):
        kept = {**(kept or {}), **ANNOUNCE}
    return {} if kept is xargs else {"vllm_xargs": kept}


def _capped(api: Api, body: Mapping[str, Any], most: int) -> dict[str, int]:
    """Return the output limit where the body's is absent or higher, or none that counts."""
    known = MAX_TOKENS_KEYS if api is Api.OPENAI_CHAT else MAX_TOKENS_KEYS[-1:]
    names = [name for name in known if body.get(name) is not None]
    limits = {name: body[name] for name in names or known[-1:] if name in body}
    return {
        name: most
        for name in names or known[-1:]
        if not (isinstance(limits.get(name), int | float) and limits[name] <= most)
    }


_encode = msgspec.json.encode
_TOO_MUCH = (
    f"the body must hold at most {MAX_CONTAINERS} objects and lists, and {MAX_VALUES} values"
)
_TOO_DEEP = f"the body must be nested at most {MAX_DEPTH} levels deep"


class _Invalid(Exception):
    """A field that routing needs is unusable. Ends in a `BadRequest`; never leaves this module."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def _canonical(api: Api, headers: Mapping[str, str], body: dict[str, Any], raw: bytes) -> Canonical:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _Invalid("`model` must name a model", "model")
    if len(model) > MAX_MODEL_CHARS:
        raise _Invalid(f"`model` must have at most {MAX_MODEL_CHARS} characters", "model")
    is_chat = api is Api.OPENAI_CHAT
    messages = _messages(body) if is_chat else ()
    stream_options = _stream_options(body)
    return Canonical(
        api=api,
        model=model,
        body=body,
        raw=raw,
        messages=messages,
        prompts=() if is_chat else _prompts(body),
        tools=_tools(body) if is_chat else None,
        stream=_flag(body, "stream"),
        usage_asked=stream_options.get("include_usage") is True,
        max_tokens=_max_tokens(body, is_chat),
        n=_whole(body, "n", at_least=1) or 1,
        cache_salt=_cache_salt(body),
        has_media=any(is_media(part) for message in messages for part in _parts(message)),
        session=_session(headers, body),
        headers=headers,
    )


_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _is_too_deep(value: Any) -> bool:
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


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Invalid("`messages` must be a list with at least one message", "messages")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _Invalid(f"`messages[{at}]` must be an object", "messages")
        if not isinstance(message.get("role"), str):
            raise _Invalid(f"`messages[{at}].role` must be a string", "messages")
        _check_content(message.get("content"), f"messages[{at}].content")
    return messages


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise _Invalid(f"`{where}` must be a string or a list of content parts", "messages")
    for at, part in enumerate(content):
        if not isinstance(part, str | dict):
            raise _Invalid(f"`{where}[{at}]` must be an object with a `type`", "messages")
        if isinstance(part, dict) and not isinstance(part.get("type", ""), str):
            raise _Invalid(f"`{where}[{at}].type` must be a string", "messages")


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def is_media(part: Any) -> bool:
    """Whether a content part is something else than text."""
    if isinstance(part, str):
        return False
    kind = part.get("type")
    return kind not in TEXT_PARTS and not (kind is None and isinstance(part.get("text"), str))


def _prompts(body: dict[str, Any]) -> tuple[Prompt, ...]:
    prompt = body.get("prompt")
    if prompt is None and body.get("prompt_embeds") is not None:
        return ()
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise _Invalid("`prompt` must be text, token ids, or a list of either", "prompt")
    if isinstance(prompt[0], int):
        return (_packed(prompt),)
    return tuple(each if isinstance(each, str) else _packed(each) for each in prompt)


def _packed(ids: Any) -> bytes:
    if not isinstance(ids, list) or not ids:
        raise _Invalid("each prompt must be text or a list of at least one token id", "prompt")
    try:
        return pack(ids)
    except TypeError:
        raise _Invalid("a prompt of token ids must hold whole numbers only", "prompt") from None
    except OverflowError:
        raise _Invalid("each token id must be between 0 and 4294967295", "prompt") from None


def _tools(body: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _Invalid("`tools` must be a list of objects", "tools")
    return tools


def _stream_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _Invalid("`stream_options` must be an object", "stream_options")
    if not isinstance(options.get("include_usage") or False, bool):
        raise _Invalid("`stream_options.include_usage` must be true or false", "stream_options")
    return options


def _max_tokens(body: dict[str, Any], is_chat: bool) -> int | None:
    legacy = _whole(body, "max_tokens", at_least=0)
    newer = _whole(body, "max_completion_tokens", at_least=0) if is_chat else None
    return legacy if newer is None else newer


def _cache_salt(body: dict[str, Any]) -> str | None:
    salt = body.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not 0 < len(salt) <= MAX_CACHE_SALT_CHARS:
        message = f"`cache_salt` must be a string of 1 to {MAX_CACHE_SALT_CHARS} characters"
        raise _Invalid(message, "cache_salt")
    return salt


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _Invalid(f"`{name}` must be true or false", name)
    return bool(value)


def _whole(body: dict[str, Any], name: str, at_least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # some clients send 16.0
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise _Invalid(f"`{name}` must be a whole number of at least {at_least}", name)
    return value


def _session(headers: Mapping[str, str], body: dict[str, Any]) -> bytes | None:
    for kind, value in (
        ("session", headers.get("x-session-id")),
        ("session", body.get("session_id")),
        ("response", body.get("previous_response_id")),
    ):
        if isinstance(value, str) and value:
            # A header that is not UTF-8 arrives with lone surrogates.
            return f"{kind}:{value}".encode(errors="surrogateescape")
    return None


def _first_turn(canonical: Canonical) -> Any:
    if canonical.prompts:
        return canonical.prompts[0]
    users = (message for message in canonical.messages if message["role"] == "user")
    first = next(users, canonical.messages[0] if canonical.messages else {})
    return first.get("content")
