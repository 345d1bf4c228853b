"""The service, with each request's outcome shown to the breakers. Wraps it from outside.

The one place that says what an outcome means for an engine: refusals of the client's doing are
answers like any other, and a client that leaves shows nothing.
"""

from typing import Any

from coordinator.attempts import Attempt
from coordinator.breaker import Breakers
from coordinator.candidates import Candidate
from coordinator.canonical import Canonical
from coordinator.limits import Usage
from coordinator.metrics import MeteredService, Metrics
from coordinator.refusal import Refusal, UpstreamBroken, UpstreamTimeout
from coordinator.service import Refused, Routed
from lineside.ids import EngineId, TenantId


class WatchedService(MeteredService):
    """The metered service, watched."""

    def __init__(self, breakers: Breakers, metrics: Metrics, **parts: Any) -> None:
        super().__init__(metrics, **parts)
        self._breakers = breakers

    async def route(
        self,
        request: Canonical,
        tenant: TenantId,
        request_id: str,
        subset: frozenset[str] | None = None,
    ) -> Routed | Refused:
        answer = await super().route(request, tenant, request_id, subset)
        # No await since the lease was taken: a trial is taken by one request alone.
        if isinstance(answer, Routed):
            self._breakers.sent(answer.target.id, self.clock.monotonic())
        return answer

    def fallback(self, routed: Routed, failed: Attempt) -> bool:
        found = super().fallback(routed, failed)
        if found:  # else the request ends here, and its end is what counts
            self._moved(routed, failed)
        return found

    def went_on(self, routed: Routed, failed: Attempt, to: Candidate) -> bool:
        if went := super().went_on(routed, failed, to):
            self._moved(routed, failed)
        return went

    def _moved(self, routed: Routed, failed: Attempt) -> None:
        now = self.clock.monotonic()
        (self._breakers.failed if failed.reached else self._breakers.left)(failed.engine, now)
        self._breakers.sent(routed.target.id, now)

    def first_token(self, routed: Routed, age_s: float = 0.0) -> None:
        super().first_token(routed, age_s)
        self._breakers.answered(routed.target.id, self.clock.monotonic())

    def got_on(self, routed: Routed) -> None:
        """Note that an answer is still coming. To be called about once a second."""
        self._breakers.got_on(routed.target.id, self.clock.monotonic())

    def finished(
        self, routed: Routed, status: int, usage: Usage, finish: str | None, age_s: float = 0.0
    ) -> bool:
        ended = super().finished(routed, status, usage, finish, age_s)
        if ended:
            now = self.clock.monotonic()
            if status < 500:
                self._breakers.answered(routed.target.id, now)
            else:
                self._breakers.failed(routed.target.id, now)
        return ended

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        ended = super().failed(routed, refusal)
        if ended:
            _note(self._breakers, routed.target.id, refusal, self.clock.monotonic())
        return ended

    def aborted(self, routed: Routed, usage: Usage) -> bool:
        ended = super().aborted(routed, usage)
        if ended:
            self._breakers.left(routed.target.id, self.clock.monotonic())
        return ended

    def unreported(self, routed: Routed) -> bool:
        if ended := super().unreported(routed):
            self._breakers.left(routed.target.id, self.clock.monotonic())
        return ended


def _note(breakers: Breakers, engine: EngineId, refusal: Refusal, now: float) -> None:
    match refusal:
        case UpstreamTimeout(phase, seconds) if phase != "connect":
            breakers.silent(engine, now - seconds, now)
        case UpstreamBroken():
            breakers.failed(engine, now)
        case _:
            breakers.left(engine, now)
