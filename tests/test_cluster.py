"""What decisions see of engines, and for how long they see the same."""

from coordinator.cluster import VIEW_FOR_S, Cluster
from lineside.ids import EngineId
from lineside.signals import Load
from tests.cells import Cell

A, B = EngineId("e0"), EngineId("e1")
MODEL = "m"


def _loads(cluster: Cluster, now: float) -> list[int | None]:
    views = cluster.views(MODEL, now)
    return [view.load.running if view.load else None for view in views]


def test_a_load_makes_no_views_anew_but_is_seen_when_they_are_due() -> None:
    cluster, now = Cell(2).cluster, 100.0
    before = cluster.views(MODEL, now)
    cluster.observe_load(A, Load(running=3), now)
    assert cluster.views(MODEL, now + VIEW_FOR_S / 2) is before
    shown = {view.engine.id: view.load for view in cluster.snapshot(now).engines}
    assert shown[A] == Load(running=3)
    assert _loads(cluster, now + 1.1 * VIEW_FOR_S) == [3, None]


def test_anything_else_that_is_heard_is_seen_at_once() -> None:
    cluster, now = Cell(2).cluster, 100.0
    before = cluster.views(MODEL, now)
    cluster.observe_failing(B, "status 500")
    after = cluster.views(MODEL, now)
    assert after is not before
    assert [view.failing for view in after] == ["", "status 500"]
