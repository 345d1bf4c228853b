"""When a coordinator is ready, what it waits for, and what it says it serves around."""

from pathlib import Path

import pytest

from coordinator.discovery import NOT_ASKED
from coordinator.holdings.caches import Caches
from coordinator.holdings.cap import IndexCap, State
from coordinator.readiness import CODES, FILL_S, Readiness
from coordinator.resources import ResourceFolder
from coordinator.state.numbering import Numbering
from coordinator.state.pulse import Pulse
from coordinator.state.secret import Secret
from coordinator.state.stores.sqlite import SqliteStore
from lineside.ids import EngineId, GroupId
from lineside.signals import Events, Load, Status
from tests.cells import Cell, engine

A, B = EngineId("e0"), EngineId("e1")


class Start:
    """A coordinator that has just started: it knows of two engines and nothing more."""

    def __init__(self) -> None:
        self.cell = Cell(2)
        self.cluster = self.cell.cluster
        self.cluster.assign([])
        self.cluster.assign([engine(A), engine(B)])
        for each in (A, B):
            self.cluster.observe_away(each, NOT_ASKED)
        self.store = SqliteStore(":memory:")
        self.numbering = Numbering(self.store, self.cluster)
        self.cap = IndexCap(2**30, self.cluster, Caches())
        self.pulse = Pulse(self.store, Secret(b"secret"), self.cell.clock, lambda: None)
        self.readiness = Readiness(
            service=self.cell.service, cap=self.cap, numbering=self.numbering, pulse=self.pulse
        )

    def found(self, *engines: EngineId) -> None:
        for each in engines:
            self.cluster.observe_away(each, "")

    def report(self, each: EngineId, events: Events = Events.LIVE, reason: str = "") -> None:
        self.cluster.link(each, True)
        self.cluster.observe_status(each, Status(events, reason), self.cell.clock.now)

    def filled(self, *engines: EngineId) -> None:
        for each in engines:
            self.report(each)
            self.cluster.observe_digest(each, "g", True, False, self.cell.clock.now)

    def codes(self) -> list[str]:
        return [reason.code for reason in self.readiness.degraded()]


@pytest.fixture
def start() -> Start:
    return Start()


def test_a_start_waits_for_every_engine_and_says_for_which(start: Start) -> None:
    assert start.readiness.reasons() == [
        "no engine can be reached",
        "engine e0 is away: not asked yet",
        "engine e1 is away: not asked yet",
    ]
    start.found(A, B)
    connecting = "connecting: no agent has reported on the engine yet: that of node `n` is to"
    assert start.readiness.reasons() == [f"engine e0: {connecting}", f"engine e1: {connecting}"]
    start.filled(A)
    start.report(B)
    filling = "engine e1: filling: the engine's first snapshot is not complete"
    assert (start.readiness.reasons(), start.codes()) == ([filling], [])
    start.filled(B)
    assert (start.readiness.reasons(), start.codes()) == ([], [])


@pytest.mark.parametrize("state", ["away", "unusable", "lost", "asleep"])
def test_a_start_does_not_wait_for_what_it_knows_to_be_out_of_order(
    start: Start, state: str
) -> None:
    start.found(A, B)
    start.filled(A)
    match state:
        case "away":
            start.cluster.observe_away(B, "cannot connect: Connection refused")
        case "unusable":
            start.report(B, Events.UNUSABLE, "the block size is no multiple of 16")
        case "lost":
            start.cluster.observe_status(B, Status(Events.LIVE), start.cell.clock.now - 11)
        case "asleep":
            start.cluster.observe_load(B, Load(asleep=True), start.cell.clock.now)
    assert start.readiness.reasons() == []
    codes = {"away": "engine_away", "asleep": "engine_asleep"}
    assert start.codes() == [codes.get(state, f"cache_{state}")]


async def test_the_waiting_has_an_end_and_then_says_degraded(start: Start) -> None:
    start.found(A, B)
    await start.cell.clock.advance(FILL_S - 0.1)
    assert len(start.readiness.reasons()) == 2
    await start.cell.clock.advance(0.1)
    assert start.readiness.reasons() == []
    assert start.codes() == ["cache_connecting", "cache_connecting", "no_agent"]


async def test_one_that_was_ready_stays_so(start: Start) -> None:
    start.found(A, B)
    start.filled(A, B)
    assert start.readiness.reasons() == []
    start.cluster.assign([engine(A), engine(B), engine(EngineId("new"))])
    for each in (A, B):
        start.cluster.link(each, False)
    assert (start.readiness.reasons(), start.codes()) == ([], ["cache_connecting", "no_agent"])
    await start.cell.clock.advance(3.0)
    assert start.codes() == ["cache_stale", "cache_stale", "cache_connecting", "no_agent"]
    await start.cell.clock.advance(8.0)
    assert start.codes() == ["cache_lost", "cache_lost", "cache_connecting", "no_agent"]
    assert start.readiness.reasons() == []
    for each in (A, B, EngineId("new")):
        start.cluster.observe_away(each, "cannot connect")
    assert start.readiness.reasons() == ["no engine can be reached"]


async def test_every_part_says_what_is_wrong_with_it(start: Start) -> None:
    start.found(A, B)
    start.filled(A, B)
    start.cluster.observe_status(A, Status(Events.UNSURE, "events were lost"), 1000.0)
    start.cluster.observe_failing(B, "five requests in a row failed")
    start.cap.state, start.cap.factors = State.OVER, {GroupId("g"): 4}
    start.cell.service.overlay.full = True
    start.numbering.away = "SQLite: database is locked"
    start.pulse.is_foreign = True
    assert [tuple(reason) for reason in start.readiness.degraded()] == [
        ("cache_unsure", "engine e0: unsure: events were lost"),
        ("engine_failing", "engine e1: five requests in a row failed"),
        ("index_over", "the index takes more than `index_bytes`"),
        ("index_coarse", "group g: one in 4 of its keys is kept, to stay in `index_bytes`"),
        ("overlay_full", "there is no room for what requests in flight will have cached"),
        ("store_away", "the store is away: SQLite: database is locked"),
        (
            "store_foreign",
            "the store holds the secret of another cluster: agents follow one of the two",
        ),
    ]
    assert set(start.codes()) <= set(CODES)


def test_engines_without_events_are_ready_and_said_to_be(start: Start) -> None:
    start.cluster.assign([engine(A, events="")])
    start.cluster.observe_away(A, "")
    assert (start.readiness.reasons(), start.codes()) == ([], ["no_events"])


def test_shutting_down_is_the_only_reason_that_counts(start: Start) -> None:
    start.cell.service.draining = True
    assert start.readiness.reasons() == ["shutting down"]


def test_a_cluster_that_cannot_be_read_degrades(start: Start) -> None:
    class Resources(ResourceFolder):
        away = "cannot connect"

    resources = Resources(Path("none"), start.cell.service.decider.rules, lambda _: None)
    readiness = Readiness(
        service=start.cell.service,
        cap=start.cap,
        numbering=start.numbering,
        pulse=start.pulse,
        resources=resources,
    )
    assert ("kubernetes_away", "the cluster cannot be read: cannot connect") in [
        tuple(reason) for reason in readiness.degraded()
    ]
