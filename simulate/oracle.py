"""The greedy oracle: it sees what no router can, and takes the best for the request at hand. Pure.

It knows each engine's true cache and queue, the lengths of all answers under way, and plays every
engine's steps forward to the request's first token, admissions and evictions included. What it does
not know is what arrives later: it is greedy, and not a bound.
"""

import random
from collections.abc import Sequence

from simulate.virtual import Forecast, Job, VirtualEngine


class Oracle:
    """The soonest first token; with `beta`, also what the prefill costs those who come after.

    `outstanding_s` is the cost of each request that an engine has already.
    """

    def __init__(
        self,
        engines: Sequence[VirtualEngine],
        rng: random.Random,
        beta: float = 0.0,
        outstanding_s: float = 0.0,
    ) -> None:
        self._engines, self._rng = engines, rng
        self._beta, self._outstanding_s = beta, outstanding_s

    def choose(self, job: Job, now: float) -> int | None:
        """Play engines forward, the most promising first, until no other can be better."""
        places = list(range(len(self._engines)))
        self._rng.shuffle(places)  # so that ties are drawn
        promised = {p: self._cost(p, job, now, self._soonest(p, job, now)) for p in places}
        best, chosen = float("inf"), 0
        for place in sorted(places, key=promised.__getitem__):
            if promised[place] >= best:
                break
            forecast = self._engines[place].forecast(job.request, now)
            cost = self._cost(place, job, now, forecast)
            if cost < best:
                best, chosen = cost, place
        return chosen

    def _soonest(self, place: int, job: Job, now: float) -> Forecast:
        return self._engines[place].soonest(job.request, now)

    def _cost(self, place: int, job: Job, now: float, forecast: Forecast) -> float:
        cost = forecast.first_token - now
        if self._beta or self._outstanding_s:
            engine, cached = self._engines[place], forecast.cached_tokens
            own_s = engine.speeds.prefill(cached, job.request.input_tokens - cached)
            cost += self._beta * (engine.speeds.base_step_s + own_s)
            cost += self._outstanding_s * engine.outstanding
        return cost

    def first_token(self, job: Job, engine: int, at: float) -> None:
        """Nothing to note: it sees."""

    def finished(self, job: Job, engine: int, at: float) -> None:
        """The same."""

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        """The same."""
