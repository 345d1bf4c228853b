"""Messages of the release before, as they were sent, and of one after it that says more.

`make test-skew` with SKEW_CAPTURE=FILE writes such a capture; the file's name says of which
revision it is.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from agent import wire as agent_wire
from agent.assignment import Assigned, Scheme
from agent.stream import Stream
from coordinator.agents import wire
from lineside.digest import Delta, DeltaReader, SnapshotChunk, checksum
from lineside.ids import BlockKey, Medium
from lineside.v1 import agents_pb2 as pb
from tests.streams import FakeHub

CAPTURE = Path(__file__).parent / "cases" / "wire" / "agents-9d97e13.jsonl"

KEYS = 147
"""Block keys that the older agent held at the end of its capture."""

UNKNOWN = (
    b"\xc0\x3e\x07"  # field 1000: a number
    b"\xca\x3e\x05later"  # 1001: a text
    b"\xd1\x3e12345678"  # 1002: eight bytes
    b"\xdd\x3e1234"  # 1003: four bytes
)
"""What a later release may add to any message."""


def messages(way: str) -> list[Any]:
    lines = (json.loads(line) for line in CAPTURE.read_text().splitlines())
    kind = pb.AgentMessage if way == "up" else pb.CoordinatorMessage
    return [kind.FromString(base64.b64decode(each["b64"])) for each in lines if each["way"] == way]


def later(message: Any) -> Any:
    """Return a message as a later release would send it: every part says more."""
    made = type(message).FromString(message.SerializeToString())
    for part in list(parts(made)):
        part.MergeFromString(UNKNOWN)
    return type(message).FromString(made.SerializeToString())


def parts(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from parts(each)
    yield message


def said(all_of_them: list[Any]) -> list[Any]:
    """Return what a coordinator understands."""
    reader = DeltaReader()
    return [each for message in all_of_them for each in wire.decode(message, reader)]


def held(understood: list[Any]) -> dict[BlockKey, Medium]:
    """Rebuild an engine's holdings; every count and checksum on the way must be right."""
    keys: dict[BlockKey, Medium] = {}
    for each in understood:
        if isinstance(each, SnapshotChunk):
            keys |= each.keys
        elif isinstance(each, Delta):
            for key, medium in each.removed:
                assert keys.pop(key) == medium
            keys |= dict(each.added)
            assert (len(keys), checksum(keys.items())) == (each.count, each.checksum)
    return keys


def test_a_coordinator_understands_the_agent_of_the_release_before() -> None:
    first, *rest = messages("up")
    assert (first.hello.protocol_min, first.hello.protocol_max, first.hello.node) == (1, 1, "local")
    assert first.hello.secret == b""  # a field that it did not know
    understood = said(rest)
    assert len(held(understood)) == KEYS
    kinds = {type(each).__name__ for each in understood}
    assert kinds == {"SnapshotChunk", "Delta", "EngineStatus", "EngineLoad", "NodeGpu"}


def test_an_agent_understands_the_coordinator_of_the_release_before() -> None:
    hello, assignment, *rest = messages("down")
    scheme = agent_wire.scheme(hello.hello)
    assert isinstance(scheme, Scheme) and (scheme.unit, scheme.hash) == (16, "xxh3_64")
    assigned = agent_wire.assigned("c", assignment.assignment)
    assert isinstance(assigned, Assigned)
    (engine,) = assigned.engines
    assert engine.events.startswith("tcp://") and engine.stride == 4
    assert {message.WhichOneof("body") for message in rest} == {"resume", "acks"}


@pytest.mark.parametrize("way", ["up", "down"])
def test_every_message_of_a_capture_says_more_when_it_is_a_later_release_s(way: str) -> None:
    for message in messages(way):
        assert len(later(message).SerializeToString()) >= message.ByteSize() + len(UNKNOWN)


def test_what_a_later_agent_says_beyond_is_ignored() -> None:
    _, *rest = messages("up")
    assert said([later(message) for message in rest]) == said(rest)


def heard(all_of_them: list[Any]) -> tuple[list[Assigned], dict[Any, Any]]:
    """Return what an agent makes of a coordinator's words after its hello."""
    hub, acked = FakeHub(), {}
    stream = Stream(hub, "c", Scheme(16, "xxh3_64", b""), acked)
    for message in all_of_them:
        stream.hear(message, 0.0)
    return hub.words, acked


def test_what_a_later_coordinator_says_beyond_is_ignored() -> None:
    hello, *rest = messages("down")
    assert agent_wire.scheme(later(hello).hello) == agent_wire.scheme(hello.hello)
    words, acked = heard(rest)
    assert (len(words), len(acked)) == (1, 1)
    assert heard([later(message) for message in rest]) == (words, acked)


def test_a_message_of_a_kind_that_is_not_known_says_nothing() -> None:
    assert said([pb.AgentMessage.FromString(UNKNOWN)]) == []
    assert pb.CoordinatorMessage.FromString(UNKNOWN).WhichOneof("body") is None
