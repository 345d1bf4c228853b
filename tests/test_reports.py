"""Every open decision ends once: by its gateway's word, or without one."""

from collections.abc import Sequence

import pytest

from coordinator.doors.reports import SLACK, Event, Report, Reports
from coordinator.limits import Usage
from coordinator.service import UNTOLD, UNTOLD_S, Routed
from coordinator.watch import WatchedService
from lineside.ids import EngineId
from tests.manual_clock import ManualClock
from tests.test_service import TENANT, request
from tests.test_watch import watched

USAGE = Usage(64, 48, 7)


class Scene:
    """A table of open decisions over a service."""

    def __init__(self, *names: str, most: int = 10) -> None:
        self.service, self.told = watched(*names)
        self.reports = Reports(self.service, 20.0, most)

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.service.clock, ManualClock)
        return self.service.clock

    async def opened(self, stream: bool = True) -> Routed:
        routed = await self.service.route(request(stream=stream), TENANT, "r")
        assert isinstance(routed, Routed)
        assert routed.record.decision is not None
        self.reports.open(routed, routed.record.decision.ranked, "edge")
        return routed

    def report(self, routed: Routed, event: Event, **said: object) -> bool:
        return self.reports.report(Report(routed.record.id, event, **said), "edge")  # type: ignore[arg-type]

    @property
    def left(self) -> tuple[int, int, int]:
        """Open decisions, leases, claims."""
        return len(self.reports), self.service.inflight.outstanding, self.service.overlay.claims


async def test_a_finished_request_is_told_as_the_gateway_saw_it() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    await scene.clock.advance(0.3)
    assert scene.report(routed, Event.FIRST_TOKEN, age_s=0.1)
    await scene.clock.advance(0.5)
    assert scene.report(routed, Event.FINISHED, usage=USAGE, status=200, age_s=0.2)
    outcome = routed.record.outcome
    assert (outcome.end, outcome.status) == ("finished", 200)
    assert outcome.ttft_s == pytest.approx(0.2)
    assert outcome.duration_s == pytest.approx(0.6)
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (64, 48, 7)
    assert scene.left[:2] == (0, 0)


@pytest.mark.parametrize(
    ("event", "said", "end", "status"),
    [
        pytest.param(Event.FINISHED, {"status": 400}, "rejected", 400, id="the client's mistake"),
        pytest.param(Event.ABORTED, {"usage": Usage(completion_tokens=3)}, "aborted", None, id="a"),
        pytest.param(Event.FAILED, {}, "failed", 502, id="no answer"),
        pytest.param(Event.FAILED, {"status": 500}, "failed", 502, id="an engine's error"),
    ],
)
async def test_ends(event: Event, said: dict[str, object], end: str, status: int | None) -> None:
    scene = Scene("a")
    routed = await scene.opened()
    assert scene.report(routed, event, **said)
    assert (routed.record.outcome.end, routed.record.outcome.status) == (end, status)
    assert scene.left == (0, 0, 0)
    assert scene.reports.counts == {event.value: 1}


async def test_a_second_report_changes_nothing() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    assert scene.report(routed, Event.FINISHED, usage=USAGE)
    before = routed.record.to_json()
    for event in Event:
        assert not scene.report(routed, event)
    assert routed.record.to_json() == before
    assert scene.reports.counts == {"finished": 1, "late": len(Event)}


async def test_nobody_reports_on_what_another_gateway_asked() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    assert not scene.reports.report(Report(routed.record.id, Event.FINISHED), "another")
    assert scene.left[:2] == (1, 1)


async def test_a_trial_comes_back_when_its_offer_should_have_been_taken() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    due_s = UNTOLD_S + UNTOLD * (routed.candidate.wait_s + routed.candidate.own_s)
    await scene.clock.advance(due_s - 0.01)
    scene.reports.expire()
    assert routed.on_trial
    await scene.clock.advance(0.02)
    scene.reports.expire()
    assert not routed.on_trial
    assert scene.told.said[-1][:2] == ("untold", "a")
    await scene.clock.advance(20.0)
    assert scene.reports.expire() == 1
    assert scene.told.said[-1][:2] == ("untold", "a")  # another one's trial is no longer ended


async def test_one_that_something_is_heard_of_goes_on() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    assert scene.report(routed, Event.UNSEEN)
    await scene.clock.advance(5.0)
    scene.reports.expire()
    assert routed.on_trial
    assert "untold" not in [said[0] for said in scene.told.said]


async def test_what_nobody_reports_on_expires() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    await scene.clock.advance(19.9)
    assert scene.reports.expire() == 0
    await scene.clock.advance(0.2)
    assert scene.reports.expire() == 1
    assert routed.record.outcome.end == "unreported"
    assert scene.left == (0, 0, 0)
    assert scene.reports.counts == {"expired": 1}


async def test_a_stream_that_flows_may_go_on_for_as_long_as_its_lease() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    scene.report(routed, Event.FIRST_TOKEN)
    await scene.clock.advance(99.0)
    assert scene.reports.expire() == 0
    await scene.clock.advance(1.1)
    assert scene.reports.expire() == 1
    assert scene.left[:2] == (0, 0)


