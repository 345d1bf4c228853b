"""What goes wrong on a backend's side, and the words for it. Pure.

Who is to blame is said: an engine is ours to mend, a provider is not.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, assert_never

from coordinator.reply import RETRY_SOON, Reply

R = TypeVar("R")

KEY_REFUSED = (401, 403)
"""What a backend answers to a gateway without its key."""


@dataclass(frozen=True, slots=True)
class UpstreamUnreachable:
    """Every try ended before a backend had the request."""

    tries: int
    by: str = "engine"
    """The kind of backend, as `Candidate.type`."""


@dataclass(frozen=True, slots=True)
class UpstreamBroken:
    """The backend had the request and hung up. It may have run, so it is not sent twice."""

    by: str = "engine"


@dataclass(frozen=True, slots=True)
class UpstreamTimeout:
    """The backend was too slow in one phase: `connect`, `first_token`, `idle` or `total`."""

    phase: str
    seconds: float
    by: str = "engine"


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """The backend answered with an error that is no client's fault, or in no client's shape."""

    status: int
    by: str = "engine"


Upstream: TypeAlias = UpstreamUnreachable | UpstreamBroken | UpstreamTimeout | UpstreamError


def blamed(refusal: R, kind: str) -> R:
    """Return a refusal that names the kind of backend whose fault it is: `engine`, `provider`."""
    return replace(refusal, by=kind) if isinstance(refusal, Upstream) else refusal


def upstream_reply(refusal: Upstream) -> Reply:
    """Return the reply to the client of a request that a backend did not answer."""
    match refusal:
        case UpstreamUnreachable(tries, by):
            text = f"no {by} could be reached in {tries} tries; send the request again"
            return Reply(502, "upstream_unreachable", "BadGatewayError", text, None, RETRY_SOON)
        case UpstreamBroken(by):
            text = f"the {by} broke off; it may have run the request, so it was not sent twice"
            return Reply(502, "upstream_broken", "BadGatewayError", text)
        case UpstreamTimeout(phase, seconds, by):
            waited = phase.replace("_", " ")
            text = f"the {by} took longer than {seconds:g} s ({waited} timeout)"
            return Reply(504, "upstream_timeout", "GatewayTimeoutError", text)
        case UpstreamError(status, by) if status in KEY_REFUSED:
            text = f"the {by} did not accept this gateway's key; its operator must set it"
            return Reply(502, "upstream_error", "BadGatewayError", text)
        case UpstreamError(status, by):
            text = f"the {by} failed, with status {status}"
            again = RETRY_SOON if status == 503 else {}
            return Reply(502, "upstream_error", "BadGatewayError", text, None, again)
        case _:
            assert_never(refusal)
