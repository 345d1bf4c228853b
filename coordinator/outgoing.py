"""The body that a backend is sent: the request as the client wrote it, and what changes. Pure.

Made anew from the client's request for each attempt, in the API in which that backend is asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from coordinator.apis import METERED, Api
from coordinator.candidates import Candidate, Provider, spoken
from coordinator.canonical import Canonical, Changes, rewrite
from coordinator.translate.ask_anthropic import KNOWN as MESSAGES_WORDS
from coordinator.translate.requests import translated
from policies.model import SetFields
from policies.reserved import PARAMETERS

CHATS_WORDS = frozenset(
    {
        *("seed", "stop", "logit_bias", "logprobs", "response_format", "reasoning_effort"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_p"),
    }
)
"""Of what policies set, the parameters that OpenAI's responses do not have."""


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
    target, is_foreign = candidate.target, isinstance(candidate.target, Provider)
    if asked is None and not is_foreign:  # nearly always
        return rewrite(request, Changes(candidate.model, meter, announce))
    asked = asked or SetFields()
    api = spoken(target, request.api) or request.api
    defaults, rest = _in_words_of(request.api, api, _allowed(asked.defaults), is_foreign)
    parameters, more = _in_words_of(request.api, api, _allowed(asked.parameters), is_foreign)
    changes = Changes(
        model=target.upstream[candidate.model] if isinstance(target, Provider) else candidate.model,
        meter=meter and api is request.api,
        announce=announce,
        max_tokens=asked.max_tokens,
        defaults=defaults,
        parameters=parameters,
        foreign=is_foreign,
    )
    body = rewrite(request, changes)
    if api is request.api:
        return body
    made = translated(request.api, api, msgspec.json.decode(body))
    if api is Api.OPENAI_CHAT:
        made = {**rest, **made, **more}
    if request.stream and meter and api in METERED:
        made["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(made)


def _in_words_of(
    client: Api, backend: Api, asked: Mapping[str, Any], foreign: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a policy sets, in the words of a client's API, and what that cannot say.

    Policies speak as chats do. Engines pass over what they do not know; third parties refuse it.
    """
    said = dict(asked)
    if client is Api.ANTHROPIC_MESSAGES and (stop := said.pop("stop", None)) is not None:
        said["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    unsaid: set[str] = set()
    if foreign and client is Api.ANTHROPIC_MESSAGES:
        unsaid = said.keys() - MESSAGES_WORDS
    elif foreign and client is backend is Api.OPENAI_RESPONSES:
        unsaid = said.keys() & CHATS_WORDS
    return {k: v for k, v in said.items() if k not in unsaid}, {k: said[k] for k in unsaid}


def _allowed(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a policy may set. Lint says so; here it holds whatever got past it."""
    return {k: v for k, v in (parameters or {}).items() if k not in PARAMETERS}
