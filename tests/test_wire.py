"""What the agent says is what the coordinator hears, in as few messages as may be."""

import pytest

from agent import wire as agent_wire
from agent.signals import Observed
from coordinator.agents import wire
from lineside.digest import (
    MAX_DELTAS,
    MAX_KEYS,
    MAX_REPORTS,
    Delta,
    DeltaReader,
    MalformedDigest,
    SnapshotChunk,
)
from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.signals import Events, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb

A, B = EngineId("a"), EngineId("b")


def at(value: object) -> Observed:  # type: ignore[type-arg]
    return Observed(value, 10.0, 1_700_000_000.0)


def delta(engine: EngineId = A, keys: int = 1) -> Delta:
    held = [(BlockKey(key), Medium.GPU) for key in range(keys)]
    return Delta(engine, Generation("g"), 1, held, [], keys, 0)


def heard(messages: list[pb.AgentMessage]) -> list[list[wire.Message]]:
    reader = DeltaReader()
    read = [pb.AgentMessage.FromString(message.SerializeToString()) for message in messages]
    return [wire.decode(message, reader) for message in read]


@pytest.mark.parametrize("asleep", [None, False, True])
def test_a_load_arrives_as_it_was_observed(asleep: bool | None) -> None:
    updates = agent_wire.Updates()
    seen = {"waiting": 1, "running": 0, "kv_cache_usage": 0.5, "asleep": asleep}
    updates.load(A, at(Load(**seen, missing=("preemptions",))), now=10.25)
    load = Load(**seen, missing=("preemptions",))
    assert heard(updates.take()) == [[wire.EngineLoad(A, load, 0.25)]]


def test_what_is_due_at_once_is_one_message() -> None:
    updates = agent_wire.Updates()
    updates.delta(delta(A))
    updates.delta(delta(B))
    updates.gpus(at(NodeGpus(unavailable="none here")), now=10.0)
    updates.status(A, at(Status(Events.LIVE)), now=10.0)
    assert heard(updates.take()) == [
        [
            wire.EngineStatus(A, Status(Events.LIVE), 0.0),
            wire.NodeGpu(NodeGpus(unavailable="none here"), 0.0),
            delta(A),
            delta(B),
        ]
    ]
    assert updates.take() == []


def test_a_snapshot_comes_after_the_deltas_before_it() -> None:
    updates = agent_wire.Updates()
    chunk = SnapshotChunk(
        engine=A,
        generation=Generation("g"),
        digest_seq=2,
        chunk=0,
        last=True,
        keys=[],
        count=0,
        checksum=0,
        stride=4,
        media=1,
    )
    updates.delta(delta())
    updates.snapshot(chunk)
    updates.delta(delta())
    assert heard(updates.take()) == [[delta()], [chunk], [delta()]]


@pytest.mark.parametrize(
    ("deltas", "sizes"),
    [
        pytest.param([delta()] * (MAX_DELTAS + 1), [MAX_DELTAS, 1], id="by their number"),
        pytest.param([delta(keys=MAX_KEYS), delta(B)], [1, 1], id="by their keys"),
        pytest.param([delta(keys=MAX_KEYS - 1), delta(B)], [2], id="full to the last key"),
    ],
)
def test_messages_hold_so_many_deltas(deltas: list[Delta], sizes: list[int]) -> None:
    updates = agent_wire.Updates()
    for each in deltas:
        updates.delta(each)
    messages = heard(updates.take())
    assert [len(message) for message in messages] == sizes
    assert [each for message in messages for each in message] == deltas


def test_messages_hold_so_many_reports() -> None:
    updates = agent_wire.Updates()
    for _ in range(MAX_REPORTS + 1):
        updates.status(A, at(Status(Events.LIVE)), now=10.0)
        updates.load(A, at(Load()), now=10.0)
    assert [len(message) for message in heard(updates.take())] == [2 * MAX_REPORTS, 2]


def test_more_reports_than_allowed_are_refused_by_name() -> None:
    many = pb.Update(statuses=[pb.EngineStatus()] * (MAX_REPORTS + 1))
    with pytest.raises(MalformedDigest, match="more than 512 reports of a kind"):
        heard([pb.AgentMessage(update=many)])
