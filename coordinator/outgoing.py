"""The body that a backend is sent: the request as the client wrote it, and what changes. Pure."""

from collections.abc import Mapping
from typing import Any

from coordinator.candidates import Candidate, Provider
from coordinator.canonical import Canonical, Changes, rewrite
from policies.model import SetFields
from policies.reserved import PARAMETERS


def body_for(
    request: Canonical, candidate: Candidate, asked: SetFields | None, announce: bool
) -> bytes:
    """Return a request's body for one backend. `asked`: what the policy that routes it sets.

    Made anew from the client's request for each attempt. `announce`: see `Changes`.
    """
    target, asked = candidate.target, asked or SetFields()
    is_foreign = isinstance(target, Provider)
    changes = Changes(
        model=target.upstream[candidate.model] if isinstance(target, Provider) else candidate.model,
        announce=announce,
        max_tokens=asked.max_tokens,
        defaults=_allowed(asked.defaults),
        parameters=_allowed(asked.parameters),
        foreign=is_foreign,
    )
    return rewrite(request, changes)


def _allowed(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a policy may set. Lint says so; here it holds whatever got past it."""
    return {k: v for k, v in (parameters or {}).items() if k not in PARAMETERS}
