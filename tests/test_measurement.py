"""What a request is to engines, in columns; what follows for decisions is in `test_route`."""

from collections.abc import Container, Sequence

import pytest

from coordinator.engines import UNSURE_CREDIT, EngineView
from coordinator.load.inflight import Loads
from coordinator.load.predict import FixedRate
from coordinator.measurement import FULL_S, Facts, Held, Part, measure
from coordinator.runners import field_of
from lineside.ids import EngineId
from policies.model import Measure
from tests.scene import MODEL, layout_of, view

RATE = FixedRate(prefill_tokens_per_s=1000.0, step_s=0.0)
A, B, C = map(EngineId, "abc")
NOTHING = Held()


def measured(
    views: Sequence[EngineView],
    held: Held = NOTHING,
    full: Container[EngineId] = (),
    prompt: int | None = 1000,
) -> Part:
    """Return what a request is to engines that have nothing else to do."""
    field, many = field_of(MODEL, views, layout_of(views), RATE.class_of), len(views)
    loads = Loads([0] * many, [0] * many, [0.0] * many)
    return measure(
        field,
        Facts(prompt, 1000),
        held,
        loads,
        lambda engines, _: [0.0] * len(engines),
        RATE,
        lambda own_s: 0.0,
        full=full,
    )


def test_a_cache_that_is_unsure_counts_in_part() -> None:
    held = Held([((40, 40, 40), (A, B))])
    part = measured([view("a"), view("b", diverged=True)], held)
    assert [own.overlap for own in part.own] == [640, 640]
    assert part.cost == pytest.approx([0.36, (1000 - 640 * UNSURE_CREDIT) / 1000])


def test_a_newcomer_that_is_full_comes_last_unless_it_holds_half() -> None:
    views = [view("a"), view("b"), view("c")]
    part = measured(views, Held([((20, 20, 20), (B,)), ((40, 40, 40), (C,))]), full={B, C})
    assert list(part.ranking) == pytest.approx([1.0, 0.68 + FULL_S, 0.36])
    assert [part.candidate(number).is_full for number in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("measure_", "known", "unknown"),
    [
        pytest.param(Measure.CACHED_TOKENS, [640, 0], [None, None], id="cached"),
        pytest.param(Measure.UNCACHED_TOKENS, [360, 1000], [None, None], id="uncached"),
        pytest.param(Measure.PREDICTED_TTFT, [0.36, 1.0], [None, None], id="first token"),
        pytest.param(Measure.QUEUED_PROMPTS, [0, 0], [0, 0], id="queued"),
        pytest.param(Measure.COST, [None, None], [None, None], id="money is not measured here"),
    ],
)
def test_what_follows_from_a_prompt_is_unknown_without_it(
    measure_: Measure, known: list[float | None], unknown: list[float | None]
) -> None:
    views, held = [view("a"), view("b")], Held([((40, 40, 40), (A,))])
    assert list(measured(views, held).column(measure_)) == pytest.approx(known)
    assert list(measured(views, held, prompt=None).column(measure_)) == unknown
