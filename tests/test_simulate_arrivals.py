"""Chats at known times: reproducible, in order, and shared as their workload says."""

from collections import Counter

import pytest

from simulate.arrivals import (
    WORKLOADS,
    Arrival,
    Part,
    Shape,
    agentic,
    multi_turn,
    shared_prefix,
    traced,
    unrelated,
)
from simulate.traces import TraceRequest

SHAPE = Shape(engines=3, rate_per_s=8.0, seconds=30.0, seed=5)


def names(arrival: Arrival) -> tuple[str, ...]:
    return tuple(part.name for part in arrival.parts)


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_give_equal_chats_in_the_order_of_time_at_the_rate(name: str) -> None:
    make = WORKLOADS[name]
    arrivals = make(SHAPE)
    assert arrivals == make(SHAPE)
    assert arrivals != make(Shape(3, 8.0, 30.0, seed=6))
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 30
    assert 0.7 * 240 < len(arrivals) < 1.3 * 240


def test_equal_names_are_equal_words_and_no_others_are() -> None:
    parts = Part("system", "a", 30), Part("user", "b", 30)
    messages = Arrival(0.0, parts, 7).body()["messages"]
    again = Arrival(1.0, (parts[0], Part("user", "c", 30)), 7).body()["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0] == again[0]
    assert messages[1] != again[1]


def test_shared_prefixes_are_eight_an_engine_and_questions_differ() -> None:
    arrivals = shared_prefix(SHAPE)
    prefixes, questions = zip(*map(names, arrivals), strict=True)
    assert len(set(prefixes)) == 24
    assert len(set(questions)) == len(arrivals)


def test_unrelated_chats_share_nothing() -> None:
    arrivals = unrelated(SHAPE)
    assert len({names(arrival)[0] for arrival in arrivals}) == len(arrivals)


def test_a_later_turn_begins_with_the_whole_of_the_earlier_one() -> None:
    seen = [names(arrival) for arrival in multi_turn(SHAPE)]
    known = set(seen)
    complete = [chat for chat in seen if len(chat) == 2 + 2 * 5 and chat[:2] in known]
    assert complete
    assert all(chat[:-2] in known for chat in complete)


def test_the_calls_of_a_step_share_all_but_the_question_and_come_together() -> None:
    steps: dict[tuple[str, ...], list[float]] = {}
    for arrival in agentic(SHAPE):
        steps.setdefault(names(arrival)[:-1], []).append(arrival.at_s)
    sizes = Counter(map(len, steps.values()))
    assert sizes[6] >= 0.9 * len(steps)
    assert max(max(times) - min(times) for times in steps.values()) <= 0.03
    assert len({step[0] for step in steps}) == 1


def test_as_a_trace_chats_share_the_blocks_before_the_first_word_that_differs() -> None:
    prefix, longer = Part("system", "a", 1200), Part("user", "b", 900)
    arrivals = [
        Arrival(0.0, (prefix, longer), 7),
        Arrival(1.0, (prefix, Part("user", "c", 100)), 7),
        Arrival(2.0, (prefix, longer), 7),
        Arrival(3.0, (prefix, longer, Part("assistant", "d", 100)), 7),
    ]
    assert traced(arrivals) == [
        TraceRequest(0.0, 2100, 7, (0, 1, 2, 3, 4)),
        TraceRequest(1.0, 1300, 7, (0, 1, 5)),
        TraceRequest(2.0, 2100, 7, (0, 1, 2, 3, 4)),
        TraceRequest(3.0, 2200, 7, (0, 1, 2, 3, 6)),
    ]
