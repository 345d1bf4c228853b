"""Why a decision sends a request nowhere. Pure."""

import math

from coordinator.refusal import NoEngineReady, NothingAllowed, NothingInSubset, Overloaded
from coordinator.route import Decision
from policies.verdict import Empty


def why_unserved(
    model: str, decision: Decision, shed_wait_s: float
) -> NoEngineReady | NothingAllowed | NothingInSubset | Overloaded | None:
    """Return the refusal that a decision comes to; `None`: its choice can have the request."""
    if isinstance(decision.verdict, Empty):
        if decision.outside:
            return NothingInSubset(model)
        source = decision.verdict.source
        if not source.part and decision.is_short:
            return NoEngineReady(model)
        return NothingAllowed(model, str(source))
    if decision.chosen.wait_s <= shed_wait_s:
        return None  # nearly always: the others are not looked at
    # Where a policy ranks a provider too, that one may take what engines cannot: it waits 0 s.
    shortest = min(candidate.wait_s for candidate in decision.ranked)
    if shortest <= shed_wait_s:
        return None
    return Overloaded(model, shortest, max(1, math.ceil(shortest - shed_wait_s)))
