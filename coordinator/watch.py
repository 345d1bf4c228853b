"""The service, with each request's outcome shown to the breakers. Wraps it from outside.

The one place that says what an outcome means for a backend: refusals of the client's doing are
answers like any other, and a client that leaves shows nothing. Engines have breakers, providers
cooldowns.
"""

from typing import Any, TypeAlias

from coordinator.attempts import Attempt, Fault
from coordinator.breaker import Breakers
from coordinator.candidates import Backend, Candidate
from coordinator.canonical import Canonical
from coordinator.cooldowns import Cooldowns
from coordinator.engines import Engine
from coordinator.limits import Usage
from coordinator.metrics import MeteredService, Metrics
from coordinator.refusal import KEY_REFUSED, Refusal, UpstreamBroken, UpstreamTimeout
from coordinator.service import Refused, Routed
from coordinator.targets import ANYWHERE, Reach
from lineside.ids import EngineId, TenantId

NOT_TAKEN = frozenset({429, 503, 529, *KEY_REFUSED})
"""Answers of a provider that did not run the request: noted as attempts, as they come."""

_Judge: TypeAlias = Breakers | Cooldowns


class WatchedService(MeteredService):
    """The metered service, watched."""

    def __init__(self, breakers: Breakers, metrics: Metrics, **parts: Any) -> None:
        super().__init__(metrics, **parts)
        self._breakers = breakers

    def _judge(self, backend: Backend) -> _Judge:
        return self._breakers if isinstance(backend, Engine) else self.decider.cooldowns

    async def route(
        self,
        request: Canonical,
        tenant: TenantId,
        request_id: str,
        reach: Reach = ANYWHERE,
    ) -> Routed | Refused:
        answer = await super().route(request, tenant, request_id, reach)
        # No await since the lease was taken: a trial is taken by one request alone.
        if isinstance(answer, Routed):
            self._judge(answer.target).sent(answer.target.id, self.clock.monotonic())
        return answer

    def fallback(self, routed: Routed, failed: Attempt) -> bool:
        was = routed.target
        found = super().fallback(routed, failed)
        self._moved(routed, failed, was, found)
        return found

    def again(self, routed: Routed, failed: Attempt) -> bool:
        allowed = super().again(routed, failed)
        if allowed:  # a trial goes on
            self._judge(routed.target).sent(routed.target.id, self.clock.monotonic())
        return allowed

    def went_on(self, routed: Routed, failed: Attempt, to: Candidate) -> bool:
        was = routed.target
        if went := super().went_on(routed, failed, to):
            self._moved(routed, failed, was, went)
        return went

    def _moved(self, routed: Routed, failed: Attempt, was: Backend, found: bool) -> None:
        """Note an attempt. One that has no other after it ends the request: that end counts."""
        now = self.clock.monotonic()
        if not isinstance(was, Engine):
            if found or failed.fault is not Fault.BROKE:
                self.decider.cooldowns.attempted(failed, now)
        elif found:
            (self._breakers.failed if failed.reached else self._breakers.left)(failed.engine, now)
        if found:
            self._judge(routed.target).sent(routed.target.id, now)

    def first_token(self, routed: Routed, age_s: float = 0.0) -> None:
        super().first_token(routed, age_s)
        self._judge(routed.target).answered(routed.target.id, self.clock.monotonic())

    def got_on(self, routed: Routed) -> None:
        """Note that an answer is still coming. To be called about once a second."""
        self._judge(routed.target).got_on(routed.target.id, self.clock.monotonic())

    def finished(
        self, routed: Routed, status: int, usage: Usage, finish: str | None, age_s: float = 0.0
    ) -> bool:
        ended = super().finished(routed, status, usage, finish, age_s)
        if ended:
            now, judge = self.clock.monotonic(), self._judge(routed.target)
            if status in NOT_TAKEN and isinstance(judge, Cooldowns):
                judge.left(routed.target.id, now)
            elif status < 500:
                judge.answered(routed.target.id, now)
            else:
                judge.failed(routed.target.id, now)
        return ended

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        ended = super().failed(routed, refusal)
        if ended:
            _note(self._judge(routed.target), routed.target.id, refusal, self.clock.monotonic())
        return ended

    def aborted(self, routed: Routed, usage: Usage) -> bool:
        ended = super().aborted(routed, usage)
        if ended:
            self._judge(routed.target).left(routed.target.id, self.clock.monotonic())
        return ended

    def unreported(self, routed: Routed) -> bool:
        if ended := super().unreported(routed):
            self._judge(routed.target).left(routed.target.id, self.clock.monotonic())
        return ended


def _note(judge: _Judge, backend: EngineId, refusal: Refusal, now: float) -> None:
    match refusal:
        case UpstreamTimeout(phase, seconds) if phase != "connect":
            judge.silent(backend, now - seconds, now)
        case UpstreamBroken():
            judge.failed(backend, now)
        case _:
            judge.left(backend, now)
