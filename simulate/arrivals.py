"""Chats at known times, for benches: what arrives when, whoever serves it. Pure.

The answers in a conversation's history are invented here, not taken from who answered: so every
router is sent the same prompts at the same times, however it does. Equal seeds give equal lists.
A chat is told by the parts of its prompt; their words are made when somebody asks for the body.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulate.traces import BLOCK_TOKENS, TraceRequest
from simulate.workload import prose


class Part(NamedTuple):
    """One message. Equal names are equal words."""

    role: str
    name: str
    tokens: int
    """Approximately."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One chat to send."""

    at_s: float
    parts: tuple[Part, ...]
    answer_tokens: int

    def body(self) -> dict[str, Any]:
        """Return the request, which lacks only the model."""
        return {
            "messages": [
                {"role": part.role, "content": prose(random.Random(part.name), part.tokens)}
                for part in self.parts
            ],
            "max_tokens": self.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


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
    dice = _dice(shape, "questions")
    count = prefixes_per_engine * shape.engines
    return [
        _arrival(
            shape,
            at_s,
            _part(shape, "system", f"prefix {dice.randrange(count)}", prefix_tokens),
            _part(shape, "user", f"question {number}", question_tokens),
        )
        for number, at_s in enumerate(_times(shape, dice))
    ]


def unrelated(shape: Shape, least_tokens: int = 500, most_tokens: int = 4000) -> list[Arrival]:
    """Return chats that share nothing, of lengths between the two."""
    dice = _dice(shape, "unrelated")
    return [
        _arrival(
            shape,
            at_s,
            _part(shape, "user", f"chat {number}", dice.randint(least_tokens, most_tokens)),
        )
        for number, at_s in enumerate(_times(shape, dice))
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
    dice = _dice(shape, "conversations")
    arrivals = []
    beginnings = _beginnings(shape, dice, shape.rate_per_s / turns, turns * pause_s)
    for number, began_s in enumerate(beginnings):
        at_s = began_s
        parts = [_part(shape, "system", "system", system_tokens)]
        for turn in range(turns):
            tokens = question_tokens if turn else opening_tokens
            parts.append(_part(shape, "user", f"question {number} {turn}", tokens))
            arrivals.append(_arrival(shape, at_s, *parts))
            name = f"answer {number} {turn}"
            parts.append(_part(shape, "assistant", name, shape.answer_tokens))
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
    dice = _dice(shape, "tasks")
    arrivals = []
    beginnings = _beginnings(shape, dice, shape.rate_per_s / (steps * calls), steps * pause_s)
    for task, began_s in enumerate(beginnings):
        at_s = began_s
        parts = [_part(shape, "system", "tools", tools_tokens)]
        parts.append(_part(shape, "user", f"context {task}", context_tokens))
        for step in range(steps):
            for call in range(calls):
                question = _part(shape, "user", f"call {task} {step} {call}", question_tokens)
                moment_s = at_s + dice.uniform(0, burst_s)
                arrivals.append(_arrival(shape, moment_s, *parts, question))
            parts.append(_part(shape, "assistant", f"thought {task} {step}", growth_tokens // 2))
            parts.append(_part(shape, "user", f"result {task} {step}", growth_tokens // 2))
            at_s += pause_s * dice.uniform(0.5, 1.5)
    return _within(shape, arrivals)


WORKLOADS: dict[str, Callable[[Shape], list[Arrival]]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "agentic": agentic,
    "unrelated": unrelated,
}


def traced(arrivals: Sequence[Arrival]) -> list[TraceRequest]:
    """Return the same as a trace, for replays in virtual time."""
    numbers: dict[tuple[tuple[str, ...], int], int] = {}
    requests = []
    for arrival in arrivals:
        total = sum(part.tokens for part in arrival.parts)
        blocks = []
        for end in range(BLOCK_TOKENS, total + BLOCK_TOKENS, BLOCK_TOKENS):
            known = _names_until(arrival.parts, end), min(end, total)
            blocks.append(numbers.setdefault(known, len(numbers)))
        requests.append(TraceRequest(arrival.at_s, total, arrival.answer_tokens, tuple(blocks)))
    return requests


def _names_until(parts: Sequence[Part], end: int) -> tuple[str, ...]:
    """Return the names of the parts that so many tokens reach into."""
    names, begin = [], 0
    for part in parts:
        if begin >= end:
            break
        names.append(part.name)
        begin += part.tokens
    return tuple(names)


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


def _arrival(shape: Shape, at_s: float, *parts: Part) -> Arrival:
    return Arrival(at_s, parts, shape.answer_tokens)


def _part(shape: Shape, role: str, name: str, tokens: int) -> Part:
    return Part(role, f"{shape.seed} {name}", tokens)


def _dice(shape: Shape, what: str) -> random.Random:
    return random.Random(f"{shape.seed} {what}")
