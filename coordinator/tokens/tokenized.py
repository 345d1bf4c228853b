"""A request's tokens as far as they are known, and why no further. Types only."""

from enum import Enum, StrEnum

import msgspec


class TokenState(Enum):
    """How far a request's tokens can be relied on."""

    EXACT = "exact"
    """Given, or from the model's own tokenizer."""
    ENGINE = "engine"
    """An engine tokenized the request."""
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Where tokens come from, why not from the model's tokenizer, or why there are none."""

    GIVEN = "given"
    LOCAL = "local"
    UNVERIFIED = "unverified"
    """Local, and no engine has confirmed that it tokenizes the same."""
    MEDIA = "media"
    """Known up to the first media part, or not at all when nothing local renders it."""

    NO_TOKENIZER = "no_tokenizer"
    LOADING = "loading"
    UNLOADABLE = "unloadable"
    DIFFERENT = "different"
    """An engine tokenized a probe otherwise than the directory."""
    UNCONFIRMED = "unconfirmed"
    """Engines may read the directory in another way, and none has confirmed ours."""
    TOOL_CHOICE = "tool_choice"
    """Tools that must not be chosen: an engine's setting says whether the prompt shows them."""
    CLIENT_TEMPLATE = "client_template"
    TEMPLATE = "template"
    """The template raised on this request, or the model has none."""

    BUDGET = "budget"
    BUSY = "busy"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    """Embeddings, truncation, or a request that the engine refuses to tokenize."""
    CONTINUATION = "continuation"
    """The prompt begins with a stored response, whose messages its engine alone knows."""
    ENGINE_ERROR = "engine_error"
    BREAKER_OPEN = "breaker_open"
    NO_ENGINE = "no_engine"


class Tokenized(msgspec.Struct, frozen=True):
    """A request's first prompt. `packed` ends at the first media part; then `count` is unknown."""

    state: TokenState
    reason: str
    packed: bytes | None = None
    count: int | None = None
