"""Several coordinators' cores as one strategy of a replay."""

import random

import pytest

from cli.virtual_coordinators import Coordinators
from cli.virtual_router import VirtualRouter
from simulate.arrivals import Shape, agentic, traced
from simulate.play import play
from simulate.traces import BLOCK_TOKENS, TraceRequest
from simulate.virtual import VirtualEngine


def chat(number: int, at_s: float) -> TraceRequest:
    """Return a request that shares nothing, and takes an engine 0.9 s."""
    blocks = tuple(range(100 * number, 100 * number + 32))
    return TraceRequest(at_s, len(blocks) * BLOCK_TOKENS, 1, blocks)


@pytest.mark.parametrize("seed", range(8))
def test_they_hear_what_the_others_sent_within_a_tenth_of_a_second(seed: int) -> None:
    coordinators = Coordinators(3, 2, random.Random(seed))
    played = play([chat(0, 1.0), chat(1, 1.1)], [VirtualEngine(), VirtualEngine()], coordinators)
    assert sorted(map(str, played.engines)) == ["0", "1"]


def test_those_that_do_not_tell_send_to_the_same_engine_at_times() -> None:
    def engines_of(seed: int) -> set[int | None]:
        deaf = Coordinators(3, 2, random.Random(seed), tells=False)
        chats = [chat(0, 1.0), chat(1, 1.1)]
        return set(play(chats, [VirtualEngine(), VirtualEngine()], deaf).engines)

    assert {len(engines_of(seed)) for seed in range(20)} == {1, 2}


def test_one_decides_as_a_coordinator_alone() -> None:
    chats = traced(agentic(Shape(engines=4, rate_per_s=20.0, seconds=10.0)))
    one = Coordinators(1, 4, random.Random(5))
    alone = VirtualRouter(4, random.Random(random.Random(5).random()))
    as_one = play(chats, [VirtualEngine() for _ in range(4)], one)
    assert as_one.engines == play(chats, [VirtualEngine() for _ in range(4)], alone).engines
