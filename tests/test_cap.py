"""The index's cap: when agents are asked for fewer keys, which of them, and when for more again."""

from dataclasses import dataclass, field

from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.holdings.caches import Caches, GroupSize
from coordinator.holdings.cap import MAX_FACTOR, QUIET_S, SETTLE_S, Change, IndexCap, State
from lineside.ids import EngineId, GroupId, NodeId

G, H = GroupId("g"), GroupId("h")
LIMIT = 1000


@dataclass
class Given(Caches):
    """Indexes of any size; agents that follow at once, or not at all."""

    cluster: Cluster
    at_stride_4: dict[GroupId, int] = field(default_factory=dict)
    follows: bool = True

    def sizes(self) -> dict[GroupId, GroupSize]:
        strides = self.cluster.strides() if self.follows else dict.fromkeys((G, H), 4)
        return {
            group: GroupSize(size * 4 // strides[group], size * 4 // strides[group],
                             frozenset([strides[group]]) if size else frozenset())
            for group, size in self.at_stride_4.items()
        }  # fmt: skip


def cap(g: int = 0, h: int = 0, follows: bool = True) -> tuple[IndexCap, Given]:
    cluster = Cluster()
    cluster.assign([engine("a", G), engine("b", G), engine("c", H)])
    caches = Given(cluster, {G: g, H: h}, follows)
    return IndexCap(LIMIT, cluster, caches), caches


def engine(name: str, group: GroupId) -> Engine:
    return Engine(EngineId(name), f"http://{name}", name, group, (), NodeId("n"))


def test_nothing_is_asked_while_there_is_room() -> None:
    of, caches = cap(g=600)
    revision = caches.cluster.revision
    assert (of.look(0.0), of.state) == (None, State.WITHIN)
    assert caches.cluster.revision == revision


def test_near_the_cap_the_group_with_most_keys_is_made_coarser() -> None:
    of, caches = cap(g=100, h=700)
    assert (of.look(0.0), of.state) == (Change(H, 2), State.COARSE)
    assert caches.cluster.strides() == {G: 4, H: 8}
    assert [each.stride for each in caches.cluster.assigned()] == [4, 4, 8]
    assert of.look(1.0) is None
    assert of.shown() == {"limit_bytes": LIMIT, "state": "coarse", "factors": {H: 2}}


def test_discovery_does_not_undo_it() -> None:
    of, caches = cap(g=700)
    of.look(0.0)
    caches.cluster.assign([engine("a", G), engine("new", G), engine("c", H)])
    assert caches.cluster.strides() == {G: 8, H: 4}


def test_it_goes_on_until_there_is_room() -> None:
    of, caches = cap(g=6000)
    asked = [of.look(float(second)) for second in range(5)]
    assert asked == [Change(G, 2), Change(G, 4), Change(G, 8), Change(G, 16), None]
    assert caches.sizes()[G].bytes == 375
    assert of.state is State.COARSE


def test_agents_that_do_not_follow_get_time_and_the_state_is_named() -> None:
    of, _ = cap(g=2000, follows=False)
    assert (of.look(0.0), of.state) == (Change(G, 2), State.OVER)
    assert of.look(SETTLE_S - 1) is None
    assert of.look(SETTLE_S) == Change(G, 4)


def test_there_is_an_end_to_it() -> None:
    of, caches = cap(g=10**6)
    factors = [change.factor for second in range(20) if (change := of.look(float(second)))]
    assert factors[-1] == MAX_FACTOR
    assert of.state is State.OVER
    assert of.look(99.0) is None
    assert caches.cluster.strides()[G] == 4 * MAX_FACTOR


def test_a_smaller_cluster_is_asked_for_more_again_and_stays_there() -> None:
    of, caches = cap(g=700)
    of.look(0.0)
    caches.at_stride_4[G] = 480
    assert of.look(QUIET_S - 1) is None
    assert (of.look(QUIET_S), of.state) == (Change(G, 1), State.WITHIN)
    assert [of.look(QUIET_S + second) for second in range(1000)] == [None] * 1000
    assert of.factors == {}


def test_a_cluster_of_a_steady_size_is_not_asked_back_and_forth() -> None:
    for size in range(0, 3000, 50):
        of, _ = cap(g=size, h=100)
        changes = [change for second in range(600) if (change := of.look(float(second)))]
        factors = [change.factor for change in changes]
        assert factors == sorted(factors)


def test_a_group_that_left_is_forgotten() -> None:
    of, caches = cap(g=700)
    of.look(0.0)
    caches.at_stride_4 = {H: 10}
    of.look(1.0)
    assert (of.factors, of.state) == ({}, State.WITHIN)
