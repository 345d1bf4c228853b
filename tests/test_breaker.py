"""When an engine is left out, when it is tried again, and what does not count against it."""

from dataclasses import replace

import pytest

from coordinator.breaker import OPEN_MOST_S, OPEN_S, OPENS_AFTER, Breakers, Cause
from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.load.inflight import InFlight
from lineside.ids import EngineId, GroupId, NodeId
from lineside.signals import Load

A, B = EngineId("a:1"), EngineId("b:1")
STALLED_S = 30.0


class Bench:
    """Breakers over a cluster of two engines, and a clock in the test's hands."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.assign(
            Engine(engine, f"http://{engine}", engine, GroupId("g"), (), NodeId("n"))
            for engine in (A, B)
        )
        self.breakers = Breakers(self.cluster, STALLED_S)
        self.now = 1000.0

    def excluded(self, engine: EngineId = A) -> str:
        views = self.cluster.snapshot(self.now).engines
        return next(view.failing for view in views if view.engine.id == engine)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breakers.failed(A, self.now)

    def report(self, load: Load | None, outstanding: int = 0, age_s: float = 0.0) -> None:
        if load is not None:
            self.cluster.observe_load(A, load, self.now - age_s)
        view = self.cluster.snapshot(self.now).engines[0]
        self.breakers.look(view, outstanding, self.now)

    def report_for(self, seconds: int, load: Load | None, outstanding: int = 0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.report(load, outstanding)

    def wait_out(self, seconds: float = OPEN_S) -> None:
        self.now += seconds
        self.breakers.heard(A, self.now)
        self.report(None)


@pytest.fixture
def bench() -> Bench:
    return Bench()


BUSY = Load(running=2, waiting=1, prompt_tokens=10, generation_tokens=5, kv_cache_usage=0.5)
IDLE = replace(BUSY, running=0, waiting=0)


def test_failures_in_a_row_exclude_one_engine_and_no_other(bench: Bench) -> None:
    bench.fail(OPENS_AFTER - 1)
    assert bench.excluded() == ""
    bench.fail()
    assert (bench.excluded(), bench.excluded(B)) == (Cause.FAILS.value, "")
    assert bench.breakers.take_news() == [(A, Cause.FAILS.value)]
    assert bench.breakers.take_news() == []


def test_an_answer_between_failures_starts_the_count_anew(bench: Bench) -> None:
    for _ in range(3):
        bench.fail(OPENS_AFTER - 1)
        bench.breakers.answered(A, bench.now)
    assert bench.excluded() == ""


def test_one_silence_is_enough(bench: Bench) -> None:
    bench.breakers.silent(A, bench.now - 10, bench.now)
    assert bench.excluded() == Cause.SILENT.value


def test_a_silence_towards_one_request_alone_is_a_failure_like_others(bench: Bench) -> None:
    bench.breakers.got_on(A, bench.now - 5)
    bench.breakers.silent(A, bench.now - 10, bench.now)
    assert bench.excluded() == ""
    bench.fail(OPENS_AFTER - 1)
    assert bench.excluded() == Cause.FAILS.value


def test_one_request_finds_out_whether_it_works_again(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.wait_out()
    assert bench.excluded() == ""
    bench.breakers.sent(A, bench.now)
    assert bench.excluded() == Cause.FAILS.value  # to all others
    bench.breakers.answered(A, bench.now)
    assert bench.excluded() == ""
    bench.fail(OPENS_AFTER - 1)
    assert bench.excluded() == ""


def test_each_failed_trial_waits_longer(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    waits = []
    for _ in range(6):
        start = bench.now
        while bench.excluded():
            bench.wait_out(1.0)
        waits.append(bench.now - start)
        bench.breakers.sent(A, bench.now)
        bench.fail()
    assert waits == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S, 8 * OPEN_S, OPEN_MOST_S, OPEN_MOST_S]


def test_a_trial_that_shows_nothing_is_followed_by_another(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.wait_out()
    bench.breakers.sent(A, bench.now)
    bench.breakers.left(A, bench.now)
    assert bench.excluded() == Cause.FAILS.value
    bench.wait_out()
    assert bench.excluded() == ""


def test_a_trial_of_which_nobody_tells_is_another_ones_at_once(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.wait_out()
    assert bench.breakers.sent(A, bench.now) is True
    assert bench.breakers.sent(A, bench.now) is False
    assert bench.excluded() == Cause.FAILS.value
    bench.breakers.untold(A, bench.now)
    assert bench.excluded() == ""
    assert bench.breakers.sent(A, bench.now) is True


def test_no_request_is_risked_while_the_server_answers_no_look(bench: Bench) -> None:
    bench.breakers.silent(A, bench.now - 10, bench.now)
    bench.report_for(100, None)
    assert bench.excluded() == Cause.SILENT.value
    bench.wait_out(0.0)
    assert bench.excluded() == ""


def test_requests_sent_before_it_opened_are_no_news(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.now += 4.0
    bench.fail(20)
    bench.wait_out(1.0)
    assert bench.excluded() == ""


def test_no_step_while_requests_wait_is_a_stall(bench: Bench) -> None:
    bench.report(BUSY)
    bench.report_for(29, BUSY)
    assert bench.excluded() == ""
    bench.report_for(1, BUSY)
    assert bench.excluded() == Cause.STALLED.value


def test_our_own_requests_count_as_pending(bench: Bench) -> None:
    bench.report(IDLE)
    bench.report_for(31, IDLE, outstanding=1)
    assert bench.excluded() == Cause.STALLED.value


def test_what_gateways_send_never_counts_as_pending_and_leaves_nothing_behind(
    bench: Bench,
) -> None:
    inflight = InFlight()
    bench.report(IDLE)
    for _ in range(100):
        handed = inflight.take(A, 100, 1.0, bench.now, bench.now + 600)
        inflight.hand_over(handed, bench.now + 1.0)
        bench.report_for(1, IDLE, inflight.watched(A))
    assert (inflight.queue(A, bench.now).outstanding, bench.excluded()) == (100, "")
    inflight.take(A, 100, 1.0, bench.now, bench.now + 600)
    bench.report_for(29, IDLE, inflight.watched(A))
    assert bench.breakers.take_news() == []
    bench.report_for(1, IDLE, inflight.watched(A))
    assert bench.excluded() == Cause.STALLED.value


def test_time_with_nothing_pending_starts_the_look_anew(bench: Bench) -> None:
    bench.report(IDLE)
    for _ in range(10):
        bench.report_for(29, IDLE, outstanding=1)
        bench.report_for(1, IDLE, outstanding=0)
    assert bench.breakers.take_news() == []


@pytest.mark.parametrize(
    "step",
    [
        pytest.param({"generation_tokens": 6}, id="a token"),
        pytest.param({"prompt_tokens": 20}, id="a prefill ended"),
        pytest.param({"prefix_cache_queries": 9}, id="a request was begun"),
        pytest.param({"kv_cache_usage": 0.6}, id="blocks of a long prefill"),
        pytest.param({"generation_tokens": 0, "prompt_tokens": 0}, id="a restart"),
    ],
)
def test_a_step_brings_it_back(bench: Bench, step: dict[str, float]) -> None:
    bench.report(BUSY)
    bench.report_for(31, BUSY)
    bench.report_for(1, replace(BUSY, **step))  # type: ignore[arg-type]
    assert bench.excluded() == ""
    assert bench.breakers.take_news()[-1] == (A, "")


def test_what_is_given_back_is_no_step(bench: Bench) -> None:
    bench.report(BUSY)
    bench.report_for(31, replace(BUSY, kv_cache_usage=0.1, running=1))
    assert bench.excluded() == Cause.STALLED.value


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(IDLE, id="nothing to do"),
        pytest.param(replace(BUSY, asleep=True), id="asleep"),
        pytest.param(replace(BUSY, generation_tokens=None), id="no counter"),
        pytest.param(None, id="no report"),
    ],
)
def test_who_has_nothing_to_do_or_says_nothing_does_not_stall(
    bench: Bench, load: Load | None
) -> None:
    outstanding = 0 if load is IDLE else 3
    bench.report(load, outstanding)
    bench.report_for(100, load, outstanding)
    assert bench.excluded() == ""


def test_old_reports_say_nothing(bench: Bench) -> None:
    bench.report(BUSY, age_s=0.0)
    for _ in range(100):
        bench.now += 1.0
        bench.report(None, outstanding=1)
    assert bench.excluded() == ""


def test_streams_of_ours_that_go_on_are_progress(bench: Bench) -> None:
    bench.report(BUSY)
    for _ in range(60):
        bench.breakers.got_on(A, bench.now)
        bench.report_for(1, BUSY)
    assert bench.excluded() == ""


def test_an_engine_that_comes_back_starts_anew(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.breakers.reset(A)
    assert bench.excluded() == ""
    bench.fail(OPENS_AFTER - 1)
    assert bench.excluded() == ""


def test_engines_that_left_are_forgotten(bench: Bench) -> None:
    bench.fail(OPENS_AFTER)
    bench.breakers.retain({B})
    assert bench.breakers.take_news() == []
