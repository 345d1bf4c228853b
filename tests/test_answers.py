"""What answers teach: their length, their speed, what providers take."""

import pytest

from coordinator.load.answers import KEPT, USUAL_ITL_S, USUAL_TOKENS, Answers
from lineside.ids import EngineId, ModelName, TenantId

T, M, P = TenantId("t"), ModelName("m"), EngineId("cloud")


def test_a_tenants_answers_teach_how_long_its_next_will_be() -> None:
    answers = Answers()
    assert answers.expected_tokens(T, M, None) == USUAL_TOKENS
    for _ in range(300):
        answers.note_tokens(T, M, 40)
    assert answers.expected_tokens(T, M, None) == pytest.approx(40, abs=1)
    assert answers.expected_tokens(T, M, 10) == 10
    assert answers.expected_tokens(TenantId("other"), M, None) == USUAL_TOKENS


def test_the_time_between_tokens_grows_with_what_runs_beside() -> None:
    answers = Answers()
    assert answers.itl_s("h100", 5) == USUAL_ITL_S
    for beside in list(range(20)) * 10:
        answers.note_speed("h100", beside, 0.01 + 0.001 * beside)
    assert answers.itl_s("h100", 0) == pytest.approx(0.01, rel=0.1)
    assert answers.itl_s("h100", 19) == pytest.approx(0.029, rel=0.1)
    assert answers.itl_s("other", 5) == USUAL_ITL_S


def test_of_a_provider_the_median_counts() -> None:
    answers = Answers()
    assert (answers.ttft_s(P, M), answers.e2e_s(P, M)) == (None, None)
    for ttft_s in (0.3, 0.4, 9.0):
        answers.note_provider(P, M, ttft_s, ttft_s + 1)
    answers.note_provider(P, M, None, 1.2)
    assert (answers.ttft_s(P, M), answers.e2e_s(P, M)) == (0.4, pytest.approx(1.35))


def test_names_that_clients_write_do_not_pile_up() -> None:
    answers = Answers()
    for number in range(KEPT + 10):
        answers.note_tokens(T, ModelName(str(number)), 1)
    shown = answers.shown()["expected_output_tokens"]
    assert isinstance(shown, dict)
    assert len(shown) == KEPT
