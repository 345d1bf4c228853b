"""What the agent says of a load is what the coordinator hears; old agents may leave things out."""

import pytest

from agent import wire as agent_wire
from agent.signals import Load, Observed
from coordinator import wire
from coordinator.cluster import Load as Heard
from lineside.ids import EngineId
from lineside.v1 import agents_pb2 as pb

A = EngineId("a")


@pytest.mark.parametrize("asleep", [None, False, True])
def test_a_load_arrives_as_it_was_observed(asleep: bool | None) -> None:
    load = Load(waiting=1, running=0, kv_cache_usage=0.5, asleep=asleep, missing=("preemptions",))
    sent = agent_wire.load(A, Observed(load, 10.0, 1_700_000_000.0), now=10.25)
    expected = Heard(1, 0, 0.5, asleep=asleep, missing=("preemptions",))
    assert wire.decode(pb.AgentMessage.FromString(sent.SerializeToString())) == wire.EngineLoad(
        A, expected, 0.25
    )
