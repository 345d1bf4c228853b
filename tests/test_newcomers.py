"""An engine that comes to others takes its share of what is cold, and what it holds is its own."""

import random

import pytest

from cli.virtual_router import VirtualRouter
from coordinator.load.newcomers import RAMP_S, TOGETHER_S, Newcomers
from lineside.ids import EngineId
from simulate.play import play
from simulate.traces import TraceRequest
from simulate.virtual import Job, VirtualEngine
from tests.scene import view

A, B, C = (view(name).engine for name in "abc")
NAMES = [engine.id for engine in (A, B, C)]


def established() -> Newcomers:
    newcomers = Newcomers()
    newcomers.welcome(A, [], 0.0)
    newcomers.welcome(B, [A.id], 1.0)
    return newcomers


def test_engines_that_come_together_are_no_newcomers() -> None:
    newcomers = established()
    for _ in range(50):
        newcomers.note(B, 2.0)
    assert newcomers.full() == frozenset()


def test_a_newcomer_is_full_after_its_share_until_others_had_theirs() -> None:
    newcomers, now = established(), 1.0 + TOGETHER_S
    newcomers.welcome(C, NAMES[:2], now)
    taken = 0
    for _ in range(300):
        engine = A if C.id in newcomers.full() else C
        newcomers.note(engine, now)
        taken += engine is C
    assert taken / 300 == pytest.approx(1.4 / 3, abs=0.02)
    newcomers.note(A, now + RAMP_S)
    assert newcomers.full() == frozenset()


def test_who_is_gone_is_forgotten() -> None:
    newcomers, now = established(), 1.0 + TOGETHER_S
    newcomers.welcome(C, NAMES[:2], now)
    newcomers.note(C, now)
    newcomers.note(C, now)
    assert newcomers.full() == {C.id}
    newcomers.keep({A.id, B.id})
    assert newcomers.full() == frozenset()


class Late(VirtualRouter):
    """A router of four engines, the last of which comes when the others have worked for a while."""

    def __init__(self, comes_at: float) -> None:
        super().__init__(4, random.Random(1))
        self.comes_at, self.here = comes_at, False
        self.sent: list[tuple[float, int | None]] = []
        self._late = EngineId("engine-4")
        self._cluster.observe_away(self._late, "not there yet")
        for engine in self._cluster.assigned()[:3]:
            self._service.decider.welcome(engine)

    def choose(self, job: Job, now: float) -> int | None:
        if not self.here and now >= self.comes_at:
            self.here = True
            self._cluster.observe_away(self._late, "")
            self._clock.now = now
            self._service.decider.welcome(self._cluster.assigned()[3])
        engine = super().choose(job, now)
        self.sent.append((now, engine))
        return engine


def conversations(rate: float, seconds: float) -> list[TraceRequest]:
    """Return turns of many conversations, each longer than the one before; half of them begin."""
    rng, at, blocks = random.Random(3), 0.0, iter(range(1, 10**9))
    histories: list[tuple[int, ...]] = []
    requests = []
    while at < seconds:
        at += rng.expovariate(rate)
        if len(histories) < 40 or rng.random() < 0.5:
            histories.append((0,))
        place = rng.randrange(max(0, len(histories) - 40), len(histories))
        histories[place] += tuple(next(blocks) for _ in range(rng.randint(2, 12)))
        prompt = histories[place]
        requests.append(TraceRequest(at, 512 * len(prompt), 100, prompt))
    return requests


def test_a_fourth_engine_takes_a_fair_share_of_a_warm_groups_traffic() -> None:
    router = Late(comes_at=120.0)
    play(conversations(rate=6.0, seconds=180.0), [VirtualEngine() for _ in range(4)], router)
    after = [engine for at, engine in router.sent if at >= 120]
    assert 0.15 <= after.count(3) / len(after) <= 0.35
    for start in range(0, len(after) - 60, 60):
        window = after[start : start + 60]
        assert window.count(3) / 60 <= 0.4
