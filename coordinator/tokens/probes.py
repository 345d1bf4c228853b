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
_HERE = {"role": "assistant", "content": "  Here.\n"}
_DISTANCE = {
    "type": "function",
    "function": {
        "name": "distance",
        "description": "Distance between two stations, in km & miles",
        "parameters": {"type": "object", "properties": {"from": {"type": "string"}}},
    },
}
_CLOCK = {"type": "function", "function": {"name": "clock", "strict": True}}
_ODD = (
    "Zürich Hbf, 東京駅, Санкт-Петербург, e\u0301te\u0301 \U0001f682\U0001f469\u200d\U0001f527 ﬁn"
)


def _calls(*names: str, content: str | None = None) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": '{"from": "Aße", "to": [7, null]}'},
        }
        for number, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(number: int, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


_CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [_ASK]},
    {"messages": [_SYSTEM, _ASK, _HERE, _ASK]},
    {"messages": [{"role": "user", "content": _parts("a", "b")}]},
    {"messages": [_ASK, _calls("distance"), _result(0, "12")], "tools": [_DISTANCE]},
    {
        "messages": [
            _SYSTEM,
            _ASK,
            _calls("distance", "clock", content="Let me see."),
            _result(0, _parts("12", "km")),
            _result(1, "<tool_response>noon</tool_response>"),
            _HERE | {"reasoning": "It is noon,\nso near."},
            _ASK,
            _HERE | {"reasoning": "Again."},
        ],
        "tools": [_DISTANCE, _CLOCK],
    },
    {"messages": [_SYSTEM, _SYSTEM, {"role": "user", "content": _ODD}], "tools": [_CLOCK]},
    {"messages": [_ASK, _HERE], "continue_final_message": True, "add_generation_prompt": False},
    {"messages": [_ASK], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "developer", "content": "Be kind."}, _ASK]},
)

_TEXTS = (
    "The signal box at the junction was closed in 1987.",
    "  def f(x):\n\t\treturn x  # 3.14159 == 22/7 \r\n\n\n",
    _ODD,
    "<s>one</s> <|im_start|>two<|im_end|> <|endoftext|> [INST]three[/INST]",
    "1234567890 'S 't I'LL ...--- ?!\u00a0\u3000 \u2028x" + " " * 40 + "=" * 40,
)


def probes(api: Api, engine: Engine) -> list[Canonical]:
    """Return the probes of an API, addressed to the engine's model."""
    name = next((m.name for m in engine.models if m.lora is None), None)
    if name is None:
        return []
    bodies = _CHATS if api is Api.OPENAI_CHAT else tuple({"prompt": text} for text in _TEXTS)
    parsed = (parse(api, {}, msgspec.json.encode({"model": name, **body})) for body in bodies)
    return [probe for probe in parsed if isinstance(probe, Canonical)]
