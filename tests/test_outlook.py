"""What policies are told of a request's end and price."""

from typing import Any, cast

import pytest

from coordinator.load.answers import USUAL_ITL_S, Answers
from coordinator.load.outlook import RequestOutlook
from coordinator.rules import Bench
from lineside.ids import EngineId, ModelName, TenantId
from policies.backends import Price
from tests.test_predict import learned
from tests.test_service import bench, engine

M = ModelName("m")


def outlook(
    *prices: Price | None, answers: Answers | None = None, expected: float = 100.0
) -> RequestOutlook:
    b = bench(*(engine(name) for name in "ab"[: max(1, len(prices))]))
    real = b.service.decider.rules.bench()
    priced = cast(Any, Bench)(**{**_fields(real), "prices": prices or (None,)})
    return RequestOutlook(priced, answers or Answers(), learned(5), {M: 2000}, 500, expected)


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__dataclass_fields__}


@pytest.mark.parametrize(
    ("price", "money"),
    [
        pytest.param(Price(input=2.0, output=10.0), 2 * 1500 + 2 * 500 + 10 * 100, id="one price"),
        pytest.param(
            Price(input=2.0, output=10.0, cached_input=0.5),
            2 * 1500 + 0.5 * 500 + 10 * 100,
            id="cheaper from the cache",
        ),
        pytest.param(Price(input=0.0, output=0.0), 0.0, id="for nothing"),
        pytest.param(Price(input=2.0), None, id="half of it is not known"),
        pytest.param(None, None, id="nothing is known"),
    ],
)
def test_a_price_is_of_a_million_tokens_and_may_be_unknown(
    price: Price | None, money: float | None
) -> None:
    told = outlook(price).price(0, 1500, 500)
    assert told == (None if money is None else pytest.approx(money / 1e6))


def test_a_provider_has_nothing_of_a_prompt_cached() -> None:
    told = outlook(Price(input=2.0, output=10.0, cached_input=0.5))
    assert told.provider_price(0) == pytest.approx((2 * 2000 + 10 * 100) / 1e6)


@pytest.mark.parametrize(("expected", "more"), [(1.0, 0.0), (0.5, 0.0), (101.0, 100.0)])
def test_an_answers_end_is_its_first_token_and_the_time_between_the_others(
    expected: float, more: float
) -> None:
    told = outlook(expected=expected).e2e_s(engine("a"), 0.5, running=4)
    assert told == pytest.approx(0.5 + more * USUAL_ITL_S)


def test_a_provider_is_known_by_its_answers_alone() -> None:
    answers = Answers()
    told = outlook(answers=answers)
    assert (told.provider_ttft_s(0), told.provider_e2e_s(0)) == (None, None)
    answers.note_provider(EngineId("a"), M, 0.25, 4.0)
    answers.note_provider(EngineId("a"), M, None, 6.0)
    answers.note_tokens(TenantId("t"), M, 7)
    assert (told.provider_ttft_s(0), told.provider_e2e_s(0)) == (0.25, 5.0)
