"""What a complete answer teaches, and what it does not."""

from dataclasses import replace
from typing import Any

import pytest

from coordinator.candidates import Candidate, Provider
from coordinator.limits import Usage
from coordinator.load.answers import FADE, USUAL_ITL_S, USUAL_TOKENS, Answers
from coordinator.load.lessons import learn
from coordinator.records import Outcome, Record
from lineside.ids import EngineId, ModelName, TenantId
from tests.test_service import engine

M, T = ModelName("m"), TenantId("t")


class Predictor:
    """Remembers what it was taught."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def learn(self, *what: Any) -> None:
        self.said.append(what)

    def class_of(self, engine: object) -> str:
        return "c"


def record(served_by: Candidate | None, **changes: Any) -> Record:
    made = Record(id="d", at=0.0, request_id="r", tenant=T, model="m", served_by=served_by)
    made.outcome = Outcome(ttft_s=0.5, duration_s=2.5)
    return replace(made, **changes)


def taught(
    of: Record, usage: Usage, own_s: float | None = 0.3, ttft_s: float | None = 0.5
) -> tuple[list[tuple[Any, ...]], Answers]:
    predictor, answers = Predictor(), Answers()
    learn(predictor, answers, of, usage, own_s, ttft_s, 2.5)  # type: ignore[arg-type]
    return predictor.said, answers


A = Candidate(engine("a"), M, overlap_tokens=32, speculative_tokens=16, outstanding=3)
P = Candidate(Provider(EngineId("p"), "http://p", "p", {M: "up"}), M)


@pytest.mark.parametrize(
    ("usage", "own_s", "said"),
    [
        pytest.param(Usage(100, 64, 5), 0.3, [(A.target, 36, 64, 0.3)], id="what it says"),
        pytest.param(Usage(100, None, 5), 0.3, [(A.target, 52, 48, 0.3)], id="what we predicted"),
        pytest.param(Usage(100, 120, 5), 0.3, [(A.target, 0, 120, 0.3)], id="never below nothing"),
        pytest.param(Usage(None, None, 5), 0.3, [], id="an unknown prompt"),
        pytest.param(Usage(100, 64, 5), None, [], id="a prefill nobody saw"),
    ],
)
def test_a_prefill_is_learned_by_what_was_computed(
    usage: Usage, own_s: float | None, said: list[tuple[Any, ...]]
) -> None:
    assert taught(record(A), usage, own_s)[0] == said


@pytest.mark.parametrize(
    ("tokens", "itl_s"),
    [
        pytest.param(5, 0.5, id="four gaps in two seconds"),
        pytest.param(1, USUAL_ITL_S, id="one token has no gap"),
        pytest.param(None, USUAL_ITL_S, id="nobody says how many"),
    ],
)
def test_the_time_between_tokens_is_that_of_the_answer(tokens: int | None, itl_s: float) -> None:
    _, answers = taught(record(A), Usage(100, 0, tokens))
    assert answers.itl_s("c", 3) == pytest.approx(itl_s)


def test_answers_lengths_are_learned_by_tenant_and_model() -> None:
    _, answers = taught(record(A), Usage(100, 0, 6))
    expected = USUAL_TOKENS + (6 - USUAL_TOKENS) / FADE
    assert answers.expected_tokens(T, M, None) == pytest.approx(expected)
    assert answers.expected_tokens(TenantId("other"), M, None) == USUAL_TOKENS


@pytest.mark.parametrize("ttft_s", [0.5, None])
def test_of_a_provider_its_latency_is_learned_and_no_prefill(ttft_s: float | None) -> None:
    said, answers = taught(record(P), Usage(100, 64, 5), ttft_s=ttft_s)
    assert said == []
    assert answers.ttft_s(EngineId("p"), M) == ttft_s
    assert answers.e2e_s(EngineId("p"), M) == 2.5
    assert answers.itl_s("c", 0) == USUAL_ITL_S


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(record(None), id="nobody served it"),
        pytest.param(record(A, comparable=False), id="several sequences"),
    ],
)
def test_what_cannot_be_compared_teaches_nothing(of: Record) -> None:
    said, answers = taught(of, Usage(100, 64, 5))
    assert said == []
    assert answers.expected_tokens(T, M, None) == USUAL_TOKENS
