"""Anthropic and responses bodies whose chat form vLLM was asked for. Imports nothing of ours.

`python tests/vllm/chat_forms.py` writes its answers to `tests/cases/chat_forms.json`.
"""

from typing import Any

PNG = "iVBORw0KGgo="
TOOL = {
    "name": "weather",
    "description": "Says the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
B64 = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
URL = {"type": "image", "source": {"type": "url", "url": "https://pictures.test/a.png"}}


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def _use(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "weather", "input": arguments}


def _result(name: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def _anthropic(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 2048, "messages": list(messages), **more}


HELLO = _user("hello")
CACHED = {"cache_control": {"type": "ephemeral"}}

ANTHROPIC: dict[str, dict[str, Any]] = {
    "plain": _anthropic(HELLO),
    "system as text": _anthropic(HELLO, system="Be brief."),
    "system as blocks": _anthropic(HELLO, system=[_text("Be "), _text("brief.", **CACHED)]),
    "empty system": _anthropic(HELLO, system=""),
    "attribution is left out": _anthropic(
        HELLO, system=[_text("x-anthropic-billing-header: cch=1"), _text("Be brief.")]
    ),
    "attribution in a text": _anthropic(HELLO, system="x-anthropic-billing-header: cch=1"),
    "one text block": _anthropic(_user([_text("hello", **CACHED)])),
    "two text blocks": _anthropic(_user([_text("hello"), _text("again")])),
    "an empty text block": _anthropic(_user([_text(""), _text("again")])),
    "no blocks": _anthropic(_user([]), _assistant([]), HELLO),
    "image as data": _anthropic(_user([_text("what is this?"), B64])),
    "image at an address": _anthropic(_user([URL])),
    "turns": _anthropic(HELLO, _assistant("hi"), _user([_text("and now?")])),
    "system among the turns": _anthropic(
        HELLO,
        {"role": "system", "content": [_text("Be "), _text("brief.")]},
        HELLO,
        system="First.",
    ),
    "thinking": _anthropic(
        HELLO,
        _assistant(
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "abc="},
                {"type": "thinking", "thinking": ", well", "signature": "t"},
                _text("hi"),
            ]
        ),
        HELLO,
    ),
    "only thinking": _anthropic(
        HELLO, _assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}]), HELLO
    ),
    "a call and its result": _anthropic(
        HELLO,
        _assistant([_text("let me see"), _use("c1", city="Bonn")]),
        _user([_result("c1", "rain")]),
        tools=[TOOL],
    ),
    "calls at once, results as blocks, then text": _anthropic(
        HELLO,
        _assistant([_use("c1", city="Bonn"), _use("c2")]),
        _user(
            [
                _result("c1", [_text("rain"), _text("wind")]),
                _result("c2", "no such city", is_error=True),
                _text("so?"),
            ]
        ),
        tools=[TOOL],
    ),
    "results with images, and none": _anthropic(
        HELLO,
        _assistant([_use("c1", city="Bonn"), _use("c2"), _use("c3")]),
        _user([_result("c1", [_text("a map"), B64, URL]), _result("c2", []), _result("c3", None)]),
        tools=[TOOL],
    ),
    "a result that names tools": _anthropic(
        HELLO,
        _assistant([_use("c1", city="Bonn")]),
        _user([_result("c1", [{"type": "tool_reference", "tool_name": "weather"}])]),
        tools=[TOOL],
    ),
    "a result in the model's turn": _anthropic(HELLO, _assistant([_result("c1", "rain")]), HELLO),
    "tools and auto": _anthropic(HELLO, tools=[TOOL], tool_choice={"type": "auto"}),
    "tools and any": _anthropic(
        HELLO, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    ),
    "tools and one": _anthropic(
        HELLO, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}
    ),
    "tools and none": _anthropic(HELLO, tools=[TOOL], tool_choice={"type": "none"}),
    "sparse tool": _anthropic(HELLO, tools=[{"name": "now", "input_schema": {}}]),
    "strict and deferred tool": _anthropic(
        HELLO, tools=[{**TOOL, "strict": True, "defer_loading": True}]
    ),
    "no tools": _anthropic(HELLO, tools=[]),
    "tools that change": _anthropic(
        HELLO,
        {
            "role": "system",
            "content": [
                _text("More tools."),
                {
                    "type": "tool_addition",
                    "tool": {
                        "type": "tool_definition",
                        "definition": {"name": "now", "input_schema": {"type": "object"}},
                    },
                },
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}},
            ],
        },
        HELLO,
        tools=[TOOL],
    ),
    "thinking off": _anthropic(HELLO, thinking={"type": "disabled"}),
    "thinking on": _anthropic(HELLO, thinking={"type": "enabled", "budget_tokens": 1024}),
    "effort and a schema": _anthropic(
        HELLO,
        thinking={"type": "adaptive"},
        output_config={
            "effort": "low",
            "format": {"type": "json_schema", "schema": {"type": "object"}},
        },
    ),
    "sampling": _anthropic(
        HELLO,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["END"],
        stream=True,
        cache_salt="salt",
        chat_template_kwargs={"enable_thinking": False},
        metadata={"user_id": "u"},
    ),
}


