"""How busy engines were lately, and what that makes of a prefill's cost to others."""

import pytest

from coordinator.inflight import EMPTY, Queue
from coordinator.pressure import LEAST, MOST, Pressure
from lineside.ids import ModelName

M = ModelName("m")
BUSY, IDLE = [Queue(outstanding=1, queued=1, wait_s=9.0)] * 4, [EMPTY] * 4


def after(pressure: Pressure, queues: list[Queue], seconds: float, now: float) -> float:
    beta = 0.0
    for step in range(int(seconds * 10)):
        beta = pressure.beta(M, queues, now + step / 10)(0.0)
    return beta


def test_idle_engines_still_make_a_duplicate_cost_something() -> None:
    assert after(Pressure(), IDLE, 30, 0.0) == LEAST


def test_busy_engines_make_a_prefill_dear_and_it_is_forgotten() -> None:
    pressure = Pressure()
    assert after(pressure, BUSY, 30, 0.0) == MOST
    assert after(pressure, IDLE, 30, 30.0) == LEAST


def test_three_busy_of_five_cost_one_and_a_half() -> None:
    queues = [*BUSY[:3], *IDLE[:2]]
    assert after(Pressure(), queues, 60, 0.0) == pytest.approx(1.5, rel=0.01)


def test_what_is_running_is_not_in_the_way() -> None:
    assert after(Pressure(), [Queue(outstanding=9)] * 4, 30, 0.0) == LEAST


def test_between_bursts_engines_are_not_taken_for_busy() -> None:
    pressure = Pressure()
    short = [Queue(outstanding=1, queued=1, wait_s=0.1)] * 4
    found = [pressure.beta(M, short, now)(0.0) for now in range(0, 120, 2)]
    assert found[-1] == LEAST


def test_what_is_still_to_be_computed_counts_for_as_long_as_it_takes() -> None:
    pressure = Pressure()
    half = [Queue(outstanding=1, queued=1, wait_s=1.0)] * 4
    found = [pressure.beta(M, half, now)(0.0) for now in range(0, 120, 2)]
    assert found[-1] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("own_s", "expected"), [(0.0, 0.1), (0.4, 0.5), (0.9, 1.0), (9.0, 1.0)])
def test_a_longer_prefill_costs_others_more_even_where_engines_idle(
    own_s: float, expected: float
) -> None:
    assert Pressure().beta(M, IDLE, 0.0)(own_s) == expected


def test_where_engines_are_busy_length_makes_no_difference() -> None:
    assert Pressure().beta(M, BUSY, 0.0)(0.01) == Pressure().beta(M, BUSY, 0.0)(9.0) == MOST
