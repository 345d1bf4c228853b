"""A trace over engines in virtual time: one strategy chooses, and learns what came of it. Pure.

A strategy sees arrivals, first tokens and ends at once, and what engines announce of their caches
when their events would have arrived. All of it comes in the order of time.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from simulate.traces import TraceRequest
from simulate.virtual import Happened, Job, VirtualEngine

EVENT_DELAY_S = 0.03
"""From the end of a step to when routers know what it put into the cache."""

WARM_UP = 0.2
"""The first part of a trace's requests fills caches; it is not counted."""

SLO_TTFT_S, SLO_ITL_S = 2.0, 0.05
"""What makes an answer a good one: its first token, and the mean time between the others."""


FOREVER_S = 1e12
"""No run lasts longer."""


class Strategy(Protocol):
    """Sends each request to one of the engines."""

    def choose(self, job: Job, now: float) -> int | None:
        """Return the number of the engine that gets a request; `None`: none of them."""
        ...

    def first_token(self, job: Job, engine: int, at: float) -> None:
        """Note that a prompt was computed."""
        ...

    def finished(self, job: Job, engine: int, at: float) -> None:
        """Note that a request is done."""
        ...

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        """Note what an engine's events say."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a trace's requests."""

    jobs: Sequence[Job]
    engines: Sequence[int | None]
    """Where each was sent."""
    count: int
    """Engines that there were."""

    def counted(self) -> Iterator[tuple[Job, int]]:
        """Yield the jobs that count, with their engines."""
        for job, engine in list(zip(self.jobs, self.engines, strict=True))[self._first :]:
            if engine is not None:
                yield job, engine

    @property
    def _first(self) -> int:
        return int(WARM_UP * len(self.jobs))

    def figures(self) -> "Figures":
        """Return what the run comes to."""
        jobs = [job for job, _ in self.counted()]
        if not jobs:
            return Figures(requests=0)
        ttfts = sorted(job.ttft_s for job in jobs)
        good = sum(job.ttft_s <= SLO_TTFT_S and job.mean_itl_s <= SLO_ITL_S for job in jobs)
        sent = [0] * self.count
        for _, engine in self.counted():
            sent[engine] += 1
        lasted = self.jobs[-1].arrived - self.jobs[self._first].arrived
        return Figures(
            requests=len(jobs),
            mean_s=sum(ttfts) / len(ttfts),
            p50_s=_quantile(ttfts, 0.5),
            p95_s=_quantile(ttfts, 0.95),
            good=good / len(jobs),
            goodput=good / lasted if lasted > 0 else 0.0,
            hit_rate=sum(j.cached_tokens for j in jobs) / sum(j.request.input_tokens for j in jobs),
            spread=max(sent) * self.count / len(jobs),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """A run in numbers, all but its warm-up."""

    requests: int
    mean_s: float | None = None
    """Of the time to first token, as are the next two."""
    p50_s: float | None = None
    p95_s: float | None = None
    good: float | None = None
    """Share of requests within the objective."""
    goodput: float | None = None
    """Those a second."""
    hit_rate: float | None = None
    """Share of prompt tokens that were cached."""
    spread: float | None = None
    """Requests of the busiest engine, over the mean."""


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def play(
    requests: Sequence[TraceRequest],
    engines: Sequence[VirtualEngine],
    strategy: Strategy,
    tick: Callable[[int], None] = lambda done: None,
) -> Played:
    """Run all requests to their ends; `tick` hears how many have arrived."""
    said, jobs, places = _Said(strategy), list[Job](), list[int | None]()
    for number, request in enumerate(requests):
        now = request.at_s
        for place, engine in enumerate(engines):
            said.add(place, engine.advance(now))
        said.tell(now)
        job = Job(number, request, arrived=now)
        chosen = strategy.choose(job, now)
        jobs.append(job)
        places.append(chosen)
        if chosen is not None:
            engines[chosen].add(job, now)
        tick(number + 1)
    for place, engine in enumerate(engines):
        said.add(place, engine.advance(FOREVER_S))
    said.tell(FOREVER_S)
    return Played(jobs, places, len(engines))


class _Said:
    """What engines have shown and the strategy has not been told yet."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._due: list[tuple[float, int, int, Happened, bool]] = []
        self._number = count()

    def add(self, place: int, happened: Iterable[Happened]) -> None:
        """Take what an engine showed, each thing for when it will be known."""
        for what in happened:
            if what.first_tokens or what.finished:
                self._push(what.at, place, what, False)
            if what.stored or what.removed:
                self._push(what.at + EVENT_DELAY_S, place, what, True)

    def _push(self, at: float, place: int, what: Happened, is_event: bool) -> None:
        heapq.heappush(self._due, (at, next(self._number), place, what, is_event))

    def tell(self, until: float) -> None:
        """Tell all that is known by now."""
        while self._due and self._due[0][0] <= until:
            at, _, place, what, is_event = heapq.heappop(self._due)
            if is_event:
                self._strategy.announced(place, what.stored, what.removed, at)
                continue
            for job in what.first_tokens:
                self._strategy.first_token(job, place, at)
            for job in what.finished:
                self._strategy.finished(job, place, at)