def _responses(asked: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": asked, **more}


def _item(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def _calls(name: str, **more: Any) -> dict[str, Any]:
    return _item("function_call", call_id=name, name="weather", arguments='{"a": 1}', **more)


def _said(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    return _item("message", role="assistant", content=[part], **more)


FUNCTION = {
    "type": "function",
    "name": "weather",
    "description": "Says the weather.",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}

RESPONSES: dict[str, dict[str, Any]] = {
    "text": _responses("hello"),
    "instructions": _responses("hello", instructions="Be brief."),
    "messages": _responses([HELLO, _assistant("hi"), _user("and now?")]),
    "typed messages": _responses(
        [
            _item("message", role="developer", content="Be brief."),
            _item("message", role="user", content=[{"type": "input_text", "text": "hello"}]),
            _said("hi"),
            _item("message", role="user", content="and now?"),
        ]
    ),
    "two said after another": _responses([HELLO, _said("hi"), _said("ho"), HELLO]),
    "thought, said, called": _responses(
        [
            HELLO,
            _item("reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "hm"}]),
            _said("let me see"),
            _calls("c1"),
            _calls("c2"),
            _item("function_call_output", call_id="c1", output="rain"),
            _item("function_call_output", call_id="c2", output="wind"),
        ],
        tools=[FUNCTION],
    ),
    "reasoning by its content": _responses(
        [
            HELLO,
            _item(
                "reasoning",
                summary=[{"type": "summary_text", "text": "in short"}],
                content=[{"type": "reasoning_text", "text": "at length"}],
            ),
            _item("reasoning", summary=[{"type": "summary_text", "text": "again"}]),
            _calls("c1"),
            _item("function_call_output", call_id="c1", output="rain"),
        ]
    ),
    "called, then said": _responses(
        [
            HELLO,
            _calls("c1"),
            _said("a moment"),
            _item("function_call_output", call_id="c1", output="x"),
        ]
    ),
    "in a namespace": _responses(
        [
            HELLO,
            _calls("c1", namespace="sky"),
            _item("function_call_output", call_id="c1", output="x"),
        ],
        tools=[{"type": "namespace", "name": "sky", "description": "Up.", "tools": [FUNCTION]}],
    ),
    "free text for a tool": _responses(
        [
            HELLO,
            _item("custom_tool_call", call_id="c1", name="run", input="ls – la"),
            _item("custom_tool_call_output", call_id="c1", output="x"),
        ],
        tools=[{"type": "custom", "name": "run", "description": "Runs it."}],
    ),
    "image": _responses(
        [
            _user(
                [
                    {"type": "input_text", "text": "what is this?"},
                    {
                        "type": "input_image",
                        "image_url": "https://pictures.test/a.png",
                        "detail": "auto",
                    },
                ]
            )
        ]
    ),
    "to be continued": _responses([HELLO, _said("once upon", status="incomplete", id="msg_1")]),
    "effort": _responses("hello", reasoning={"effort": "low"}),
}


_TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES: dict[str, str] = {
    "takes system words anywhere": _TURNS,
    "wants them first": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}",
    "leaves out those that come later": "{% for m in messages %}"
    "{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor %}",
    "wants turns": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}",
    "asks for the date": "{{ strftime_now('%d') }}" + _TURNS,
    "asks whether there is a date": "{% if strftime_now is defined %}{{ strftime_now('%d') }}"
    "{% endif %}" + _TURNS,
    "marks generation": "{% generation %}" + _TURNS + "{% endgeneration %}",
    "begins a text": "{{ bos_token }}" + _TURNS,
    "adds to what is not there": "{{ bos_token + 'x' }}" + _TURNS,
}
"""Chat templates of which vLLM was asked whether system words must be merged in front."""
