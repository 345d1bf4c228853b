"""How busy engines were lately, and what that makes of a prefill's cost to others."""

import pytest

from coordinator.load.pressure import LEAST, MOST, Pressure
from lineside.ids import ModelName

M = ModelName("m")
BUSY, IDLE = [9.0] * 4, [0.0] * 4
"""What each engine still has to compute, in seconds."""


def after(pressure: Pressure, waits: list[float], seconds: float, now: float) -> float:
    beta = 0.0
    for step in range(int(seconds * 10)):
        beta = pressure.beta(M, waits, now + step / 10)(0.0)
    return beta


def test_idle_engines_still_make_a_duplicate_cost_something() -> None:
    assert after(Pressure(), IDLE, 30, 0.0) == LEAST


def test_busy_engines_make_a_prefill_dear_and_it_is_forgotten() -> None:
    pressure = Pressure()
    assert after(pressure, BUSY, 30, 0.0) == MOST
    assert after(pressure, IDLE, 30, 30.0) == LEAST


def test_three_busy_of_five_cost_one_and_a_half() -> None:
    assert after(Pressure(), [*BUSY[:3], *IDLE[:2]], 60, 0.0) == pytest.approx(1.5, rel=0.01)


def test_between_bursts_engines_are_not_taken_for_busy() -> None:
    pressure = Pressure()
    short = [0.1] * 4
    found = [pressure.beta(M, short, now)(0.0) for now in range(0, 120, 2)]
    assert found[-1] == LEAST


def test_what_is_still_to_be_computed_counts_for_as_long_as_it_takes() -> None:
    pressure = Pressure()
    half = [1.0] * 4
    found = [pressure.beta(M, half, now)(0.0) for now in range(0, 120, 2)]
    assert found[-1] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("own_s", "expected"), [(0.0, 0.1), (0.4, 0.5), (0.9, 1.0), (9.0, 1.0)])
def test_a_longer_prefill_costs_others_more_even_where_engines_idle(
    own_s: float, expected: float
) -> None:
    assert Pressure().beta(M, IDLE, 0.0)(own_s) == expected


def test_where_engines_are_busy_length_makes_no_difference() -> None:
    assert Pressure().beta(M, BUSY, 0.0)(0.01) == Pressure().beta(M, BUSY, 0.0)(9.0) == MOST
