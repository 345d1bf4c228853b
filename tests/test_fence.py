"""Who may speak for a node."""

from coordinator.agents.fence import PAST_LIVES, Fence
from coordinator.holdings.feed import Stream
from lineside.ids import NodeId

N, M = NodeId("n"), NodeId("m")


def test_of_one_life_the_newer_connection_counts() -> None:
    fence = Fence()
    assert fence.admit(N, Stream("a", 2), False) == ""
    assert fence.admit(N, Stream("a", 2), True) == "connection 2 of node `n` is outdated"
    assert fence.admit(N, Stream("a", 1), False) == "connection 1 of node `n` is outdated"
    assert fence.admit(N, Stream("a", 3), True) == ""
    assert fence.admit(M, Stream("a", 1), False) == ""


def test_a_newer_life_replaces_an_older_one_for_as_long_as_it_is_there() -> None:
    fence = Fence()
    fence.admit(N, Stream("old", 7), False)
    assert fence.admit(N, Stream("new", 1), True) == ""
    refused = fence.admit(N, Stream("old", 8), True)
    assert refused.startswith("a newer agent of node `n` is connected")
    assert fence.admit(N, Stream("new", 2), True) == ""
    assert fence.admit(N, Stream("old", 9), False) == ""  # the newer one is gone
    assert fence.admit(N, Stream("new", 3), True) != ""


def test_what_is_remembered_is_bounded() -> None:
    fence = Fence()
    for life in range(PAST_LIVES + 2):
        assert fence.admit(N, Stream(str(life), 1), True) == ""
    assert len(fence._past[N]) == PAST_LIVES
    fence.keep({M})
    assert (fence._newest, fence._past) == ({}, {})
