"""What is known of a request when it is decided: its tokens, its plan, its weight. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from coordinator.canonical import Canonical
from coordinator.rules import Bench
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside.ids import BlockKey, GroupId, ModelName, TenantId
from policies.evaluate import Plan

BYTES_PER_TOKEN = 4
"""What an unknown prompt is taken to weigh in a queue; used for load, never shown."""

MEDIA_TOKENS = 1000
"""The same for what follows a prompt's first picture or sound."""

NO_MODEL = Tokenized(TokenState.UNKNOWN, "no model")
"""Of a name that means nothing here, unless a policy makes something of it."""

Keys: TypeAlias = Mapping[tuple[ModelName, GroupId], Sequence[BlockKey]]
"""A prompt's keys as the overlay wants them: by model and group, every `STRIDE`-th."""


class Seen(msgspec.Struct, frozen=True):
    """What is known of a request when it is decided."""

    request: Canonical
    bench: Bench
    plan: Plan
    models: Sequence[ModelName]
    """Those that may be chosen, by shadow policies too, sorted."""
    tokens: Mapping[ModelName, Tokenized]
    """For each of `models`, and for those that were asked for."""
    tokenized: Tokenized
    """For the model that was asked for, or the first that it may mean."""
    tenant: TenantId

    def __repr__(self) -> str:
        """Show nothing of the prompt."""
        return f"Seen({self.request!r}, models={self.models!r}, tenant={self.tenant!r})"

    @property
    def is_hopeless(self) -> bool:
        """Whether the name means nothing, and no policy makes something of it."""
        return not (self.tokens or self.plan.models)

    def bare(self, request: Canonical) -> "Seen":
        """Return this without the prompt: all that accounts need. `request` is bare already."""
        tokens = {model: _bare(each) for model, each in self.tokens.items()}
        tokenized = first_known(tokens)
        return Seen(request, self.bench, self.plan, self.models, tokens, tokenized, self.tenant)

    def load_tokens(self, model: ModelName) -> int:
        """Return what the request weighs in the queue of a model's engine."""
        return load_tokens(self.request, self.tokens.get(model, self.tokenized))


def first_known(tokens: Mapping[ModelName, Tokenized]) -> Tokenized:
    """Return the first that counts, so that sizes are those of the model that was asked for."""
    found = [*tokens.values(), NO_MODEL]
    return next((each for each in found if each.count is not None), found[0])


def load_tokens(request: Canonical, tokenized: Tokenized) -> int:
    """Return what a request weighs in an engine's queue: its prompt tokens, or an estimate."""
    if tokenized.count is not None:
        return tokenized.count * max(1, len(request.prompts))
    if tokenized.packed is not None:
        return len(tokenized.packed) // 4 + MEDIA_TOKENS
    return len(request.raw) // BYTES_PER_TOKEN


def _bare(tokenized: Tokenized) -> Tokenized:
    if tokenized.count is None:
        return tokenized
    return Tokenized(tokenized.state, tokenized.reason, None, tokenized.count)
