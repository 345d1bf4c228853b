"""Which providers are left alone, for how long, and how one request finds out."""

from email.utils import formatdate

import pytest

from coordinator.attempts import Attempt, Fault, Repeat
from coordinator.providers.cooldowns import (
    ASKED_MOST_S,
    FAILS_AFTER,
    FAILS_S,
    MOST_S,
    TRIAL_S,
    Cause,
    Cooldowns,
    Pause,
    asked_pause_s,
)
from lineside.ids import EngineId

P, Q = EngineId("p"), EngineId("q")


def failing(times: int = FAILS_AFTER) -> Cooldowns:
    cooldowns = Cooldowns()
    for _ in range(times):
        cooldowns.sent(P, 0.0)
        cooldowns.failed(P, 0.0, 0.0)
    return cooldowns


def test_failures_in_a_row_are_a_pause() -> None:
    assert failing(FAILS_AFTER - 1).pause(P, 0.0) is None
    cooldowns = failing()
    assert cooldowns.pause(P, 1.0) == Pause(Cause.FAILS, FAILS_S - 1.0, is_certain=False)
    assert cooldowns.pause(Q, 1.0) is None
    assert cooldowns.take_news() == [(P, Cause.FAILS)]


def test_an_answer_between_them_starts_the_count_anew() -> None:
    cooldowns = failing(FAILS_AFTER - 1)
    cooldowns.answered(P, 0.0)
    cooldowns.failed(P, 0.0, 0.0)
    assert cooldowns.pause(P, 0.0) is None
    assert cooldowns.take_news() == []


def test_one_request_finds_out_and_the_others_wait_for_it() -> None:
    cooldowns = failing()
    assert cooldowns.pause(P, FAILS_S) is None
    cooldowns.sent(P, FAILS_S)
    assert cooldowns.pause(P, FAILS_S) == Pause(Cause.FAILS, 0.0, is_certain=False)
    cooldowns.answered(P, FAILS_S)
    assert cooldowns.pause(P, FAILS_S) is None
    assert cooldowns.take_news() == [(P, None)]


def test_a_trial_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    cooldowns, now, pauses = failing(), FAILS_S, []
    for _ in range(6):
        cooldowns.sent(P, now)
        cooldowns.failed(P, now, now, Fault.UNREACHABLE)
        pause = cooldowns.pause(P, now)
        assert pause is not None
        pauses.append(pause.for_s)
        now += pause.for_s
    assert pauses == [2 * FAILS_S, 4 * FAILS_S, 8 * FAILS_S, MOST_S, MOST_S, MOST_S]


@pytest.mark.parametrize("ends", ["its client leaves", "nobody says"])
def test_a_trial_without_a_result_is_tried_again(ends: str) -> None:
    cooldowns, now = failing(), FAILS_S
    cooldowns.sent(P, now)
    if ends == "nobody says":
        now += TRIAL_S
    else:
        cooldowns.left(P, now)
    assert cooldowns.pause(P, now) is None


def test_what_was_sent_before_a_pause_does_not_lengthen_it() -> None:
    cooldowns = failing(FAILS_AFTER + 5)
    assert cooldowns.pause(P, 0.0) == Pause(Cause.FAILS, FAILS_S, is_certain=False)


@pytest.mark.parametrize("end", ["left", "failed", "answered"])
def test_what_was_sent_before_a_trial_does_not_end_it(end: str) -> None:
    cooldowns = Cooldowns()
    cooldowns.failed(P, 1.0, 1.0, Fault.BUSY)
    cooldowns.sent(P, 3.0)
    on_trial = cooldowns.pause(P, 3.0)
    assert on_trial is not None
    match end:
        case "left":
            cooldowns.left(P, 0.5)
        case "failed":
            cooldowns.failed(P, 0.5, 3.0)
        case "answered":
            cooldowns.answered(P, 0.5)
    assert cooldowns.pause(P, 3.0) == on_trial


def test_a_stream_that_began_before_does_not_end_a_pause_that_was_asked_for() -> None:
    cooldowns = Cooldowns()
    cooldowns.failed(P, 5.0, 5.0, Fault.BUSY, 30.0)
    cooldowns.answered(P, 4.0)
    assert cooldowns.pause(P, 6.0) == Pause(Cause.BUSY, 29.0, is_certain=True)
    cooldowns.answered(P, 35.0)
    assert cooldowns.pause(P, 35.0) is None


def test_a_provider_that_answers_what_it_was_sent_before_does_not_fail_any_more() -> None:
    cooldowns = failing()
    cooldowns.answered(P, -1.0)
    assert cooldowns.pause(P, 0.0) is None


def test_a_busy_provider_is_left_alone_at_once_and_for_as_long_as_it_asks() -> None:
    cooldowns = Cooldowns()
    cooldowns.attempted(Attempt(P, Repeat.SAFE, "429", fault=Fault.BUSY), 0.0, 0.0)
    assert cooldowns.pause(P, 0.0) == Pause(Cause.BUSY, 1.0, is_certain=False)
    asked = Attempt(P, Repeat.SAFE, "429", fault=Fault.BUSY, pause_s=20.0)
    cooldowns.attempted(asked, 0.0, 0.0)
    assert cooldowns.pause(P, 0.0) == Pause(Cause.BUSY, 20.0, is_certain=True)
    cooldowns.attempted(Attempt(P, Repeat.SAFE, "503", fault=Fault.BUSY), 0.0, 0.0)
    assert cooldowns.pause(P, 0.0) == Pause(Cause.BUSY, 20.0, is_certain=True)


def test_no_provider_can_ask_for_a_day() -> None:
    cooldowns = Cooldowns()
    cooldowns.failed(P, 0.0, 0.0, Fault.BUSY, 86_400.0)
    assert cooldowns.pause(P, 0.0) == Pause(Cause.BUSY, ASKED_MOST_S, is_certain=True)


def test_a_refused_key_is_a_state_of_its_own() -> None:
    cooldowns = Cooldowns()
    cooldowns.failed(P, 0.0, 0.0, Fault.KEY_REFUSED)
    assert cooldowns.pause(P, 4.0) == Pause(Cause.KEY_REFUSED, 6.0, is_certain=True)
    assert cooldowns.take_news() == [(P, Cause.KEY_REFUSED)]


def test_faults_are_counted_and_forgotten_with_their_provider() -> None:
    cooldowns = failing()
    cooldowns.failed(P, 0.0, 0.0, Fault.BUSY)
    cooldowns.attempted(Attempt(P, Repeat.SAFE, "refuses `stream_options`"), 0.0, 0.0)
    counts = {Fault.UNREACHABLE: 0, Fault.BUSY: 1, Fault.KEY_REFUSED: 0, Fault.BROKE: FAILS_AFTER}
    assert cooldowns.counts(P) == counts
    cooldowns.retain({Q})
    assert cooldowns.pause(P, 0.0) is None
    assert set(cooldowns.counts(P).values()) == {0}


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_how_long_a_provider_asks_to_be_left_alone(said: str | None, seconds: float | None) -> None:
    assert asked_pause_s(said, NOW) == seconds
