"""Why a request got no engine, and the one map from each reason to a reply. Pure.

A closed list: a new member fails type-checking until it has a reply. Messages say what to do, never
repeat a prompt, and name nothing of another tenant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from coordinator.error_kinds import OPENAI
from coordinator.fields import BadRequest
from coordinator.reply import RETRY_SOON as RETRY_SOON
from coordinator.reply import Reply as Reply
from coordinator.upstream import KEY_REFUSED as KEY_REFUSED
from coordinator.upstream import UpstreamBroken as UpstreamBroken
from coordinator.upstream import UpstreamError as UpstreamError
from coordinator.upstream import UpstreamTimeout as UpstreamTimeout
from coordinator.upstream import UpstreamUnreachable as UpstreamUnreachable
from coordinator.upstream import blamed as blamed
from coordinator.upstream import upstream_reply


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """No engine says that it serves this name, and every engine was asked."""

    model: str
    served: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoEngineReady:
    """Every engine that serves the model, or may serve it, is away."""

    model: str


@dataclass(frozen=True, slots=True)
class PolicyDenied:
    """A rule rejects requests like this one; the status and the words are the rule's."""

    message: str
    status: int = 403


@dataclass(frozen=True, slots=True)
class NothingAllowed:
    """A part of a policy (`namespace/name/rule/exclude`) left no backend for the request."""

    model: str
    source: str


@dataclass(frozen=True, slots=True)
class NothingInSubset:
    """None of the endpoints that a gateway wants to choose from can take the request."""

    model: str


@dataclass(frozen=True, slots=True)
class ProvidersPause:
    """Every backend that policies leave is a provider that takes no requests for now."""

    model: str
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class Overloaded:
    """Every engine that may serve the request has more before it than a request may wait for."""

    model: str
    wait_s: float
    """What the shortest wait is predicted to be."""
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """What came is no HTTP: it could not be read, and the connection is at its end."""

    message: str
    status: int = 400


@dataclass(frozen=True, slots=True)
class BodyTooLarge:
    """Refused before parsing."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The tenant has used what it may use for now."""

    limit: str
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class BodyTimeout:
    """The request's body did not arrive in time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BodyTruncated:
    """A gateway in front of a door hands over no more than a part of this body."""


@dataclass(frozen=True, slots=True)
class BodyWithheld:
    """A gateway in front of a door shows no bodies, and the decision depends on this one."""


@dataclass(frozen=True, slots=True)
class DecisionTimeout:
    """The decision itself took too long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Draining:
    """This coordinator is about to stop."""


@dataclass(frozen=True, slots=True)
class ResponseUnknown:
    """No engine is known to hold the response that is asked for, or gone on from."""


@dataclass(frozen=True, slots=True)
class ResponseGone:
    """The engine that held the response is gone, and the response with it."""


@dataclass(frozen=True, slots=True)
class ResponseElsewhere:
    """What holds the response that a request goes on from may not or cannot serve the request."""

    model: str


@dataclass(frozen=True, slots=True)
class NotServed:
    """The backend that serves the model does not have this API."""

    model: str


@dataclass(frozen=True, slots=True)
class NotCounted:
    """Nothing that may see the request can count its tokens now."""

    model: str


@dataclass(frozen=True, slots=True)
class NotFound:
    """The door has no such path."""


@dataclass(frozen=True, slots=True)
class MethodNotAllowed:
    """The path wants another method."""

    allowed: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake of ours; the log has it under the request's id."""

    request_id: str


Refusal: TypeAlias = (
    BadRequest
    | UnknownModel
    | NoEngineReady
    | PolicyDenied
    | NothingAllowed
    | NothingInSubset
    | ProvidersPause
    | Overloaded
    | Malformed
    | BodyTooLarge
    | OverLimit
    | UpstreamUnreachable
    | UpstreamBroken
    | UpstreamTimeout
    | UpstreamError
    | BodyTimeout
    | BodyTruncated
    | BodyWithheld
    | DecisionTimeout
    | Draining
    | ResponseUnknown
    | ResponseGone
    | ResponseElsewhere
    | NotServed
    | NotCounted
    | NotFound
    | MethodNotAllowed
    | Fault
)


REASONS = (
    "bad_request",
    "unknown_model",
    "no_engine_ready",
    "policy_denied",
    "nothing_allowed",
    "nothing_in_subset",
    "providers_pause",
    "overloaded",
    "malformed",
    "body_too_large",
    "over_limit",
    "upstream_unreachable",
    "upstream_broken",
    "upstream_timeout",
    "upstream_error",
    "body_timeout",
    "body_truncated",
    "body_withheld",
    "decision_timeout",
    "draining",
    "response_unknown",
    "response_gone",
    "response_elsewhere",
    "not_served",
    "not_counted",
    "not_found",
    "method_not_allowed",
    "fault",
)
"""Every `Reply.reason`: the values of a metric's label."""


