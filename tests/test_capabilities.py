"""What backends refuse is remembered, for a while."""

from coordinator.providers.capabilities import KEPT, KNOWN_S, Capabilities
from lineside.ids import EngineId

A, B = EngineId("a"), EngineId("b")


def test_a_backend_that_refuses_usage_is_not_asked_for_it_for_a_while() -> None:
    capabilities = Capabilities()
    assert capabilities.meters(A, 0.0)
    capabilities.refused_usage(A, 0.0)
    assert not capabilities.meters(A, KNOWN_S - 1)
    assert capabilities.meters(B, 0.0)
    assert capabilities.unmetered(1.0) == [A]
    assert capabilities.meters(A, KNOWN_S)
    assert capabilities.unmetered(KNOWN_S) == []


def test_what_is_remembered_is_bounded() -> None:
    capabilities = Capabilities()
    for number in range(KEPT + 1):
        capabilities.refused_usage(EngineId(str(number)), 0.0)
    assert capabilities.meters(EngineId("0"), 1.0)
    assert len(capabilities.unmetered(1.0)) == KEPT
