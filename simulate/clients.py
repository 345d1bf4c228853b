"""What clients that wait for their answers ask, one chat after the other. Pure.

As with `simulate.arrivals`, the answers in a conversation's history are invented here: every router
is asked the same. Each client has a number, and its own dice; what they share is by the seed.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from simulate.workload import Messages, prose

Chats = Iterator[dict[str, Any]]
"""Without end; each body lacks only the model."""

ANSWER_TOKENS = 32


def shared_prefix(
    seed: int, client: int, prefixes: int = 24, prefix_tokens: int = 4000, question_tokens: int = 80
) -> Chats:
    """Ask single questions, each after one of a set of long prefixes that all clients share."""
    dice = random.Random(f"{seed} client {client}")
    texts: dict[int, str] = {}
    while True:
        number = dice.randrange(prefixes)
        if number not in texts:
            texts[number] = prose(random.Random(f"{seed} prefix {number}"), prefix_tokens)
        before = [_said("system", texts[number])]
        yield _asked(before, prose(dice, question_tokens))


def multi_turn(
    seed: int,
    client: int,
    turns: int = 8,
    system_tokens: int = 300,
    opening_tokens: int = 2000,
    question_tokens: int = 150,
) -> Chats:
    """Hold one conversation after the other, each over a document of its own.

    The first one is shorter, by chance, so that not all clients begin their next ones together.
    """
    system = prose(random.Random(f"{seed} system"), system_tokens)
    dice = random.Random(f"{seed} client {client}")
    count = dice.randint(1, turns)
    while True:
        messages = [_said("system", system)]
        for turn in range(count):
            asked = _asked(messages, prose(dice, question_tokens if turn else opening_tokens))
            yield asked
            answer = _said("assistant", prose(dice, ANSWER_TOKENS))
            messages = [*asked["messages"], answer]
        count = turns


CLIENTS: dict[str, Callable[[int, int], Chats]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
}


def _asked(before: Messages, question: str) -> dict[str, Any]:
    messages = [*before, _said("user", question)]
    return {
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
