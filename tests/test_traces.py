"""Traces: what is one, what is not, and what is made of them before a replay."""

import random

import pytest

from simulate.traces import (
    BadTrace,
    TraceRequest,
    overlaid,
    read_trace,
    scaled,
    spread_ticks,
)


def line(at: object = 0, tokens: object = 600, answer: object = 5, blocks: object = (0, 1)) -> str:
    blocks = list(blocks) if isinstance(blocks, tuple) else blocks
    said = {"timestamp": at, "input_length": tokens, "output_length": answer, "hash_ids": blocks}
    return str(said).replace("'", '"').replace("None", "null")


def test_requests_come_in_the_order_of_time() -> None:
    assert read_trace([line(3000), "", line(1000, 512, 0, (7,))]) == [
        TraceRequest(1.0, 512, 1, (7,)),
        TraceRequest(3.0, 600, 5, (0, 1)),
    ]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param("{", "line 1 is not JSON", id="no JSON"),
        pytest.param("[]", "line 1 is not an object", id="no object"),
        pytest.param(
            line(tokens=None),
            "line 1 needs numbers `timestamp` (ms), `input_length`, `output_length`",
            id="no length",
        ),
        pytest.param(
            line(at=-1),
            "line 1 needs numbers `timestamp` (ms), `input_length`, `output_length`",
            id="a time before the start",
        ),
        pytest.param(
            line(blocks="x"),
            "line 1 needs `hash_ids`: one number for each 512 tokens",
            id="no blocks",
        ),
        pytest.param(
            line(tokens=513, blocks=(1,)),
            "line 1: 1 blocks do not hold 513 tokens",
            id="too few blocks",
        ),
        pytest.param(
            line(tokens=0, blocks=()), "line 1: 0 blocks do not hold 0 tokens", id="no prompt"
        ),
    ],
)
def test_what_is_no_trace_says_where_and_why(said: str, why: str) -> None:
    with pytest.raises(BadTrace) as raised:
        read_trace([said])
    assert str(raised.value) == why


def at(*times: float) -> list[TraceRequest]:
    return [TraceRequest(time, 512, 1, (0,)) for time in times]


def test_requests_of_one_tick_are_spread_up_to_the_next() -> None:
    spread = [each.at_s for each in spread_ticks(at(0, 0, 0, 3, 3), random.Random(1))]
    assert spread == sorted(spread)
    assert [time < 3 for time in spread] == [True, True, True, False, False]
    assert len(set(spread)) == 5


def test_parts_are_laid_over_each_other_with_blocks_of_their_own() -> None:
    requests = [TraceRequest(0.0, 1024, 1, (0, 1)), TraceRequest(9.0, 1024, 1, (0, 1))]
    first, second = overlaid(requests, 2)
    assert first == requests[0]
    assert second.at_s == pytest.approx(4.5)
    assert second.blocks == (0, 3)


def test_one_part_is_the_trace_itself() -> None:
    assert overlaid(at(0, 1), 1) == at(0, 1)
    assert overlaid([], 4) == []


def test_a_trace_can_be_played_faster() -> None:
    assert scaled(at(0, 6), 2.0) == at(0, 3)
