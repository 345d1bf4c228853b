"""Runs in virtual time: what strategies are told and when, and what a run comes to."""

from collections.abc import Sequence

import pytest

from simulate.play import EVENT_DELAY_S, Figures, Played, play
from simulate.traces import TraceRequest
from simulate.virtual import Job, VirtualEngine

STEP_S = 0.008
PREFILL_S = 512 * 50e-6 + 512 * 256 * 1e-9


class Noting:
    """Sends requests where it is told, and notes what it hears."""

    def __init__(self, places: Sequence[int | None]) -> None:
        self._places = iter(places)
        self.heard: list[tuple[str, int, float]] = []

    def choose(self, job: Job, now: float) -> int | None:
        self.heard.append(("arrived", job.id, now))
        return next(self._places)

    def first_token(self, job: Job, engine: int, at: float) -> None:
        self.heard.append(("first token", job.id, pytest.approx(at)))

    def finished(self, job: Job, engine: int, at: float) -> None:
        self.heard.append(("finished", job.id, pytest.approx(at)))

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        self.heard.append((f"engine {engine} has {stored}", -1, pytest.approx(at)))


def request(at: float, block: int, answer: int = 1) -> TraceRequest:
    return TraceRequest(at, 512, answer, (block,))


def test_strategies_hear_everything_in_the_order_of_time() -> None:
    engines, strategy = [VirtualEngine(), VirtualEngine()], Noting([0, 1])
    play([request(0.0, 7), request(0.05, 8)], engines, strategy)
    first = STEP_S + PREFILL_S
    assert strategy.heard == [
        ("arrived", 0, 0.0),
        ("first token", 0, first),
        ("finished", 0, first),
        ("arrived", 1, 0.05),
        ("engine 0 has [7]", -1, first + EVENT_DELAY_S),
        ("first token", 1, 0.05 + first),
        ("finished", 1, 0.05 + first),
        ("engine 1 has [8]", -1, 0.05 + first + EVENT_DELAY_S),
    ]


def test_what_a_strategy_refuses_is_not_run() -> None:
    played = play([request(0.0, 7), request(1.0, 8)], [VirtualEngine()], Noting([None, 0]))
    assert [job.first_token is None for job in played.jobs] == [True, False]
    assert [engine for _, engine in played.counted()] == [0]


def job(number: int, at: float, ttft: float, itl: float = 0.01, cached: int = 0) -> Job:
    made = Job(number, request(at, number, answer=11), arrived=at, cached_tokens=cached)
    made.first_token = at + ttft
    made.finished = made.first_token + 10 * itl
    return made


def test_a_run_comes_to_these_figures() -> None:
    jobs = [job(0, 0.0, 99.0), job(1, 1.0, 0.5, cached=256), job(2, 2.0, 3.0), job(3, 3.0, 1.0)]
    jobs.append(job(4, 4.0, 1.5, itl=0.06))
    figures = Played(jobs, [0, 0, 1, 0, 0], count=2).figures()
    assert figures == Figures(
        requests=4,  # the first is warm-up
        mean_s=pytest.approx(1.5),
        p50_s=pytest.approx(1.5),
        p95_s=pytest.approx(3.0),
        good=0.5,
        goodput=pytest.approx(2 / 3),
        hit_rate=0.125,
        spread=1.5,
    )


def test_a_run_in_which_nothing_was_served_has_no_figures() -> None:
    assert Played([job(0, 0.0, 1.0)], [None], count=1).figures() == Figures(requests=0)