def to_reply(refusal: Refusal) -> Reply:
    """Return the status, the words and the headers of a refusal."""
    match refusal:
        case BadRequest(message, param):
            return Reply(400, "bad_request", "BadRequestError", message, param)
        case Malformed(message, status):
            close = {"connection": "close"}
            return Reply(status, "malformed", "BadRequestError", message, None, close)
        case UnknownModel(model, served):
            names = ", ".join(f"`{name}`" for name in served[:20]) or "none yet"
            text = f"the model `{model[:200]}` does not exist; served models: {names}"
            return Reply(404, "unknown_model", "NotFoundError", text, "model")
        case PolicyDenied(message, status):
            kind = _DENIED.get(status, "PermissionDeniedError")
            return Reply(status, "policy_denied", kind, message)
        case NoEngineReady() | NothingAllowed() | NothingInSubset() | DecisionTimeout():
            return _unserved_reply(refusal)
        case ProvidersPause() | Overloaded() | OverLimit():
            return _waiting_reply(refusal)
        case UpstreamUnreachable() | UpstreamBroken() | UpstreamTimeout() | UpstreamError():
            return upstream_reply(refusal)
        case BodyTooLarge() | BodyTimeout() | BodyTruncated() | BodyWithheld():
            return _body_reply(refusal)
        case Draining():
            text = "this coordinator is shutting down; send the request again"
            return _unavailable("draining", text, {**RETRY_SOON, "connection": "close"})
        case ResponseUnknown() | ResponseGone() | ResponseElsewhere() | NotServed() | NotCounted():
            return _missing_reply(refusal)
        case NotFound():
            return Reply(404, "not_found", "NotFoundError", _NO_PATH)
        case MethodNotAllowed(allowed):
            text, headers = f"this path takes {allowed} only", {"allow": allowed}
            kind = "MethodNotAllowedError"
            return Reply(405, "method_not_allowed", kind, text, None, headers)
        case Fault(request_id):
            text = f"an internal error; the log has it under request `{request_id}`"
            return Reply(500, "fault", "InternalServerError", text)
        case _:
            assert_never(refusal)


_NO_PATH = "there is no such path here; paths are as `/v1/chat/completions` and `/v1/models`"

_DENIED = {status: OPENAI[status] for status in (400, 404, 429, 503)}
"""What OpenAI clients call a rejection; any other is a denied permission."""


def _unavailable(reason: str, text: str, headers: Mapping[str, str] = RETRY_SOON) -> Reply:
    return Reply(503, reason, "ServiceUnavailableError", text, None, headers)


def _unserved_reply(
    refusal: NoEngineReady | NothingAllowed | NothingInSubset | DecisionTimeout,
) -> Reply:
    match refusal:
        case NoEngineReady(model):
            text = f"no engine that serves `{model[:200]}` can be reached; try again shortly"
            return _unavailable("no_engine_ready", text)
        case NothingAllowed(model, source):
            text = f"policy `{source}` leaves no backend for `{model[:200]}` now; try again later"
            return _unavailable("nothing_allowed", text)
        case NothingInSubset(model):
            text = f"no endpoint of the gateway's subset can take `{model[:200]}` now; try again"
            return _unavailable("nothing_in_subset", text)
        case DecisionTimeout(seconds):
            text = f"no engine was chosen within {seconds:g} s; try again shortly"
            return _unavailable("decision_timeout", text)
        case _:
            assert_never(refusal)


def _waiting_reply(refusal: ProvidersPause | Overloaded | OverLimit) -> Reply:
    """Return a reply that says when to come again."""
    headers = {"retry-after": str(refusal.retry_after_s)}
    match refusal:
        case ProvidersPause(model, retry):
            text = f"the providers of `{model[:200]}` take no requests now; try again in {retry} s"
            return _unavailable("providers_pause", text, headers)
        case Overloaded(model, wait, retry):
            text = (
                f"every engine for `{model[:200]}` is {wait:.0f} s behind; try again in {retry} s"
            )
            return Reply(429, "overloaded", "RateLimitError", text, None, headers)
        case OverLimit(limit, retry):
            text = f"over the limit `{limit}`; try again in {retry} s"
            return Reply(429, "over_limit", "RateLimitError", text, None, headers)
        case _:
            assert_never(refusal)


def _body_reply(refusal: BodyTooLarge | BodyTimeout | BodyTruncated | BodyWithheld) -> Reply:
    match refusal:
        case BodyTooLarge(limit):
            text = f"the body is larger than {limit} bytes; send a shorter request"
            return Reply(413, "body_too_large", "RequestEntityTooLargeError", text)
        case BodyTimeout(seconds):
            text = f"the body did not arrive within {seconds:g} s; send the request again"
            headers = {"connection": "close"}
            return Reply(408, "body_timeout", "RequestTimeoutError", text, None, headers)
        case BodyTruncated():
            text = "the body is larger than the gateway hands over; send a shorter request"
            return Reply(413, "body_truncated", "RequestEntityTooLargeError", text)
        case BodyWithheld():
            text = (
                "the gateway shows no request bodies here, and this request cannot do without;"
                " its operator must set `request_body_mode: FULL_DUPLEX_STREAMED`"
            )
            return Reply(500, "body_withheld", "InternalServerError", text)
        case _:
            assert_never(refusal)


def _missing_reply(
    refusal: ResponseUnknown | ResponseGone | ResponseElsewhere | NotServed | NotCounted,
) -> Reply:
    match refusal:
        case ResponseUnknown():
            text = "no engine here is known to hold this response; send the whole conversation"
            return Reply(404, "response_unknown", "NotFoundError", text, "response_id")
        case ResponseGone():
            text = "the engine that held this response is gone; send the whole conversation"
            return Reply(404, "response_gone", "NotFoundError", text, "response_id")
        case ResponseElsewhere(model):
            text = (
                f"the backend that holds the response cannot take `{model[:200]}`;"
                " use the model that made it, or send the whole conversation"
            )
            return Reply(400, "response_elsewhere", "BadRequestError", text, "model")
        case NotServed(model):
            text = f"what serves `{model[:200]}` does not have this API; use another"
            return Reply(404, "not_served", "NotFoundError", text)
        case NotCounted(model):
            text = f"nothing can count tokens for `{model[:200]}` now; try again shortly"
            return _unavailable("not_counted", text)
        case _:
            assert_never(refusal)
