"""What a gateway changes on a request to send it to a backend by itself. Pure.

The gateway keeps its own connection: hop-by-hop headers, host, length and encodings are its affair.
Credentials are put in by whoever has them, and only for gateways that are to be given them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from coordinator.apis import Api
from coordinator.candidates import Candidate, Provider, spoken
from coordinator.engines import Engine
from policies.model import SetFields
from policies.reserved import HEADERS

RANK = "x-data-parallel-rank"
DECISION = "x-lineside-decision"
REQUEST_ID = "x-request-id"

PRIVATE = (
    *("api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"),
    "x-vllm-priority",
)
"""Of the client's headers, those that no backend is sent: its keys are for the gateway."""

TRANSPORT = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the gateway's own connections; it sets them itself."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")

Headers: TypeAlias = Sequence[tuple[str, str]]


class Offer(msgspec.Struct, frozen=True):
    """One backend that a gateway may send a request to, and how."""

    candidate: Candidate
    url: str
    set_headers: Headers
    remove_headers: Sequence[str]
    body: bytes

    def __repr__(self) -> str:
        """Show no header's value, and nothing of the body."""
        return f"Offer({self.candidate.target.id!r}, {self.url!r}, {len(self.body)} bytes)"


class Asking(msgspec.Struct, frozen=True):
    """What is the same for all backends of one request."""

    api: Api
    path: str
    """With its query."""
    streams: bool
    headers: Iterable[str]
    """Names that the client sent, in lower case."""
    request_id: str
    decision_id: str
    """Empty: nothing is recorded."""
    asked: SetFields | None
    """What the policy that routes it sets."""
    counts: bool = False
    """A message's tokens are to be counted, and no answer is to be made."""


def url_of(candidate: Candidate, asking: Asking) -> str:
    """Return where a backend takes a request."""
    target = candidate.target
    if isinstance(target, Engine):
        return target.base_url + asking.path
    if asking.counts:
        assert target.dialect.count_path is not None  # others are not asked
        return target.base_url + target.dialect.count_path
    api = spoken(target, asking.api)
    assert api is not None  # others are dropped before anything is ranked
    return target.base_url + target.dialect.path(
        api, target.upstream[candidate.model], asking.streams
    )


def offer(
    candidate: Candidate, body: bytes, asking: Asking, credentials: Mapping[str, str] | None = None
) -> Offer:
    """Return a backend with all that a gateway has to change for it."""
    target, sent = candidate.target, frozenset(asking.headers)
    keeps: frozenset[str] | None = None
    changed = {REQUEST_ID: asking.request_id}
    if asking.decision_id:
        changed[DECISION] = asking.decision_id
    if isinstance(target, Provider):
        changed |= {"content-type": "application/json"}
        keeps = sent.intersection(target.dialect.kept(asking.api))
        named = target.dialect.headers(None).items()
        changed |= {name: value for name, value in named if name not in keeps}
    else:
        if target.rank is not None:
            changed[RANK] = str(target.rank)
        if "content-type" not in sent:
            changed["content-type"] = "application/json"
    changed |= set_by(asking.asked)
    changed |= credentials or {}
    gone = _gone(sent, keeps, frozenset(changed))
    return Offer(candidate, url_of(candidate, asking), tuple(changed.items()), gone, body)


@lru_cache(1024)  # a gateway's clients send few sets of headers
def _gone(
    sent: frozenset[str], keeps: frozenset[str] | None, changed: frozenset[str]
) -> Sequence[str]:
    """Return the names of headers that a backend is not sent.

    `keeps`: those of the client's that a provider gets; it gets no others. `None`: an engine.
    """
    if keeps is None:
        removed = {name for name in sent if name.startswith("x-lineside-")} | {RANK}
    else:
        removed = set(sent - keeps - TRANSPORT - {"accept"})
    # The gateway may keep the client's keys to itself when it asks; it is told all the same.
    return tuple(sorted((removed | set(PRIVATE)) - changed))


def set_by(asked: SetFields | None) -> dict[str, str]:
    """Return the headers that a policy sets. Lint says so; this holds whatever got past it."""
    if asked is None:
        return {}
    return {
        name.lower(): value
        for name, value in (asked.headers or {}).items()
        if name.lower() not in HEADERS and _NAME.fullmatch(name.lower()) and value.isprintable()
    }
