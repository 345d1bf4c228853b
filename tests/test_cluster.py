"""What decisions see of engines, and for how long they see the same."""

from coordinator.cluster import VIEW_FOR_S, Cluster
from coordinator.load.predict import Learned
from lineside.ids import EngineId
from lineside.signals import Gpu, Load, NodeGpus
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


def test_engines_are_alike_by_the_card_of_their_node_as_far_as_that_is_sure() -> None:
    cluster, now = Cell(2).cluster, 100.0
    node = cluster.engines(MODEL)[0].node
    learned = Learned(20_000.0, 0.008)

    def hear(*names: str) -> set[tuple[str, str]]:
        gpus = tuple(Gpu(f"GPU-{n}", n, name) for n, name in enumerate(names))
        cluster.observe_gpus(node, NodeGpus(gpus), now)
        return {(e.card, learned.class_of(e)) for e in cluster.engines(MODEL)}

    unknown = {("", learned.class_of(cluster.engines(MODEL)[0]))}
    assert hear() == unknown
    assert hear("H200", "L4") == unknown  # which of them serves is not known
    alike = hear("H200", "H200")
    assert {card for card, _ in alike} == {"H200"} and alike.isdisjoint(unknown)
    assert hear() == alike  # a driver that is away changes no card
    assert all(view.engine.card == "H200" for view in cluster.views(MODEL, now))
