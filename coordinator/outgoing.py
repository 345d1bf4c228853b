"""The body that a backend is sent: the request as the client wrote it, and what changes. Pure.

Made anew from the client's request for each attempt, in the API in which that backend is asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from coordinator.apis import METERED, Api
from coordinator.candidates import Candidate, Provider, spoken
from coordinator.canonical import Canonical, Changes, rewrite
from coordinator.translate.requests import translated
from policies.model import SetFields
from policies.reserved import PARAMETERS


def body_for(
    request: Canonical,
    candidate: Candidate,
    asked: SetFields | None,
    announce: bool,
    meter: bool = True,
) -> bytes:
    """Return a request's body for one backend. Raises `Untranslatable`.

    `asked`: what the policy that routes it sets. `announce`: see `Changes`. `meter`: streams are to
    report their usage.
    """
    target, asked = candidate.target, asked or SetFields()
    is_foreign = isinstance(target, Provider)
    api = spoken(target, request.api) or request.api
    changes = Changes(
        model=target.upstream[candidate.model] if isinstance(target, Provider) else candidate.model,
        meter=meter and api is request.api,
        announce=announce,
        max_tokens=asked.max_tokens,
        defaults=_allowed(asked.defaults),
        parameters=_allowed(asked.parameters),
        foreign=is_foreign,
    )
    body = rewrite(request, changes)
    return body if api is request.api else _translated(request, api, body, meter)


def _translated(request: Canonical, api: Api, body: bytes, meter: bool) -> bytes:
    made = translated(request.api, api, msgspec.json.decode(body))
    if request.stream and meter and api in METERED:
        made["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(made)


def _allowed(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a policy may set. Lint says so; here it holds whatever got past it."""
    return {k: v for k, v in (parameters or {}).items() if k not in PARAMETERS}
