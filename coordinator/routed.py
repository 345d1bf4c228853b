"""A request that was decided: on its way, or refused. Pure; the service alone writes them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.candidates import Backend, Candidate
from coordinator.canonical import Canonical
from coordinator.engines import EngineView
from coordinator.holdings.overlay import Claim
from coordinator.limits import Reservation
from coordinator.load.inflight import Lease
from coordinator.providers.cooldowns import Pause
from coordinator.records import Record
from coordinator.refusal import Refusal
from coordinator.seen import Keys, Seen
from lineside.ids import EngineId
from policies.verdict import Chosen


@dataclass(slots=True, eq=False)
class Routed:
    """A request on its way. The door reads; the service writes, also when a fallback is taken."""

    record: Record
    request: Canonical = field(repr=False)
    candidate: Candidate
    body: bytes | None = field(repr=False)
    """`None`: `large.embody` is to make it."""
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
    meter: bool = True
    """Its backend takes it that streams are asked for their usage."""
    on_trial: bool = False
    """It finds out whether its backend, which is left alone otherwise, works again."""
    ttft_s: float | None = None
    """From `decided` to its first token."""

    @property
    def target(self) -> Backend:
        """Where the request goes."""
        return self.candidate.target


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal and the record of it."""

    record: Record
    refusal: Refusal


def rest_of(
    record: Record, views: Iterable[EngineView], pause: Callable[[EngineId], Pause | None]
) -> list[Candidate]:
    """Return the fallbacks that are left, in order: those that are sound, then the others.

    `pause`: a provider's cooldown of now; one that may have begun after the decision.
    """
    if record.decision is None:
        return []
    tried = {attempt.engine for attempt in record.attempts} | record.passed_over.keys()
    seen = {view.engine.id: view for view in views}
    sound: list[Candidate] = []
    others: list[Candidate] = []
    for candidate in record.decision.ranked:
        target = candidate.target.id
        view, paused = seen.get(target), pause(target)
        if target in tried or (view and view.away) or (paused and paused.is_certain):
            continue
        (others if paused or (view and view.failing) else sound).append(candidate)
    return sound + others
