"""Random conversations with odd text, each as a client sends it and as a chat template gets it.

The second form is written out here, beside the first and without the product's code, so that an
oracle that knows templates and tokenizers alone can say what the first one's token ids must be.
A seed gives the same conversations everywhere.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

PIECES = (
    "The signal box at the junction was closed in 1987; the lever frame is now in a museum.",
    "def f(x, *, y=0):\n\t\treturn {'a': x ** 2, \"b\": [y] * 3}  # 3.14159\n\n\n",
    "Straße Zürich naïve façade Œuvre ﬁligree ½ № ™",
    "e\u0301te\u0301 n\u0303 u\u0308 Å\u212b \u1100\u1161\u11a8 가각힣 क्षत्रिय ไทยแลนด์",
    "東京駅から新幹線で二時間。漢字ひらがなカタカナ 中文字符，标点。",
    "Санкт-Петербург — Москва שלום עולם العربية ١٢٣",
    "\U0001f682\U0001f469\u200d\U0001f527\U0001f1e9\U0001f1ea\u2764\ufe0f\U0001f3f3\ufe0f\u200d\U0001f308",
    "\u00a0\u2003\u3000\u200b\u2028\x85\x1c \u1680\u202e\ufeff",
    "\x00\x01\x7f\x1b\ufffd\ue000\U000e0001\U0010ffff",
    "'s 't 're I'LL don’t WE'VE 'Sx 'dd",
    "0 12 345 6789 1234567890 1,234.5e-6 0x1F ²³ ٣",
    "{}()[]<>|=+*/\\_#@!?;:&%$^~` --- === ... »«“”",
    "<tool_response>\nx\n</tool_response> <think>\nwhy\n</think>\n\n so </think> <tool_call>",
)
LETTERS = "abcXYZ éß中文😀 \n\t.,0123456789'\"\\{}<|>_"
RUNS = (
    " ",
    "\n",
    "\t",
    "\r\n",
    " \n",
    "a",
    "ab",
    "=",
    "-",
    "0",
    "日",
    "😀",
    "\u0301",
    "<|",
    ".\u200d",
)


@dataclass(frozen=True)
class Conversation:
    """One request: what a client sends, and what a template is given of it."""

    body: dict[str, Any]
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    special: bool = False
    """Whether the tokenizer adds its own start and end tokens."""
    generate: bool = True
    continues: bool = False


def conversations(
    seed: int, count: int, marks: Sequence[str], *, tools: bool, parts: bool
) -> Iterator[Conversation]:
    """Yield random conversations; `marks` spell the tokenizer's special tokens.

    `parts`: whether the template takes content as a list of parts.
    """
    for number in range(count):
        yield _Writer(random.Random(f"{seed}/{number}"), marks, parts).write(tools)


class _Writer:
    def __init__(self, rng: random.Random, marks: Sequence[str], parts: bool) -> None:
        self._rng = rng
        self._marks = marks
        self._parts = parts

    def write(self, tools: bool) -> Conversation:
        rng = self._rng
        sent: list[Message] = []
        given: list[Message] = []
        offered = self._tools() if tools and rng.random() < 0.5 else None
        if rng.random() < 0.5:
            self._say("system", sent, given)
        for _ in range(rng.randrange(1, 6)):
            self._say("user", sent, given)
            if rng.random() < 0.75:
                self._answer(sent, given, offered is not None)
        body: dict[str, Any] = {"model": "m", "messages": sent}
        if offered is not None:
            body["tools"] = [tool for tool, _ in offered]
        generate, continues = self._ending(body, given)
        return Conversation(
            body,
            given,
            None if offered is None else [printed for _, printed in offered],
            self._variables(body),
            self._special(body),
            generate,
            continues,
        )

    def text(self) -> str:
        """Return odd text, perhaps none."""
        rng, made = self._rng, []
        for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
            kind = rng.random()
            if kind < 0.4:
                piece = rng.choice(PIECES)
                start = rng.randrange(len(piece))
                made.append(piece[start : start + rng.randrange(1, 60)])
            elif kind < 0.65:
                made.append("".join(rng.choices(LETTERS, k=rng.randrange(1, 30))))
            elif kind < 0.75:
                made.append("".join(self._character() for _ in range(rng.randrange(1, 12))))
            elif kind < 0.85 and self._marks:
                mark = rng.choice(self._marks)
                made.append(mark if rng.random() < 0.7 else mark[: rng.randrange(len(mark))])
            else:
                made.append(rng.choice(RUNS) * rng.randrange(1, rng.choice((4, 40, 200))))
        return "".join(made)

    def _character(self) -> str:
        """Return any character of Unicode; JSON in UTF-8 has no half surrogate pairs."""
        number = self._rng.randrange(0x110000 - 0x800)
        return chr(number if number < 0xD800 else number + 0x800)

    def _say(self, role: str, sent: list[Message], given: list[Message]) -> None:
        content, templated = self._content(role)
        sent.append({"role": role, "content": content})
        given.append({"role": role, "content": templated})

    def _content(self, role: str) -> tuple[Any, Any]:
        """Return a message's content as sent, and as the template gets it."""
        if self._rng.random() < 0.7:
            text = self.text()
            return text, [{"type": "text", "text": text}] if self._parts else text
        texts = [self.text() for _ in range(self._rng.randrange(1, 4))]
        sent = [self._part(text, role) for text in texts]
        if self._parts:
            return sent, [{"type": "text", "text": text} for text in texts]
        return sent, _lines(texts)

    def _part(self, text: str, role: str) -> dict[str, str]:
        kind = self._rng.choice(("text", "text", "text", "refusal"))
        kind = kind if role == "assistant" else "text"  # an engine takes no refusal from others
        return {"type": kind, kind: text}

    def _answer(self, sent: list[Message], given: list[Message], calls: bool) -> None:
        rng = self._rng
        self._say("assistant", sent, given)
        if rng.random() < 0.3:
            thought = self.text()
            sent[-1][rng.choice(("reasoning", "reasoning_content"))] = thought
            given[-1] |= {"reasoning": thought, "reasoning_content": thought}
        if not calls or rng.random() < 0.4:
            return
        if rng.random() < 0.5:
            sent[-1]["content"] = None
            given[-1]["content"] = [] if self._parts else ""
        made = [self._call(number) for number in range(rng.randrange(1, 4))]
        sent[-1]["tool_calls"] = [call for call, _ in made]
        given[-1]["tool_calls"] = [call for _, call in made]
        for call, _ in made:
            texts = [self.text() for _ in range(rng.choice((1, 1, 2)))]
            split = [{"type": "text", "text": text} for text in texts]
            told = {"role": "tool", "tool_call_id": call["id"]}
            sent.append(told | {"content": texts[0] if len(texts) == 1 else split})
            # Results are text in both forms; what is empty counts where content is parts.
            lines = "\n".join(texts) if self._parts else _lines(texts)
            given.append(told | {"content": lines})
        if rng.random() < 0.6:
            self._say("assistant", sent, given)

    def _call(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        arguments: Any = {
            self.text()[:20] or "k": self._rng.choice((self.text(), 7, 1.5, None, [True, "ß"]))
            for _ in range(self._rng.randrange(4))
        }
        spelt = json.dumps(arguments, ensure_ascii=self._rng.random() < 0.5)
        if self._rng.random() < 0.05:
            spelt, arguments = self._rng.choice((("", {}), ("{not JSON", {}), ("[1]", {})))
        call = {"id": f"call_{number}", "type": "function"}
        name = self._rng.choice(("distance", "look_up", "naïve"))
        return (
            call | {"function": {"name": name, "arguments": spelt}},
            call | {"function": {"name": name, "arguments": arguments}},
        )

    def _tools(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return tools as sent, and as an engine prints them: its own order, nulls for gaps."""
        made = []
        for number in range(self._rng.randrange(1, 4)):
            function: dict[str, Any] = {"parameters": self._schema(), "name": f"f_{number}"}
            if self._rng.random() < 0.7:
                function["description"] = self.text()
            if self._rng.random() < 0.2:
                del function["parameters"]
            printed = {key: function.get(key) for key in ("name", "description", "parameters")}
            if self._rng.random() < 0.2:
                function["strict"] = printed["strict"] = self._rng.random() < 0.5
            sent = {"function": function, "type": "function"}
            made.append((sent, {"type": "function", "function": printed}))
        return made

    def _schema(self) -> dict[str, Any]:
        fields = {
            self.text()[:15] or "x": {"type": "string", "description": self.text()}
            for _ in range(self._rng.randrange(4))
        }
        return {"type": "object", "properties": fields, "required": list(fields)[:1]}

    def _ending(self, body: dict[str, Any], given: list[Message]) -> tuple[bool, bool]:
        last = given[-1]
        if last["role"] == "assistant" and "tool_calls" not in last and self._rng.random() < 0.4:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
            return False, True
        if self._rng.random() < 0.15:
            body["add_generation_prompt"] = generate = self._rng.random() < 0.5
            return generate, False
        return True, False

    def _variables(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what the template's variables become by the fields that set them."""
        rng = self._rng
        variables: dict[str, Any] = {}
        if rng.random() < 0.3:
            asked = rng.choice(({"enable_thinking": False}, {"enable_thinking": True}, {"x": 1}))
            body["chat_template_kwargs"] = dict(asked)
            variables |= asked
        if rng.random() < 0.1:
            body["reasoning_effort"] = effort = rng.choice(("none", "low", "high"))
            variables.setdefault("enable_thinking", effort != "none")
            variables["reasoning_effort"] = effort
        if rng.random() < 0.1:
            documents = [{"title": self.text(), "text": self.text()}]
            body["documents"] = variables["documents"] = documents
        return variables

    def _special(self, body: dict[str, Any]) -> bool:
        if self._rng.random() < 0.1:
            body["add_special_tokens"] = special = self._rng.random() < 0.5
            return special
        return False


def _lines(texts: Sequence[str]) -> str:
    """Join as engines join parts for a template that takes text: what is empty is left out."""
    return "\n".join(text for text in texts if text)
