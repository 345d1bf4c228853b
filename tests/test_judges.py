"""What outcomes mean for a provider."""

from collections.abc import Callable

import pytest

from coordinator.attempts import Attempt, Fault, Repeat
from coordinator.judges import OfProvider
from coordinator.providers.cooldowns import FAILS_AFTER, Cause, Cooldowns
from coordinator.refusal import (
    Refusal,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from lineside.ids import EngineId

P = EngineId("p")
BROKE = Attempt(P, Repeat.UNCERTAIN, "the connection broke", fault=Fault.BROKE)
BUSY = Attempt(P, Repeat.SAFE, "429", fault=Fault.BUSY, pause_s=9.0)
ODD = Attempt(P, Repeat.SAFE, "refuses `stream_options`")


def after(tell: Callable[[OfProvider], None], times: int = 1) -> tuple[Cause | None, int]:
    """Return the cooldown and the faults that are counted."""
    cooldowns = Cooldowns()
    for _ in range(times):
        tell(OfProvider(cooldowns, P, since=0.0, now=0.5))
    pause = cooldowns.pause(P, 0.5)
    return pause.cause if pause else None, sum(cooldowns.counts(P).values())


@pytest.mark.parametrize(
    ("status", "fault"),
    [(200, 0), (400, 0), (404, 0), (429, 0), (401, 0), (503, 0), (529, 0), (500, 1), (502, 1)],
)
def test_an_answer_is_a_fault_where_it_failed_at_something_else_than_taking_the_request(
    status: int, fault: int
) -> None:
    assert after(lambda judge: judge.answered(status))[1] == fault


@pytest.mark.parametrize(
    ("refusal", "fault"),
    [
        (UpstreamBroken(), 1),
        (UpstreamTimeout("first_token", 1.0), 1),
        (UpstreamTimeout("total", 1.0), 1),
        (UpstreamTimeout("connect", 1.0), 0),
        (UpstreamUnreachable(3), 0),
        (UpstreamError(401), 0),
        (UpstreamError(502), 1),
    ],
)
def test_an_end_without_an_answer_is_a_fault_unless_it_was_noted_as_an_attempt(
    refusal: Refusal, fault: int
) -> None:
    assert after(lambda judge: judge.failed(refusal))[1] == fault


def test_what_broke_off_counts_once_at_the_requests_end() -> None:
    assert after(lambda judge: judge.tried(BROKE, goes_on=False)) == (None, 0)
    assert after(lambda judge: judge.tried(BUSY, goes_on=False)) == (Cause.BUSY, 1)
    assert after(lambda judge: judge.tried(ODD, goes_on=True)) == (None, 0)


def test_failures_of_all_kinds_add_up() -> None:
    told = [
        lambda judge: judge.answered(500),
        lambda judge: judge.failed(UpstreamBroken()),
        lambda judge: judge.failed(UpstreamTimeout("idle", 1.0)),
    ]
    assert len(told) == FAILS_AFTER
    cooldowns = Cooldowns()
    for tell in told:
        assert cooldowns.pause(P, 0.5) is None
        tell(OfProvider(cooldowns, P, 0.0, 0.5))
    pause = cooldowns.pause(P, 0.5)
    assert pause is not None
    assert pause.cause is Cause.FAILS
