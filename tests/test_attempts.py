"""Which failures may be repeated."""

import pytest

from coordinator.attempts import BUDGET, Attempt, Repeat, may_repeat
from lineside.ids import EngineId


def failed(repeat: Repeat) -> Attempt:
    return Attempt(EngineId("a"), repeat, "because")


@pytest.mark.parametrize(
    ("attempts", "allowed"),
    [
        pytest.param([Repeat.SAFE], True, id="a refused connection"),
        pytest.param([Repeat.UNCERTAIN], False, id="it may have run"),
        pytest.param([Repeat.FORBIDDEN], False, id="the client has seen bytes"),
        pytest.param([Repeat.SAFE, Repeat.UNCERTAIN], False, id="safe, then not"),
        pytest.param([Repeat.SAFE] * (BUDGET - 1), True, id="the last of the budget"),
        pytest.param([Repeat.SAFE] * BUDGET, False, id="the budget is used up"),
    ],
)
def test_only_safe_failures_within_the_budget(attempts: list[Repeat], allowed: bool) -> None:
    assert may_repeat([failed(repeat) for repeat in attempts]) is allowed
