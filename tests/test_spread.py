"""Where streams of requests go, through the service: bursts, unrelated prompts, one at a time."""

import random

import pytest
from msgspec.structs import replace

from coordinator.holdings.overlay import GRACE_S
from coordinator.limits import Usage
from coordinator.load.inflight import EMPTY
from coordinator.service import Routed
from lineside.ids import EngineId, TenantId
from tests.cells import REQUEST, Cell


async def test_a_burst_with_one_cold_prefix_lands_together() -> None:
    cell = Cell(3)
    prefix = cell.text(16_000)
    for _ in range(20):
        await cell.send(prefix + cell.text(50))
    assert sorted(cell.sent.values()) == [0, 0, 20]


async def test_a_prefix_is_computed_twice_when_that_is_quicker_than_waiting() -> None:
    cell = Cell(3)
    prefix = cell.text(2000)
    for _ in range(30):
        await cell.send(prefix + cell.text(50))
    assert min(cell.sent.values()) >= 5


@pytest.mark.parametrize("engines", [2, 3, 5])
async def test_unrelated_requests_at_once_are_spread(engines: int) -> None:
    cell = Cell(engines)
    for _ in range(50):
        await cell.send(cell.text(500))
        await cell.clock.advance(0.0002)
    assert max(cell.sent.values()) - min(cell.sent.values()) <= 2
    assert max(cell.sent.values()) / min(cell.sent.values()) <= 2


@pytest.mark.parametrize("pause_s", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("common", [0, 64, 1000])
async def test_sessions_one_after_another_are_spread(common: int, pause_s: float) -> None:
    """Each holds the same beginning and is otherwise a stranger; nothing is ever in flight."""
    cell = Cell(2)
    beginning = cell.text(common)
    for _ in range(448):
        prompt = beginning + cell.text(200)
        await cell.finish(await cell.send(prompt), prompt)
        await cell.pause(pause_s)
    assert 0.4 <= cell.sent["e0"] / 448 <= 0.6


async def test_sessions_stay_where_their_history_is() -> None:
    """One request at a time; ten conversations take turns, each turn adds to its history."""
    cell = Cell(2)
    beginning = cell.text(100)
    histories = [beginning + cell.text(1500) for _ in range(10)]
    where: list[set[str]] = [set() for _ in histories]
    for _ in range(20):
        for number, history in enumerate(histories):
            history += cell.text(60)
            routed = await cell.send(history)
            where[number].add(routed.target.id)
            await cell.finish(routed, history)
            await cell.pause(0.5)
    assert [len(engines) for engines in where] == [1] * 10
    assert min(cell.sent.values()) >= 60


async def test_one_long_conversation_alone_moves_rarely() -> None:
    cell = Cell(2)
    history, moves, before = cell.text(1500), 0, ""
    for _ in range(200):
        history += cell.text(60)
        routed = await cell.send(history)
        moves += bool(before) and routed.target.id != before
        before = routed.target.id
        await cell.finish(routed, history)
    assert moves <= 2


async def test_a_hundred_cold_requests_at_once_are_spread_evenly() -> None:
    cell = Cell(10)
    for _ in range(100):
        await cell.send(cell.text(500))
    assert 7 <= min(cell.sent.values()) <= max(cell.sent.values()) <= 13


async def test_with_reports_frozen_traffic_goes_on_and_stays_spread() -> None:
    """Agents say nothing for 30 s: caches are stale, then unknown; our own accounting remains."""
    cell, open_ = Cell(3), list[tuple[Routed, list[int]]]()
    for _ in range(150):
        prompt = cell.text(400)
        open_.append((await cell.send(prompt), prompt))
        await cell.clock.advance(0.2)
        if len(open_) > 4:
            await cell.finish(*open_.pop(0))
    views = cell.cluster.snapshot(cell.clock.now).engines
    ages = [view.heard_age_s or 0.0 for view in views]
    assert min(ages) == max(ages) == pytest.approx(30.0)
    assert max(cell.sent.values()) <= 1.5 * min(cell.sent.values())


@pytest.mark.parametrize("streams", [True, False])
async def test_400_requests_that_end_anywhere_leave_no_load_behind(streams: bool) -> None:
    cell, rng = Cell(3), random.Random(4)
    request = replace(REQUEST, stream=streams)
    open_: list[Routed] = []
    for _ in range(400):
        cell.tokens.prompt = cell.text(rng.choice([16, 500, 3000]))
        routed = await cell.service.route(request, TenantId("t"), "r")
        assert isinstance(routed, Routed)
        open_.append(routed)
        await cell.clock.advance(rng.uniform(0, 0.05))
        for other in rng.sample(open_, k=len(open_) // 3):
            if rng.random() < 0.5:
                cell.service.first_token(other)
            if rng.random() < 0.7:
                cell.service.aborted(other, Usage(partial=True))
                open_.remove(other)
    for routed in open_:
        cell.service.aborted(routed, Usage(partial=True))
    now = cell.clock.now
    assert [cell.service.inflight.queue(EngineId(name), now) for name in cell.sent] == [EMPTY] * 3
    await cell.clock.advance(GRACE_S)
    cell.service.expire()
    assert (cell.service.overlay.claims, cell.service.overlay.keys) == (0, 0)
