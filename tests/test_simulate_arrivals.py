"""Chats at known times: reproducible, in order, and shared as their workload says."""

from collections import Counter

import pytest

from simulate.arrivals import (
    WORKLOADS,
    Arrival,
    Shape,
    agentic,
    multi_turn,
    shared_prefix,
    unrelated,
)

SHAPE = Shape(engines=3, rate_per_s=5.0, seconds=30.0, seed=5)


def contents(arrival: Arrival) -> list[str]:
    return [message["content"] for message in arrival.body["messages"]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_give_equal_chats_in_the_order_of_time_at_the_rate(name: str) -> None:
    make = WORKLOADS[name]
    arrivals = make(SHAPE)
    assert arrivals == make(SHAPE)
    assert arrivals != make(Shape(3, 5.0, 30.0, seed=6))
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 30
    assert 0.7 * 150 < len(arrivals) < 1.3 * 150


def test_shared_prefixes_are_eight_an_engine_and_questions_differ() -> None:
    arrivals = shared_prefix(SHAPE, prefix_tokens=50)
    prefixes, questions = zip(*map(contents, arrivals), strict=True)
    assert len(set(prefixes)) == 24
    assert len(set(questions)) == len(arrivals)


def test_unrelated_chats_share_nothing() -> None:
    arrivals = unrelated(SHAPE, 20, 40)
    assert len({contents(arrival)[0] for arrival in arrivals}) == len(arrivals)


def test_a_later_turn_begins_with_the_whole_of_the_earlier_one() -> None:
    seen = [tuple(contents(arrival)) for arrival in multi_turn(SHAPE, opening_tokens=40)]
    late = [chat for chat in seen if len(chat) == 2 + 2 * 5]
    assert late
    known = set(seen)
    complete = [chat for chat in late if chat[:2] in known]
    assert complete
    assert all(chat[:-2] in known for chat in complete)


def test_the_calls_of_a_step_share_all_but_the_question_and_come_together() -> None:
    arrivals = agentic(SHAPE, context_tokens=40, tools_tokens=20)
    steps: dict[tuple[str, ...], list[float]] = {}
    for arrival in arrivals:
        steps.setdefault(tuple(contents(arrival)[:-1]), []).append(arrival.at_s)
    sizes = Counter(map(len, steps.values()))
    assert sizes[6] >= 0.9 * len(steps)
    assert max(max(times) - min(times) for times in steps.values()) <= 0.03
    assert len({step[0] for step in steps}) == 1