async def test_what_will_not_be_seen_counts_for_as_long_as_predicted() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    assert scene.report(routed, Event.UNSEEN)
    predicted = routed.candidate.predicted_e2e_s or 30.0
    await scene.clock.advance(min(predicted, 19.0) - 0.01)
    assert scene.reports.expire() == 0
    await scene.clock.advance(20.0)
    assert scene.reports.expire() == 0  # nobody had to tell
    assert routed.record.outcome.end == "unreported"
    assert scene.reports.counts == {"unseen": 1}


async def test_a_stream_of_which_only_the_head_comes_by_ends_with_its_status() -> None:
    """The head is sent before the prefill: it says nothing of a first token."""
    scene = Scene("a")
    routed = await scene.opened()
    await scene.clock.advance(0.1)
    assert scene.report(routed, Event.UNSEEN, status=200)
    assert scene.left == (1, 1, 1)
    assert scene.service.inflight.queue(EngineId("a"), scene.clock.monotonic()).queued == 1
    await scene.clock.advance(30.0)
    assert scene.reports.expire() == 0  # nobody had to tell
    outcome = routed.record.outcome
    assert (outcome.end, outcome.status, outcome.ttft_s) == ("unfollowed", 200, None)
    assert scene.left == (0, 0, 0)
    assert scene.reports.counts == {"unseen": 1}
    assert scene.told.said[-1][:2] == ("left", "a")


HEADS = [
    pytest.param(True, 503, "rejected", 0, "failed", id="an error"),
    pytest.param(False, 503, "rejected", 0, "failed", id="an error, not streamed"),
    pytest.param(False, 200, "unfollowed", 1, "answered", id="an answer that is not streamed"),
]


@pytest.mark.parametrize(("stream", "status", "end", "claims", "told"), HEADS)
async def test_what_is_over_with_its_head_counts_no_longer(
    stream: bool, status: int, end: str, claims: int, told: str
) -> None:
    scene = Scene("a")
    routed = await scene.opened(stream)
    await scene.clock.advance(0.1)
    assert scene.report(routed, Event.UNSEEN, status=status)
    outcome = routed.record.outcome
    assert (outcome.end, outcome.status, outcome.ttft_s) == (end, status, None)
    assert outcome.duration_s == pytest.approx(0.1)
    assert scene.left == (0, 0, claims)  # what was computed is claimed until its engine says so
    assert scene.told.said[-1][:2] == (told, "a")
    await scene.clock.advance(30.0)
    assert scene.reports.expire() == 0
    assert scene.reports.counts == {"unseen": 1}


async def test_what_has_ended_leaves_nothing_to_look_at() -> None:
    scene = Scene("a", most=5000)
    for _ in range(3 * SLACK):
        routed = await scene.opened()
        scene.report(routed, Event.UNSEEN)
        scene.report(routed, Event.FINISHED, usage=USAGE)
        scene.reports.expire()
    kept = await scene.opened()
    scene.reports.expire()
    assert len(scene.reports._due) <= 2 * (SLACK + 1)
    await scene.clock.advance(20.1)
    assert scene.reports.expire() == 1
    assert kept.record.outcome.end == "unreported"
    assert scene.reports._due == []


async def test_the_oldest_ends_where_there_is_no_more_room() -> None:
    scene = Scene("a", most=2)
    first, *_ = [await scene.opened() for _ in range(3)]
    assert first.record.outcome.end == "unreported"
    assert scene.left[:2] == (2, 2)
    assert scene.reports.counts == {"crowded_out": 1}


def offered(scene: Scene, routed: Routed) -> Sequence[str]:
    assert routed.record.decision is not None
    return [candidate.target.id for candidate in routed.record.decision.ranked]


async def test_a_fallback_that_the_gateway_took_is_accounted_on_its_engine() -> None:
    scene = Scene("a", "b", "c")
    routed = await scene.opened()
    first, _, third = offered(scene, routed)
    assert scene.report(routed, Event.FIRST_TOKEN, backend=third)
    queue = scene.service.inflight.queue
    now = scene.clock.monotonic()
    assert queue(EngineId(first), now).outstanding == 0
    assert queue(EngineId(third), now).outstanding == 1
    assert scene.service.inflight.watched(EngineId(third)) == 0
    assert [attempt.engine for attempt in routed.record.attempts] == [first]
    assert routed.record.served_by is not None and routed.record.served_by.target.id == third
    assert scene.report(routed, Event.FINISHED, usage=USAGE, backend=third)
    assert scene.left[:2] == (0, 0)
    assert scene.reports.counts == {"first_token": 1, "finished": 1, "fallback": 1}


async def test_a_backend_that_was_not_offered_changes_nothing() -> None:
    scene = Scene("a", "b")
    routed = await scene.opened()
    assert scene.report(routed, Event.FINISHED, usage=USAGE, backend="z:1")
    assert routed.record.attempts == []
    assert scene.left[:2] == (0, 0)


async def test_a_first_token_that_nobody_tells_of_does_not_hold_up_the_queue() -> None:
    scene = Scene("a")
    routed = await scene.opened()
    queue, due_s = scene.service.inflight.queue, UNTOLD_S + UNTOLD * routed.candidate.own_s
    await scene.clock.advance(due_s - 0.01)
    assert queue(EngineId("a"), scene.clock.monotonic()).queued == 1
    await scene.clock.advance(0.02)
    assert queue(EngineId("a"), scene.clock.monotonic())[:2] == (1, 0)


def test_a_decision_stands_no_longer_than_its_lease() -> None:
    service: WatchedService = watched("a")[0]
    assert Reports(service, 1e6)._report_s == service.lease_s
