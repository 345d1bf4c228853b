"""Chats at known times, for benches: what arrives when, whoever serves it. Pure.

The answers in a conversation's history are invented here, not taken from who answered: so every
router is sent the same prompts at the same times, however it does. Equal seeds give equal lists.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simulate.workload import Messages, prose


@dataclass(frozen=True, slots=True)
class Arrival:
    """One chat to send; `body` lacks only the model."""

    at_s: float
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How much arrives, for how long, for how many engines. Tokens are approximate."""

    engines: int
    rate_per_s: float
    """Chats a second, of all engines together."""
    seconds: float
    answer_tokens: int = 16
    seed: int = 0


def shared_prefix(
    shape: Shape, prefixes_per_engine: int = 8, prefix_tokens: int = 3000, question_tokens: int = 80
) -> list[Arrival]:
    """Return single questions, each after one of a set of long prefixes, all equally popular."""
    count = prefixes_per_engine * shape.engines
    prefixes = [prose(_dice(shape, f"prefix {n}"), prefix_tokens) for n in range(count)]
    dice = _dice(shape, "questions")
    return [
        _arrival(shape, at_s, _opening(dice.choice(prefixes)), prose(dice, question_tokens))
        for at_s in _times(shape, dice)
    ]


def unrelated(shape: Shape, least_tokens: int = 500, most_tokens: int = 4000) -> list[Arrival]:
    """Return chats that share nothing, of lengths between the two."""
    dice = _dice(shape, "unrelated")
    return [
        _arrival(shape, at_s, [], prose(dice, dice.randint(least_tokens, most_tokens)))
        for at_s in _times(shape, dice)
    ]


def multi_turn(
    shape: Shape,
    turns: int = 6,
    pause_s: float = 4.0,
    system_tokens: int = 300,
    opening_tokens: int = 1500,
    question_tokens: int = 150,
) -> list[Arrival]:
    """Return conversations that share a short system prompt; each begins with a document.

    Turns are about `pause_s` apart. Conversations also began before the start, so that the rate is
    the same all the time.
    """
    system = prose(_dice(shape, "system"), system_tokens)
    dice = _dice(shape, "conversations")
    arrivals = []
    for at_s in _beginnings(shape, dice, shape.rate_per_s / turns, turns * pause_s):
        messages = _opening(system)
        for turn in range(turns):
            question = prose(dice, question_tokens if turn else opening_tokens)
            arrivals.append(_arrival(shape, at_s, messages, question))
            answer = {"role": "assistant", "content": prose(dice, shape.answer_tokens)}
            messages = [*arrivals[-1].body["messages"], answer]
            at_s += pause_s * dice.uniform(0.5, 1.5)
    return _within(shape, arrivals)


def agentic(
    shape: Shape,
    steps: int = 4,
    calls: int = 6,
    pause_s: float = 2.0,
    burst_s: float = 0.03,
    tools_tokens: int = 1000,
    context_tokens: int = 3000,
    growth_tokens: int = 300,
    question_tokens: int = 60,
) -> list[Arrival]:
    """Return tasks of several steps, each a burst of calls over the task's context.

    All tasks share the description of the tools. A task's context is its own and grows by each
    step; the calls of a step come within `burst_s` and differ in their questions only.
    """
    tools = prose(_dice(shape, "tools"), tools_tokens)
    dice = _dice(shape, "tasks")
    arrivals = []
    for at_s in _beginnings(shape, dice, shape.rate_per_s / (steps * calls), steps * pause_s):
        messages = [*_opening(tools), _said("user", prose(dice, context_tokens))]
        for _ in range(steps):
            for _ in range(calls):
                moment_s = at_s + dice.uniform(0, burst_s)
                question = prose(dice, question_tokens)
                arrivals.append(_arrival(shape, moment_s, messages, question))
            messages = [
                *messages,
                _said("assistant", prose(dice, growth_tokens // 2)),
                _said("user", prose(dice, growth_tokens // 2)),
            ]
            at_s += pause_s * dice.uniform(0.5, 1.5)
    return _within(shape, arrivals)


WORKLOADS: dict[str, Callable[[Shape], list[Arrival]]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "agentic": agentic,
    "unrelated": unrelated,
}


def _times(shape: Shape, dice: random.Random) -> Iterator[float]:
    """Yield moments that know nothing of each other, at the shape's rate."""
    at_s = 0.0
    while (at_s := at_s + dice.expovariate(shape.rate_per_s)) < shape.seconds:
        yield at_s


def _beginnings(
    shape: Shape, dice: random.Random, rate_per_s: float, before_s: float
) -> Iterator[float]:
    """Yield when something long begins, one at a random moment of each period.

    Of few things, entirely random moments would make some runs much busier than others.
    """
    for number in range(int((shape.seconds + before_s) * rate_per_s)):
        yield (number + dice.random()) / rate_per_s - before_s


def _within(shape: Shape, arrivals: list[Arrival]) -> list[Arrival]:
    """Return what falls into the shape's time, in the order of time."""
    inside = [arrival for arrival in arrivals if 0 <= arrival.at_s < shape.seconds]
    return sorted(inside, key=lambda arrival: arrival.at_s)


def _arrival(shape: Shape, at_s: float, before: Messages, question: str) -> Arrival:
    body = {
        "messages": [*before, _said("user", question)],
        "max_tokens": shape.answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return Arrival(at_s, body)


def _opening(system: str) -> Messages:
    return [_said("system", system)]


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _dice(shape: Shape, what: str) -> random.Random:
    return random.Random(f"{shape.seed} {what}")
