"""One form for every inbound API: a body is parsed once, and all that follows works on this.

Pure. Strict only where routing needs a field; the engine judges all others, so unknown fields pass
through. No message of this module repeats what the client sent, and no `repr` shows it.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coordinator.apis import CHAT_FORMS, METERED
from coordinator.apis import Api as Api
from coordinator.fields import (
    MAX_DEPTH,
    Invalid,
    Prompt,
    cache_salt_of,
    flag_of,
    inputs_of,
    is_media,
    is_too_deep,
    messages_of,
    model_of,
    most_of,
    parts_of,
    previous_response_of,
    prompts_of,
    session_of,
    stream_options_of,
    tools_of,
    whole_of,
)
from coordinator.fields import BadRequest as BadRequest
from coordinator.translate.requests import Untranslatable, chat_form

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

MAX_TOKENS_KEYS: Mapping[Api, Sequence[str]] = {
    Api.OPENAI_CHAT: ("max_completion_tokens", "max_tokens"),
    Api.OPENAI_COMPLETIONS: ("max_tokens",),
    Api.OPENAI_RESPONSES: ("max_output_tokens",),
    Api.OPENAI_EMBEDDINGS: (),
    Api.ANTHROPIC_MESSAGES: ("max_tokens",),
}
"""What bounds the output; an engine takes the first that is there."""

ANNOUNCE = {"kv_cache_report_mode": "full"}
FORBIDDEN_XARGS = frozenset(ANNOUNCE)  # upsets the count of a block's copies
"""The same inside `vllm_xargs`."""

MAX_CONTAINERS = 50_000
"""A body of more objects and lists is refused: reading one costs about 2 us of the event loop."""

MAX_VALUES = 2_000_000
"""The same for values in all of them, at 0.1 us each: a prompt of two million token ids."""


class Canonical(msgspec.Struct, frozen=True):  # of its many fields a dataclass takes 7 us
    """A request that can be routed. `body` and all that hangs from it is never changed."""

    api: Api
    model: str
    body: Mapping[str, Any]
    raw: bytes
    """The body as it came."""
    chat: Mapping[str, Any]
    """The body as an OpenAI chat, which is what prompts are rendered from; a completion's own."""
    messages: Sequence[Mapping[str, Any]]
    """In OpenAI's form whatever the API. Empty for a completion."""
    prompts: tuple[Prompt, ...]
    """Empty for a chat, and for a completion of embeddings. Routing uses the first."""
    tools: Sequence[Mapping[str, Any]] | None
    """In OpenAI's form too."""
    stream: bool
    usage_asked: bool
    """The client wants the usage chunk in its stream."""
    max_tokens: int | None
    n: int
    cache_salt: str | None
    has_media: bool
    session: bytes | None
    """What the client calls this conversation, with the kind of name in front."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By lower-case name. Policies may ask for some."""
    previous_response: str | None = None
    """The stored response that this goes on from: its messages are known to its engine alone."""

    def __repr__(self) -> str:
        """Show nothing of what the client wrote."""
        return f"Canonical(api={self.api}, model={self.model!r}, {len(self.raw)} bytes)"

    @property
    def is_chat(self) -> bool:
        """Whether the prompt comes from a template."""
        return bool(self.messages)

    @property
    def skips_cache(self) -> bool:
        """Whether engines compute the whole prompt anew: its log probabilities are asked for."""
        by_echo = "top_logprobs" if self.is_chat else "logprobs"
        body = self.chat
        return body.get("prompt_logprobs") is not None or (
            body.get("echo") is True and body.get(by_echo) is not None
        )

    @property
    def is_single(self) -> bool:
        """Whether it is one sequence, so that what an engine says of its cache is about one."""
        return self.n == 1 and len(self.prompts) <= 1

    def bare(self) -> "Canonical":
        """Return this without what the client wrote: all that accounts need."""
        prompts = (b"",) * len(self.prompts)
        return Canonical(
            self.api, self.model, _NOTHING, b"", _NOTHING, (), prompts, None, self.stream,
            self.usage_asked, self.max_tokens, self.n, self.cache_salt, self.has_media,
            self.session, _NOTHING, self.previous_response,
        )  # fmt: skip

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
    opened = _opened(body)
    if opened > MAX_CONTAINERS or (len(body) > MAX_VALUES and body.count(b",") > MAX_VALUES):
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
    if opened > MAX_DEPTH and is_too_deep(decoded):
        return BadRequest(_TOO_DEEP, None)
    try:
        return _canonical(api, headers, decoded, body)
    except (Invalid, Untranslatable) as invalid:
        return BadRequest(invalid.message, invalid.param)


