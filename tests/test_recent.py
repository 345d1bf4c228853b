"""The memory of recent work: what it holds, how it fades, and whom it forgets."""

import pytest

from coordinator.engines import Engine
from coordinator.load.recent import MEMORY, RecentWork
from lineside.ids import EngineId, GroupId, NodeId

A, B = EngineId("a"), EngineId("b")
G, H = GroupId("g"), GroupId("h")


def engine(name: EngineId, group: GroupId) -> Engine:
    return Engine(name, f"http://{name}", name, group, (), NodeId("n"))


def test_work_adds_up_by_group_and_engine() -> None:
    recent = RecentWork()
    recent.note(engine(A, G), 1.0)
    recent.note(engine(A, G), 2.0)
    recent.note(engine(A, H), 5.0)
    assert recent.seconds(engine(A, G)) == pytest.approx(3.0, rel=0.01)
    assert recent.seconds(engine(A, H)) == pytest.approx(5.0)
    assert recent.seconds(engine(B, G)) == 0.0


def test_it_fades_by_decisions_of_the_same_group() -> None:
    recent = RecentWork()
    recent.note(engine(A, G), 1.0)
    for _ in range(MEMORY):
        recent.note(engine(B, G), 0.0)
        recent.note(engine(B, H), 9.0)
    assert recent.seconds(engine(A, G)) == pytest.approx(0.37, abs=0.01)


def test_it_stays_exact_over_any_number_of_decisions() -> None:
    recent = RecentWork()
    for _ in range(240 * MEMORY):  # its weights are scaled back on the way
        recent.note(engine(A, G), 1.0)
    assert recent.seconds(engine(A, G)) == pytest.approx(MEMORY, rel=0.01)


def test_engines_that_left_or_changed_their_group_are_forgotten() -> None:
    recent = RecentWork()
    recent.note(engine(A, G), 1.0)
    recent.note(engine(B, G), 1.0)
    recent.keep({A: G, B: H})
    assert (recent.seconds(engine(A, G)) > 0, recent.seconds(engine(B, G))) == (True, 0.0)
    recent.keep({})
    assert recent._groups == {}
