"""Decisions whose requests gateways send by themselves, until somebody says how they ended.

Written by the doors' loop alone. Every decision leaves the table once: by a report, by its
deadline, or as the oldest where there is no more room. A report on one that is not there changes
nothing.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from coordinator.attempts import Attempt, Repeat
from coordinator.candidates import Candidate
from coordinator.limits import Usage
from coordinator.refusal import UpstreamBroken, UpstreamError
from coordinator.service import Routed
from coordinator.watch import WatchedService

MOST = 65_536
"""Open decisions, about 10 kB each; beyond it the oldest ends as unreported."""

SLACK = 100
"""Ends that may stay in the order in which decisions are due, whatever the number of open ones."""

UNSEEN_S = 30.0
"""How long an answer is taken to need of which nothing can be predicted, and nothing is heard."""

NOTHING_SAID = Usage()

COUNTED = (
    "first_token",
    "finished",
    "aborted",
    "failed",
    "fallback",
    "unseen",
    "late",
    "expired",
    "crowded_out",
)
"""What is counted of reports: each kind; `late` found no open decision; and ends without one."""


class Event(Enum):
    """What a gateway reports."""

    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left."""
    FAILED = "failed"
    """No answer came, or only a part of one."""
    UNSEEN = "unseen"
    """The gateway will not hear more of it: it counts as in flight for as long as predicted.

    With a status its answer has begun: one that is not streamed is over then, and so is an error.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """One word on one decision."""

    decision_id: str
    event: Event
    age_s: float = 0.0
    """Since it happened, when it was sent."""
    usage: Usage = NOTHING_SAID
    status: int | None = None
    backend: str | None = None
    """Id or endpoint of the backend that it is about, where that is not the last one named."""
    finish: str | None = None


@dataclass(slots=True)
class _Open:
    routed: Routed
    offered: Sequence[Candidate]
    caller: str
    deadline: float
    untold_at: float
    """When somebody should have said something of it: a trial that it was is another's then."""
    is_unseen: bool = False
    """Its gateway has said that it will not tell of the end."""
    status: int | None = None
    """All that is known of its answer then."""

    @property
    def due(self) -> float:
        """When it is to be looked at."""
        return min(self.untold_at, self.deadline)


class Reports:
    """The table of open decisions."""

    def __init__(self, service: WatchedService, report_s: float, most: int = MOST) -> None:
        """`report_s`: how long a decision may stand of which nothing is heard."""
        self.counts: Counter[str] = Counter()
        self._service = service
        self._report_s = min(report_s, service.lease_s)
        self._most = most
        self._open: OrderedDict[str, _Open] = OrderedDict()  # oldest first
        self._due: list[tuple[float, str]] = []
        """A heap: when to look at which. Some have ended, or are not due any more; see `expire`."""

    def __len__(self) -> int:
        """Return how many decisions are open."""
        return len(self._open)

    def open(self, routed: Routed, offered: Sequence[Candidate], caller: str = "") -> None:
        """Await the end of a request that is now in a gateway's hands."""
        if len(self._open) >= self._most:
            self._forget(next(iter(self._open)), "crowded_out")
        untold_at = self._service.handed_over(routed)
        deadline = routed.decided + self._report_s
        entry = _Open(routed, offered, caller, deadline, untold_at)
        self._open[routed.record.id] = entry
        heappush(self._due, (entry.due, routed.record.id))

    def report(self, report: Report, caller: str = "") -> bool:
        """Take a report; return whether it was about an open decision of this caller."""
        entry = self._open.get(report.decision_id)
        if entry is None or entry.caller != caller:
            self.counts["late"] += 1
            return False
        self.counts[report.event.value] += 1
        entry.untold_at = math.inf
        self._follow(entry, report.backend)
        self._take(entry, report)
        return True

    def expire(self) -> int:
        """End what is over, or should be; return of how many a gateway should have told."""
        now, missing = self._service.clock.monotonic(), 0
        if len(self._due) > 2 * (len(self._open) + SLACK):  # mostly of those that have ended
            self._due = [(entry.due, name) for name, entry in self._open.items()]
            heapify(self._due)
        while self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            if (entry := self._open.get(name)) is None:
                continue
            if entry.untold_at <= now:
                self._service.untold(entry.routed)
                entry.untold_at = math.inf
            if entry.deadline <= now:
                self._forget(name, "" if entry.is_unseen else "expired")
                missing += not entry.is_unseen
            else:
                heappush(self._due, (entry.due, name))
        return missing

    def _take(self, entry: _Open, report: Report) -> None:
        service, routed, now = self._service, entry.routed, self._service.clock.monotonic()
        age_s = max(0.0, min(report.age_s, now - routed.decided))
        status = report.status or None
        match report.event:
            case Event.FIRST_TOKEN:
                service.first_token(routed, age_s)
                entry.deadline = max(entry.deadline, routed.lease.deadline)
                return
            case Event.UNSEEN if status is None or (status < 400 and routed.record.stream):
                entry.is_unseen, entry.status = True, status
                entry.deadline = min(entry.deadline, now + _left_s(routed))
                heappush(self._due, (entry.due, report.decision_id))
                return
            case Event.UNSEEN if status is not None and status < 400:
                service.unreported(routed, status)
            case Event.FINISHED | Event.UNSEEN:
                service.finished(routed, status or 200, report.usage, report.finish, age_s)
            case Event.ABORTED:
                said = report.usage.completion_tokens
                service.aborted(routed, Usage(completion_tokens=said, partial=True))
            case Event.FAILED:
                refusal = UpstreamError(status) if status else UpstreamBroken()
                service.failed(routed, refusal)
        del self._open[report.decision_id]

    def _follow(self, entry: _Open, backend: str | None) -> None:
        """Move the account to a fallback that the gateway took. Another backend changes nothing.

        The gateway is taken at its word that none of the tries before it ran.
        """
        routed = entry.routed
        if backend is None or backend in (routed.target.id, routed.target.endpoint):
            return
        for candidate in entry.offered:
            if backend in (candidate.target.id, candidate.target.endpoint):
                reason = "the gateway went on to a fallback"
                failed = Attempt(routed.target.id, Repeat.SAFE, reason)
                if self._service.went_on(routed, failed, candidate):
                    self.counts["fallback"] += 1
                return

    def _forget(self, decision_id: str, why: str) -> None:
        entry = self._open.pop(decision_id)
        if self._service.unreported(entry.routed, entry.status) and why:
            self.counts[why] += 1


def _left_s(routed: Routed) -> float:
    """Return how long an answer is predicted to take from its decision on."""
    candidate = routed.candidate
    return candidate.predicted_e2e_s or candidate.wait_s + candidate.own_s + UNSEEN_S
