"""What an outcome means for a request's backend: for an engine's breaker, or a cooldown. Pure.

Refusals of the client's doing are answers like any other, and a client that leaves shows nothing.
One judge for one look at one request.
"""

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from coordinator.attempts import Attempt, Fault
from coordinator.breaker import Breakers
from coordinator.providers.cooldowns import Cooldowns
from coordinator.refusal import KEY_REFUSED, Refusal, UpstreamBroken, UpstreamError, UpstreamTimeout
from lineside.ids import EngineId

NOT_TAKEN = frozenset({429, 503, 529, *KEY_REFUSED})
"""Answers of a provider that did not run the request: noted as attempts, as they come."""


class OfEngine(msgspec.Struct, frozen=True):
    """Tells an engine's breaker."""

    breakers: Breakers
    engine: EngineId
    now: float
    on_trial: bool
    """The request is the one that finds out whether the engine works again."""

    def sent(self) -> bool:
        """Note that the engine has the request; return whether it is on trial with it."""
        return self.breakers.sent(self.engine, self.now)

    def tried(self, failed: Attempt, goes_on: bool) -> None:
        """Note a try that failed. Where the request ends with it, that end counts."""
        if goes_on and failed.reached:
            self.breakers.failed(self.engine, self.now)
        elif goes_on:
            self.left()

    def began(self) -> None:
        """Note content."""
        self.breakers.answered(self.engine, self.now)

    def got_on(self) -> None:
        """Note that an answer is still coming."""
        self.breakers.got_on(self.engine, self.now)

    def answered(self, status: int) -> None:
        """Note an answer that is complete."""
        told = self.breakers.answered if status < 500 else self.breakers.failed
        told(self.engine, self.now)

    def failed(self, refusal: Refusal) -> None:
        """Note that no answer came, or only a part of one."""
        match refusal:
            case UpstreamTimeout(phase, seconds) if phase != "connect":
                self.breakers.silent(self.engine, self.now - seconds, self.now)
            case UpstreamBroken():
                self.breakers.failed(self.engine, self.now)
            case _:
                self.left()

    def left(self) -> None:
        """Note an end that shows nothing."""
        if self.on_trial:
            self.breakers.left(self.engine, self.now)

    def untold(self) -> None:
        """Note that nobody has said in time whether the request was sent at all."""
        if self.on_trial:
            self.breakers.untold(self.engine, self.now)


@dataclass(frozen=True, slots=True)
class OfProvider:
    """Tells what cools providers down."""

    cooldowns: Cooldowns
    provider: EngineId
    since: float
    """When it was sent the request."""
    now: float

    def sent(self) -> bool:
        """Note that the provider has the request; return whether it is on trial with it."""
        return self.cooldowns.sent(self.provider, self.since)

    def tried(self, failed: Attempt, goes_on: bool) -> None:
        """Note a try that failed. Where it broke off the request ends, and that end counts."""
        if goes_on or failed.fault is not Fault.BROKE:
            self.cooldowns.attempted(failed, self.since, self.now)

    def began(self) -> None:
        """Note content."""
        self.cooldowns.answered(self.provider, self.since)

    def got_on(self) -> None:
        """Do nothing: it was noted when it began."""

    def answered(self, status: int) -> None:
        """Note an answer that is complete."""
        if status in NOT_TAKEN:
            self.left()
        elif status < 500:
            self.began()
        else:
            self.cooldowns.failed(self.provider, self.since, self.now)

    def failed(self, refusal: Refusal) -> None:
        """Note that no answer came, or only a part of one."""
        match refusal:
            case UpstreamTimeout(phase, _) if phase != "connect":
                self.cooldowns.failed(self.provider, self.since, self.now)
            case UpstreamBroken():
                self.cooldowns.failed(self.provider, self.since, self.now)
            case UpstreamError(status):
                self.answered(status)
            case _:
                self.left()

    def left(self) -> None:
        """Note an end that shows nothing."""
        self.cooldowns.left(self.provider, self.since)

    def untold(self) -> None:
        """Note that nobody has said in time whether the request was sent at all."""
        self.left()


Judge: TypeAlias = OfEngine | OfProvider
