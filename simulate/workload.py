"""Chats that share prefixes, for the demo and for tests: who asks what, in which order. Pure.

A group is a long system prompt; its conversations have several turns, each of which carries the
real answers to the turns before. Whoever sends the chats takes them with `next` and hands the
answers back; nothing here waits or knows a socket. Equal seeds and answers give equal chats.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]

TOKENS_PER_SENTENCE = 11
"""With the shipped tokenizer, in which nearly every word below is one token."""


def _words(text: str) -> list[str]:
    return text.split()


_NOUNS = _words(
    "object class value method name function type statement argument string instance key exception "
    "list expression sequence module character code pattern version clause dictionary item "
    "variable block default definition result namespace reference number parameter target format "
    "keyword literal tuple mapping operator section attribute context implementation line "
    "descriptor comparison syntax execution index identifier operation length command frame range"
)
_ADJECTIVES = _words(
    "same new first following given current local global empty special single mutable numeric "
    "standard equivalent positional custom"
)
_VERBS = _words("returns raises defines contains has uses")
_PREPOSITIONS = _words("in of for with from within before under")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much traffic, and of what shape. Tokens are approximate."""

    groups: int = 12
    conversations_per_group: int = 4
    turns: int = 4
    prefix_tokens: int = 4000
    question_tokens: int = 40
    answer_tokens: int = 48


@dataclass(frozen=True, slots=True)
class Turn:
    """One chat to send; `body` lacks only the model."""

    group: int
    conversation: int
    number: int
    body: dict[str, Any]


@dataclass(slots=True)
class _Conversation:
    group: int
    number: int
    messages: Messages
    dice: random.Random
    turns: int = 0
    busy: bool = False


class Workload:
    """The chats of one run. `round` varies the conversations and leaves the groups as they are."""

    def __init__(self, seed: int = 0, sizes: Sizes | None = None, round: int = 0) -> None:
        self.sizes = sizes or Sizes()
        dice = random.Random(f"{seed} {round} order")
        prefixes = [
            prose(random.Random(f"{seed} group {group}"), self.sizes.prefix_tokens)
            for group in range(self.sizes.groups)
        ]
        self._conversations = [
            _Conversation(
                group,
                number,
                [{"role": "system", "content": prefix}],
                random.Random(f"{seed} {round} {group} {number}"),
            )
            for group, prefix in enumerate(prefixes)
            for number in range(self.sizes.conversations_per_group)
        ]
        order = self._conversations * self.sizes.turns
        dice.shuffle(order)
        self._order = deque(order)

    @property
    def total(self) -> int:
        """Chats of the whole run, if none fails."""
        return len(self._conversations) * self.sizes.turns

    @property
    def left(self) -> int:
        """Chats that were not taken yet."""
        return len(self._order)

    def next(self) -> Turn | None:
        """Take the next chat whose earlier turns are answered; `None` if none is, or none is left.

        The order is drawn beforehand: it depends on the answers' timing only where a conversation's
        turn comes up while its last one is still being answered.
        """
        for place, conversation in enumerate(self._order):
            if not conversation.busy:
                del self._order[place]
                return self._ask(conversation)
        return None

    def _ask(self, conversation: _Conversation) -> Turn:
        conversation.busy = True
        question = prose(conversation.dice, self.sizes.question_tokens)
        conversation.messages.append({"role": "user", "content": question})
        conversation.turns += 1
        body = {
            "messages": list(conversation.messages),
            "max_tokens": self.sizes.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return Turn(conversation.group, conversation.number, conversation.turns - 1, body)

    def answered(self, turn: Turn, text: str) -> None:
        """Take the answer to a chat; the conversation goes on from it."""
        conversation = self._of(turn)
        conversation.messages.append({"role": "assistant", "content": text})
        conversation.busy = False

    def failed(self, turn: Turn) -> None:
        """Give up a conversation that got no answer: its later turns are left out."""
        conversation = self._of(turn)
        self._order = deque(other for other in self._order if other is not conversation)

    def _of(self, turn: Turn) -> _Conversation:
        place = turn.group * self.sizes.conversations_per_group + turn.conversation
        return self._conversations[place]


def prose(dice: random.Random, tokens: int) -> str:
    """Return whole sentences of about that many tokens."""
    return " ".join(_sentence(dice) for _ in range(max(1, round(tokens / TOKENS_PER_SENTENCE))))


def _sentence(dice: random.Random) -> str:
    subject, verb = f"{dice.choice(_ADJECTIVES)} {dice.choice(_NOUNS)}", dice.choice(_VERBS)
    place = f"{dice.choice(_PREPOSITIONS)} the {dice.choice(_ADJECTIVES)} {dice.choice(_NOUNS)}"
    return f"The {subject} {verb} the {dice.choice(_NOUNS)} {place}."
