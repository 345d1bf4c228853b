"""Which providers get no requests for now: those that say so, that fail, or refuse our key. Pure.

A provider is heard of through requests alone, so every pause ends by itself: then one request may
find out, and the others wait for what becomes of it. What was sent before a pause began, and ends
in it, says little: each end comes with the time when its request was sent. Written by the service's
wrapper, read by decisions. Times are the coordinator's monotonic seconds.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import NamedTuple

from coordinator.attempts import Attempt, Fault
from lineside.ids import EngineId

FAILS_AFTER = 3
"""Failures in a row, nothing answered between them."""

FIRST_S = {Fault.BUSY: 1.0, Fault.KEY_REFUSED: 10.0}
"""How long the first pause is; each trial that fails doubles it."""

FAILS_S = 5.0
"""The same after failures."""

MOST_S = 60.0
"""The longest of these pauses: a new key, say, counts after so long at the latest."""

ASKED_MOST_S = 600.0
"""The longest pause that a provider may ask for: no header takes it out for a day."""

TRIAL_S = 120.0
"""A trial that nobody has ended after so long is over: its door never said what became of it."""


class Cause(Enum):
    """Why a provider cools down, as people read it."""

    BUSY = "it takes no more requests for now"
    KEY_REFUSED = "it does not accept this gateway's key"
    FAILS = "it failed several requests in a row"


_CAUSES = {Fault.BUSY: Cause.BUSY, Fault.KEY_REFUSED: Cause.KEY_REFUSED}


@dataclass(frozen=True, slots=True)
class Pause:
    """A provider's cooldown at one moment."""

    cause: Cause
    for_s: float
    """Until one request may find out; 0: one is on its way to."""
    is_certain: bool
    """It would refuse a request: it asked for this pause, or refuses our key."""


class Cooldown(NamedTuple):
    """A pause as it is remembered: nobody has found out since that the provider works."""

    cause: Cause
    began: float
    pause_s: float
    """From then until one request may find out."""
    asked: bool


@dataclass(slots=True)
class _Provider:
    failures: int = 0
    cause: Cause | None = None
    """`None`: used."""
    began: float = 0.0
    until: float = 0.0
    pause_s: float = 0.0
    asked: bool = False
    """The pause is the provider's own wish."""
    trial_at: float | None = None
    """When the request was sent that is to find out."""
    counts: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))


class Cooldowns:
    """Every provider's. Forgets those that are no longer there: see `retain`."""

    def __init__(self) -> None:
        self._providers: dict[EngineId, _Provider] = {}
        self._news: dict[EngineId, Cause | None] = {}

    def pause(self, provider: EngineId, now: float) -> Pause | None:
        """Return a provider's cooldown; `None`: it may get a request, if only one."""
        state = self._providers.get(provider)
        if state is None or state.cause is None:
            return None
        on_trial = state.trial_at is not None and now < state.trial_at + TRIAL_S
        if now >= state.until and not on_trial:
            return None
        is_certain = state.asked or state.cause is Cause.KEY_REFUSED
        return Pause(state.cause, max(0.0, state.until - now), is_certain)

    def sent(self, provider: EngineId, at: float) -> bool:
        """Note a request on its way; return whether it is the one that finds out."""
        state = self._of(provider)
        is_trial = state.cause is not None and at >= state.until
        if is_trial:
            state.trial_at = at
        return is_trial

    def answered(self, provider: EngineId, sent: float) -> None:
        """Note content, or an answer that is not the provider's fault: it is used again."""
        state = self._of(provider)
        state.failures = 0
        self._end_trial(state, sent)
        # It fails no more, whenever that was asked; but it may have been let in before it was full.
        if state.cause is Cause.FAILS or (state.cause is not None and sent >= state.began):
            state.cause, state.pause_s, state.asked = None, 0.0, False
            self._news[provider] = None

    def attempted(self, attempt: Attempt, sent: float, now: float) -> None:
        """Note a try that came to nothing."""
        if attempt.fault is None:
            return self.left(attempt.engine, sent)
        return self.failed(attempt.engine, sent, now, attempt.fault, attempt.pause_s)

    def failed(
        self,
        provider: EngineId,
        sent: float,
        now: float,
        fault: Fault = Fault.BROKE,
        asked_s: float | None = None,
    ) -> None:
        """Note a fault. `asked_s`: the pause that the provider asked for."""
        state, cause = self._of(provider), _CAUSES.get(fault, Cause.FAILS)
        state.counts[fault] += 1
        state.failures += 1
        was_trial = self._end_trial(state, sent)
        if asked_s is not None:
            self._pause(provider, cause, now, min(asked_s, ASKED_MOST_S), asked=True)
        elif was_trial:
            longer = max(2 * state.pause_s, FIRST_S.get(fault, FAILS_S))
            self._pause(provider, cause, now, min(longer, MOST_S))
        elif state.cause is None and (fault in FIRST_S or state.failures >= FAILS_AFTER):
            self._pause(provider, cause, now, FIRST_S.get(fault, FAILS_S))

    def left(self, provider: EngineId, sent: float) -> None:
        """Note a request that ended without showing anything: its client left, say."""
        self._end_trial(self._of(provider), sent)

    def retain(self, providers: Container[str]) -> None:
        """Forget all others."""
        for gone in [name for name in self._providers if name not in providers]:
            del self._providers[gone]
            self._news.pop(gone, None)

    def cooling(self) -> Mapping[EngineId, Cooldown]:
        """Return the providers that cool down or are on trial, to be remembered."""
        return {
            name: Cooldown(state.cause, state.began, state.until - state.began, state.asked)
            for name, state in self._providers.items()
            if state.cause is not None
        }

    def restore(self, provider: EngineId, was: Cooldown) -> None:
        """Take over what is remembered of a provider: one request finds out, when it is time."""
        state = self._of(provider)
        if state.cause is not None:
            return  # known better
        state.cause, state.began, state.asked = was.cause, was.began, was.asked
        state.until, state.pause_s = was.began + was.pause_s, was.pause_s
        self._news[provider] = was.cause

    def counts(self, provider: EngineId) -> dict[Fault, int]:
        """Return how often each fault was seen of a provider."""
        return self._of(provider).counts

    def take_news(self) -> list[tuple[EngineId, Cause | None]]:
        """Return which providers cool down (why) or are used again (`None`) since the last call."""
        news, self._news = self._news, {}
        return list(news.items())

    def _pause(
        self, provider: EngineId, cause: Cause, now: float, pause_s: float, asked: bool = False
    ) -> None:
        state = self._of(provider)
        if state.cause is not cause:
            self._news[provider] = cause
        if state.asked and not asked and now < state.until:
            return  # what it asked for stands
        state.cause, state.pause_s, state.asked = cause, pause_s, asked
        state.began, state.until = now, now + pause_s

    def _end_trial(self, state: _Provider, sent: float) -> bool:
        """Return whether a request that ends is the one that was to find out."""
        if state.trial_at is None or sent < state.trial_at:
            return False
        state.trial_at = None
        return True

    def _of(self, provider: EngineId) -> _Provider:
        return self._providers.setdefault(provider, _Provider())


def asked_pause_s(retry_after: str | None, unix: float) -> float | None:
    """Return the seconds that a `retry-after` asks for; `None`: it says nothing that can be read.

    `unix`: the time, for those that name a date.
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - unix
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
