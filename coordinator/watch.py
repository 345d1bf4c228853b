"""The service, with each request's outcome shown to breakers and cooldowns. Wraps it from outside.

What an outcome means is `judges`' word; here it is told when there is one.
"""

from dataclasses import dataclass, field

from coordinator.attempts import Attempt
from coordinator.breaker import Breakers
from coordinator.candidates import Candidate
from coordinator.canonical import Canonical
from coordinator.engines import Engine
from coordinator.judges import Judge, OfEngine, OfProvider
from coordinator.limits import Usage
from coordinator.metrics import MeteredService
from coordinator.refusal import Refusal
from coordinator.service import Refused, Routed
from coordinator.targets import ANYWHERE, Reach
from coordinator.translate.requests import Untranslatable
from coordinator.worth import CacheWorth
from lineside.ids import TenantId


@dataclass(kw_only=True)
class WatchedService(MeteredService):
    """The metered service, watched."""

    breakers: Breakers
    worth: CacheWorth = field(default_factory=CacheWorth)
    """Told of every request that is sent to an engine."""

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
            self._sent(answer)
        return answer

    def fallback(self, routed: Routed, failed: Attempt) -> bool:
        judge = self._judge(routed)
        found = super().fallback(routed, failed)
        self._moved(routed, failed, judge, found)
        return found

    def pass_over(self, routed: Routed, unfit: Untranslatable) -> bool:
        judge = self._judge(routed)
        if went := super().pass_over(routed, unfit):
            judge.left()
            self._sent(routed)
        return went

    def again(self, routed: Routed, failed: Attempt) -> bool:
        if allowed := super().again(routed, failed):
            routed.on_trial |= self._judge(routed).sent()  # that it lacks something is no fault
        return allowed

    def went_on(self, routed: Routed, failed: Attempt, to: Candidate) -> bool:
        judge = self._judge(routed)
        if went := super().went_on(routed, failed, to):
            self._moved(routed, failed, judge, went)
        return went

    def first_token(self, routed: Routed, age_s: float = 0.0) -> None:
        super().first_token(routed, age_s)
        self._judge(routed).began()

    def got_on(self, routed: Routed) -> None:
        """Note that an answer is still coming. To be called about once a second."""
        self._judge(routed).got_on()

    def finished(
        self, routed: Routed, status: int, usage: Usage, finish: str | None, age_s: float = 0.0
    ) -> bool:
        if ended := super().finished(routed, status, usage, finish, age_s):
            self._judge(routed).answered(status)
        return ended

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        if ended := super().failed(routed, refusal):
            self._judge(routed).failed(refusal)
        return ended

    def aborted(self, routed: Routed, usage: Usage) -> bool:
        if ended := super().aborted(routed, usage):
            self._judge(routed).left()
        return ended

    def unreported(self, routed: Routed, status: int | None = None) -> bool:
        if ended := super().unreported(routed, status):
            if status is None or routed.record.stream:  # heads of streams are sent before any work
                self._judge(routed).left()
            else:
                self._judge(routed).answered(status)
        return ended

    def untold(self, routed: Routed) -> None:
        """Note that a gateway has not said in time whether it sent a request."""
        self._judge(routed).untold()
        routed.on_trial = False

    def _sent(self, routed: Routed) -> None:
        routed.on_trial = self._judge(routed).sent()
        target, candidate = routed.target, routed.candidate
        if isinstance(target, Engine):
            cached = candidate.overlap_tokens + candidate.speculative_tokens
            self.worth.note(target.id, cached, self.clock.monotonic())

    def _moved(self, routed: Routed, failed: Attempt, judge: Judge, goes_on: bool) -> None:
        judge.tried(failed, goes_on)
        if goes_on:
            self._sent(routed)

    def _judge(self, routed: Routed) -> Judge:
        target, now = routed.target, self.clock.monotonic()
        if isinstance(target, Engine):
            return OfEngine(self.breakers, target.id, now, routed.on_trial)
        return OfProvider(self.decider.cooldowns, target.id, routed.decided, now)
