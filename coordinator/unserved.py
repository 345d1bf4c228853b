"""Why a decision sends a request nowhere. Pure."""

import math

from coordinator.providers.bars import BY_ADDRESS, BY_COOLDOWN, BY_KEY
from coordinator.refusal import (
    NoEngineReady,
    NothingAllowed,
    NothingInSubset,
    NotServed,
    Overloaded,
    ProvidersPause,
    Refusal,
    ResponseElsewhere,
)
from coordinator.route import Decision
from policies.verdict import Empty


def why_unserved(
    model: str, decision: Decision, shed_wait_s: float, goes_on: bool = False
) -> Refusal | None:
    """Return the refusal that a decision comes to; `None`: its choice can have the request.

    `goes_on`: from a stored response, so that its holder alone is in question.
    """
    if isinstance(decision.verdict, Empty):
        if decision.outside:
            return ResponseElsewhere(model) if goes_on else NothingInSubset(model)
        return _empty(model, decision, str(decision.verdict.source), decision.verdict.source.part)
    if decision.chosen.wait_s <= shed_wait_s:
        return None  # nearly always: the others are not looked at
    # Where a policy ranks a provider too, that one may take what engines cannot: it waits 0 s.
    shortest = min(candidate.wait_s for candidate in decision.ranked)
    if shortest <= shed_wait_s:
        return None
    return Overloaded(model, shortest, max(1, math.ceil(shortest - shed_wait_s)))


def _empty(model: str, decision: Decision, source: str, part: str) -> Refusal:
    """Say why nothing was left: the first of the causes that somebody can do something about."""
    pauses = [bar.for_s for bar in decision.bars.values() if bar.by in (BY_COOLDOWN, BY_KEY)]
    if pauses:
        return ProvidersPause(model, max(1, math.ceil(min(pauses))))
    lost = any(bar.by == BY_ADDRESS for bar in decision.bars.values())
    if not part and (decision.is_short or lost):
        return NoEngineReady(model)
    if not part and decision.bars:
        return NotServed(model)
    return NothingAllowed(model, source)
