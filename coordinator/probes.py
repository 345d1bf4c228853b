"""Prompts on which a local tokenizer is compared with an engine's. Pure.

Few and short, each aimed at what is likely to differ: templates (roles, parts, tools, calls), start
tokens, normalisation, spacing, and text that spells a special token.
"""

from typing import Any

import msgspec

from coordinator.canonical import Api, Canonical, parse
from coordinator.engines import Engine

_SYSTEM = {"role": "system", "content": "Answer in one sentence."}
_ASK = {"role": "user", "content": "Where is the nearest signal box?"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "distance",
        "description": "Distance between two stations, in km & miles",
        "parameters": {"type": "object", "properties": {"from": {"type": "string"}}},
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "distance", "arguments": '{"from": "Aße", "to": 7}'},
}

_CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [_ASK]},
    {"messages": [_SYSTEM, _ASK, {"role": "assistant", "content": "  Here.\n"}, _ASK]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]}]},
    {
        "messages": [
            _ASK,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12"},
        ],
        "tools": [_TOOL],
    },
)

_TEXTS = (
    "The signal box at the junction was closed in 1987.",
    "  def f(x):\n\t\treturn x  # 3.14159 == 22/7 \r\n\n\n",
    "Zürich Hbf, 東京駅, Санкт-Петербург, e\u0301te\u0301 \U0001f682\U0001f469\u200d\U0001f527 ﬁn",
    "<s>one</s> <|im_start|>two<|im_end|> <|endoftext|> [INST]three[/INST]",
)


def probes(api: Api, engine: Engine) -> list[Canonical]:
    """Return the probes of an API, addressed to the engine's model."""
    name = next((m.name for m in engine.models if m.lora is None), None)
    if name is None:
        return []
    bodies = _CHATS if api is Api.OPENAI_CHAT else tuple({"prompt": text} for text in _TEXTS)
    parsed = (parse(api, {}, msgspec.json.encode({"model": name, **body})) for body in bodies)
    return [probe for probe in parsed if isinstance(probe, Canonical)]
