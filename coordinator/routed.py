"""A request that was decided: on its way, or refused. Pure; the service alone writes them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.candidates import Backend, Candidate
from coordinator.canonical import Canonical
from coordinator.decider import Keys, Seen
from coordinator.engines import EngineView
from coordinator.inflight import Lease
from coordinator.limits import Reservation
from coordinator.overlay import Claim
from coordinator.records import Record
from coordinator.refusal import Refusal
from policies.verdict import Chosen


@dataclass(slots=True, eq=False)
class Routed:
    """A request on its way. The door reads; the service writes, also when a fallback is taken."""

    record: Record
    request: Canonical = field(repr=False)
    candidate: Candidate
    body: bytes = field(repr=False)
    lease: Lease
    claim: Claim | None
    seen: Seen | None = field(repr=False)
    """Let go at the first token, with the prompt that it holds."""
    keys: Keys = field(repr=False)
    """Empty once the first token was seen: there is no fallback any more."""
    verdict: Chosen = field(repr=False)
    reservation: Reservation
    started: float
    decided: float
    """When the backend was chosen that has the request now."""
    own_s: float | None = None
    """What its prefill took, where that could be told."""

    @property
    def target(self) -> Backend:
        """Where the request goes."""
        return self.candidate.target


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal and the record of it."""

    record: Record
    refusal: Refusal


def next_of(record: Record, views: Iterable[EngineView]) -> Candidate | None:
    """Return the next fallback: the first in order that is sound, else the first."""
    if record.decision is None:
        return None
    tried = {attempt.engine for attempt in record.attempts}
    seen = {view.engine.id: view for view in views}
    left = [
        candidate
        for candidate in record.decision.ranked
        if candidate.target.id not in tried
        and not ((view := seen.get(candidate.target.id)) and view.away)
    ]
    sound = (c for c in left if not ((view := seen.get(c.target.id)) and view.failing))
    return next(sound, next(iter(left), None))
