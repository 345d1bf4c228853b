"""The mixed run: what a few hundred requests of every kind ask, and what came of them.

Seeded, so that it can be sent again to other engines. Says nothing about who answers.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.captures import ids
from tests.vllm.model import ADAPTER, NAME

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GROUPS = 6
"""Common beginnings of each kind."""

TOGETHER = 0.15
"""Share of the requests that begin a round of several at once."""

TURNS = 4
WORDS = [
    "alpha",
    "import",
    "yield",
    "Zürich",
    "naïve",
    "東京",
    "e\u0301",
    "\U0001f682",
    "ﬁ",
    "0x1F",
]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up {name} & <more>",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]


@dataclass
class Ask:
    """One request."""

    kind: str
    path: str
    body: dict[str, Any]
    conversation: "Conversation | None" = None

    @property
    def scope(self) -> tuple[str | None, str | None]:
        """Adapter and salt."""
        model: str = self.body["model"]
        return model if model.startswith(ADAPTER) else None, self.body.get("cache_salt")

    @property
    def to_tokenize(self) -> dict[str, Any]:
        """The body that asks an engine for the prompt's token ids."""
        names = ("model", "messages", "tools", "prompt")
        return {name: self.body[name] for name in names if name in self.body}


@dataclass
class Conversation:
    """A chat that goes on with what the engine answered."""

    messages: list[dict[str, Any]]
    turns: int = 0
    is_open: bool = True

    def answered(self, text: str) -> None:
        """Take the engine's answer, and ask the next question."""
        self.turns += 1
        self.is_open = self.turns < TURNS
        asked = {"role": "user", "content": f"And what follows from {self.turns}?"}
        self.messages = [*self.messages, {"role": "assistant", "content": text}, asked]


@dataclass
class Mix:
    """Makes requests, round by round; those of a round have nothing in common."""

    seed: int
    _conversations: list[Conversation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._serial = 0

    def rounds(self, count: int) -> Iterator[list[Ask]]:
        """Yield rounds of requests, `count` in all. Answers must be taken before the next round."""
        while count > 0:
            size = min(count, 3 if self._dice.random() < TOGETHER else 1)
            kinds = self._dice.sample(list(_KINDS), size, counts=list(_KINDS.values()))
            if len(set(kinds)) < size:
                continue
            count -= size
            yield [self._ask(kind) for kind in kinds]

    def _ask(self, kind: str) -> Ask:
        self._serial += 1
        made: Ask = getattr(self, f"_{kind}")(self._dice.randrange(GROUPS))
        made.body |= {
            "max_tokens": self._dice.choice([1, 4, 24, 40]),
            "temperature": 0,
            "ignore_eos": True,
        }
        if self._dice.random() < 0.4:
            made.body |= {"stream": True}
            if self._dice.random() < 0.5:
                made.body |= {"stream_options": {"include_usage": True}}
        return made

    def _chat(self, group: int, about: str = "chat", **more: Any) -> Ask:
        messages = [
            {"role": "system", "content": _text(f"{about} {group}", 40 + 12 * group)},
            {"role": "user", "content": f"Question {self._serial}?"},
        ]
        return Ask("chat", CHAT, {"model": NAME, "messages": messages, **more})

    def _tools(self, group: int) -> Ask:
        made = self._chat(group, "tools", tools=TOOLS)
        if group % 2:
            call = {"name": "weather", "arguments": json.dumps({"place": f"town {group}"})}
            made.body["messages"] += [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "call-1", "content": _text(f"result {group}", 30)},
            ]
        return Ask("tools", CHAT, made.body)

    def _turn(self, group: int) -> Ask:
        is_open = [each for each in self._conversations if each.is_open]
        if len(is_open) < 3:
            began = Conversation(self._chat(group, "turn").body["messages"])
            self._conversations.append(began)
            is_open.append(began)
        chosen = self._dice.choice(is_open)
        body = {"model": NAME, "messages": chosen.messages}
        return Ask("turn", CHAT, body, chosen)

    def _text(self, group: int) -> Ask:
        prompt = f"{_text(f'text {group}', 60 + 10 * group)} {self._serial}"
        return Ask("text", COMPLETIONS, {"model": NAME, "prompt": prompt})

    def _ids(self, group: int) -> Ask:
        prompt = list(ids(group, 96 + 64 * group))
        if self._dice.random() < 0.7:  # the others end where a block does
            prompt += ids(1000 + self._serial, self._dice.randrange(1, 60))
        return Ask("ids", COMPLETIONS, {"model": NAME, "prompt": prompt})

    def _cold(self, group: int) -> Ask:
        prompt = list(ids(5000 + self._serial, 300 + 60 * group))
        return Ask("cold", COMPLETIONS, {"model": NAME, "prompt": prompt})

    def _salted(self, group: int) -> Ask:
        made = self._ids(group)
        made.body["cache_salt"] = f"tenant {group % 2}"
        return Ask("salted", COMPLETIONS, made.body)

    def _adapter(self, group: int) -> Ask:
        made = self._chat(group) if group % 2 else self._ids(group)
        made.body["model"] = ADAPTER
        return Ask("adapter", made.path, made.body)


_KINDS = {
    "chat": 20,
    "tools": 14,
    "turn": 24,
    "text": 12,
    "ids": 14,
    "cold": 8,
    "salted": 4,
    "adapter": 4,
}
"""Of a hundred requests, so many."""


def _text(about: str, words: int) -> str:
    dice = random.Random(about)
    return f"About {about}: " + " ".join(dice.choices(WORDS, k=words))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of one request."""

    kind: str
    engine: str
    alone: bool
    """Nothing else was under way."""
    predicted: int | None
    speculative: int
    reported: int | None
    prompt_tokens: int | None
    """As we counted them."""
    counted: int | None
    """As the engine did."""
    tokens: str
    evicted: int
    """Blocks of its prompt that left the cache between decision and answer."""
    lost: int
    """Blocks of its prompt that had left the cache at any time before its answer."""

    @property
    def beyond(self) -> int | None:
        if self.predicted is None or self.reported is None:
            return None
        return self.reported - self.predicted


def table(seen: list[Seen], bound: int) -> tuple[str, Mapping[str, Any]]:
    """Return the distribution of reported minus predicted, for people and for programs."""
    quiet = [each for each in seen if not each.evicted]
    columns = sorted({each.beyond for each in seen}, key=lambda beyond: (beyond is None, beyond))
    rows = {kind: Counter(e.beyond for e in quiet if e.kind == kind) for kind in _KINDS}
    rows["all"] = Counter(each.beyond for each in quiet)
    rows["evicted between"] = Counter(each.beyond for each in seen if each.evicted)
    head = f"{'reported - predicted':22}" + "".join(f"{c!s:>6}" for c in columns) + "   sum"
    lines = [head] + [
        f"{name:22}" + "".join(f"{row[c] or '':>6}" for c in columns) + f"{row.total():6}"
        for name, row in rows.items()
    ]
    lines.append(f"allowed: 0 to {bound - 1}")
    told = {
        "bound": bound,
        "requests": len(seen),
        "distribution": {
            name: {str(beyond): count for beyond, count in sorted(row.items(), key=str)}
            for name, row in rows.items()
        },
        "predicted_tokens": sum(each.predicted or 0 for each in seen),
        "reported_tokens": sum(each.reported or 0 for each in seen),
        "prompt_tokens": sum(each.counted or 0 for each in seen),
        "with_hits": sum(bool(each.reported) for each in seen),
        "by_engine": dict(Counter(each.engine for each in seen)),
        "together": sum(not each.alone for each in seen),
    }
    return "\n".join(lines), told
