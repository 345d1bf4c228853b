"""How near a GPU is to what it can do."""

import pytest

from agent.gpu import THROTTLE_REASONS
from agent.saturation import AT_ITS_LIMIT, saturation


@pytest.mark.parametrize(
    ("busy", "memory", "power_w", "limit_w", "throttled", "expected"),
    [
        pytest.param(0.0, 0.0, 75.0, 700.0, (), 0.0, id="idle power is no work"),
        pytest.param(1.0, 0.05, 140.0, 700.0, (), 0.2, id="one small kernel after another"),
        pytest.param(1.0, 0.9, 350.0, 700.0, (), 0.9, id="decoding waits for memory"),
        pytest.param(1.0, 0.4, 665.0, 700.0, (), 0.95, id="prefill draws power"),
        pytest.param(0.5, 0.8, 70.0, 700.0, (), 0.4, id="only half of the time"),
        pytest.param(0.9, 0.1, 710.0, 700.0, (), 0.9, id="no more than all of its power"),
        pytest.param(0.9, 0.1, 300.0, 700.0, ("hw_thermal",), 0.9, id="too hot to do more"),
        pytest.param(1.0, 0.5, 70.0, 700.0, ("user_clocks",), 0.5, id="clocks that somebody set"),
        pytest.param(1.0, None, 350.0, 700.0, (), 0.5, id="power alone"),
        pytest.param(1.0, 0.3, None, 700.0, (), 0.3, id="memory alone"),
        pytest.param(1.0, 0.3, 350.0, None, None, 0.3, id="a limit that is not known"),
        pytest.param(1.0, None, None, None, None, None, id="nothing but being busy"),
        pytest.param(None, 0.3, 350.0, 700.0, (), None, id="not even that"),
    ],
)
def test_the_score(
    busy: float | None,
    memory: float | None,
    power_w: float | None,
    limit_w: float | None,
    throttled: tuple[str, ...] | None,
    expected: float | None,
) -> None:
    assert saturation(busy, memory, power_w, limit_w, throttled) == expected


def test_reasons_that_count_are_reasons_that_are_read() -> None:
    assert set(THROTTLE_REASONS) > AT_ITS_LIMIT