class Changes(msgspec.Struct, frozen=True):
    """What the operator's side changes in a body."""

    model: str
    """Who will serve it, by the backend's own name."""
    meter: bool = True
    """Streams are to report usage."""
    announce: bool = False
    """The engine is to announce the blocks that it hits as if it had just stored them."""
    max_tokens: int | None = None
    """At most so many tokens of output."""
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Parameters where the client has none."""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
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
    if (
        canonical.api in METERED
        and canonical.stream
        and changes.meter
        and not canonical.usage_asked
    ):
        options = dict(body.get("stream_options") or {})
        # Without usage an engine ignores this option; with usage it would now add to every chunk.
        options.pop("continuous_usage_stats", None)
        changed["stream_options"] = {**options, "include_usage": True}
    if changes.max_tokens is not None:
        changed |= _capped(canonical.api, {**body, **changed}, changes.max_tokens)
    forbidden = FORBIDDEN_KEYS | VLLM_KEYS if changes.foreign else FORBIDDEN_KEYS
    if not changes.foreign:
        announce = changes.announce and canonical.api is not Api.OPENAI_EMBEDDINGS
        changed |= _xargs(body.get("vllm_xargs"), announce)
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
    known = MAX_TOKENS_KEYS[api]
    names = [name for name in known if body.get(name) is not None] or known[-1:]
    limits = {name: body[name] for name in names if name in body}
    return {
        name: most
        for name in names
        if not (isinstance(limits.get(name), int | float) and limits[name] <= most)
    }


def _opened(body: bytes) -> int:
    """Return how many objects and lists a body may open; of a small one no more than matter.

    Few brackets in much text are found in a tenth of the time that counting takes.
    """
    if len(body) > MAX_CONTAINERS:
        return body.count(b"[") + body.count(b"{")
    opened, find = 0, body.find
    for bracket in (b"[", b"{"):
        at = find(bracket)
        while at >= 0 and opened <= MAX_DEPTH:
            opened, at = opened + 1, find(bracket, at + 1)
    return opened


_encode = msgspec.json.encode
_NOTHING: Mapping[str, Any] = {}
_TOO_MUCH = (
    f"the body must hold at most {MAX_CONTAINERS} objects and lists, and {MAX_VALUES} values"
)
_TOO_DEEP = f"the body must be nested at most {MAX_DEPTH} levels deep"


def _canonical(api: Api, headers: Mapping[str, str], body: dict[str, Any], raw: bytes) -> Canonical:
    model = model_of(body)
    previous = previous_response_of(body) if api is Api.OPENAI_RESPONSES else None
    chat = _chat(api, body)
    messages = messages_of(chat) if api in CHAT_FORMS or _is_chat_to_embed(api, body) else ()
    usage = stream_options_of(body).get("include_usage") is True
    return Canonical(
        api=api,
        model=model,
        body=body,
        raw=raw,
        chat=chat,
        messages=messages,
        prompts=() if messages else _prompts(api, body),
        tools=tools_of(chat) if messages else None,
        stream=flag_of(body, "stream") and api is not Api.OPENAI_EMBEDDINGS,
        usage_asked=usage or api not in METERED,
        max_tokens=0 if api is Api.OPENAI_EMBEDDINGS else most_of(body, MAX_TOKENS_KEYS[api]),
        n=(whole_of(body, "n", at_least=1) or 1) if api in METERED else 1,
        cache_salt=cache_salt_of(body),
        has_media=any(any(map(is_media, parts_of(message))) for message in messages),
        session=session_of(headers, body),
        headers=headers,
        previous_response=previous,
    )


def _chat(api: Api, body: dict[str, Any]) -> Mapping[str, Any]:
    """Return a body in the form of an OpenAI chat, where it holds a conversation."""
    match api:
        case Api.ANTHROPIC_MESSAGES:
            if not body.get("messages"):  # its system alone would make a chat
                messages_of(body)
            return chat_form(api, body)
        case Api.OPENAI_RESPONSES:
            return chat_form(api, {k: v for k, v in body.items() if k != "previous_response_id"})
        case Api.OPENAI_EMBEDDINGS if _is_chat_to_embed(api, body):
            return {"add_generation_prompt": False, **body}
        case _:
            return body


def _is_chat_to_embed(api: Api, body: Mapping[str, Any]) -> bool:
    return api is Api.OPENAI_EMBEDDINGS and body.get("messages") is not None


def _prompts(api: Api, body: Mapping[str, Any]) -> tuple[Prompt, ...]:
    return inputs_of(body) if api is Api.OPENAI_EMBEDDINGS else prompts_of(body)


_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _first_turn(canonical: Canonical) -> Any:
    if canonical.prompts:
        return canonical.prompts[0]
    users = (message for message in canonical.messages if message["role"] == "user")
    first = next(users, canonical.messages[0] if canonical.messages else {})
    return first.get("content")
