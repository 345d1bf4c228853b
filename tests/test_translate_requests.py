"""Requests of one API for backends of another, as a whole: conversations there and back."""

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.translate.requests import Untranslatable, chat_form, translated
from tests.translate_asks import (
    ANTHROPIC,
    BASE64,
    CHAT,
    CHAT_TOOLS,
    CONVERSE,
    EPHEMERAL,
    FUNCTION,
    LINKED,
    PICTURE,
    PNG,
    RESPONSES,
    SCHEMA,
    SPECS,
    TOOLS,
    Json,
    assistant,
    call,
    came,
    chat,
    message,
    put,
    result,
    text,
    use,
    user,
)

CONVERSATION = chat(
    {"role": "system", "content": "Be brief."},
    user([text("what is this?"), PICTURE]),
    assistant("let me see", call("c1", "weather", '{"city": "Köln"}'), call("c2", "weather")),
    result("c1", "rain"),
    result("c2", [text("no"), text("idea")]),
    user("so?"),
    max_tokens=50,
    temperature=0.5,
    top_p=0.9,
    stop=["END", "STOP"],
    user="u1",
    tools=CHAT_TOOLS,
    tool_choice="required",
    stream=True,
    stream_options={"include_usage": True},
)


def test_a_chat_is_put_to_anthropic() -> None:
    assert put(CHAT, ANTHROPIC, CONVERSATION) == {
        "model": "m",
        "max_tokens": 50,
        "system": "Be brief.",
        "messages": [
            user([text("what is this?"), {"type": "image", "source": BASE64}]),
            {
                "role": "assistant",
                "content": [
                    text("let me see"),
                    use("c1", "weather", city="Köln"),
                    use("c2", "weather"),
                ],
            },
            user([came("c1", "rain"), came("c2", [text("no"), text("idea")]), text("so?")]),
        ],
        "tools": TOOLS,
        "tool_choice": {"type": "any"},
        "stop_sequences": ["END", "STOP"],
        "top_p": 0.9,
        "temperature": 0.5,
        "metadata": {"user_id": "u1"},
        "stream": True,
    }


def test_a_chat_is_put_to_converse() -> None:
    image = {"image": {"format": "png", "source": {"bytes": "aWk="}}}
    assert put(CHAT, CONVERSE, CONVERSATION) == {
        "messages": [
            user([{"text": "what is this?"}, image]),
            {
                "role": "assistant",
                "content": [
                    {"text": "let me see"},
                    {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Köln"}}},
                    {"toolUse": {"toolUseId": "c2", "name": "weather", "input": {}}},
                ],
            },
            user(
                [
                    {"toolResult": {"toolUseId": "c1", "content": [{"text": "rain"}]}},
                    {
                        "toolResult": {
                            "toolUseId": "c2",
                            "content": [{"text": "no"}, {"text": "idea"}],
                        }
                    },
                    {"text": "so?"},
                ]
            ),
        ],
        "system": [{"text": "Be brief."}],
        "inferenceConfig": {
            "maxTokens": 50,
            "temperature": 0.5,
            "topP": 0.9,
            "stopSequences": ["END", "STOP"],
        },
        "toolConfig": {"tools": SPECS, "toolChoice": {"any": {}}},
    }


MESSAGE = message(
    user([text("what is this?"), {"type": "image", "source": BASE64}]),
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s1"},
            {"type": "redacted_thinking", "data": "aWk="},
            text("let me see"),
            use("c1", "weather", city="Köln"),
            use("c2", "weather"),
        ],
    },
    user(
        [
            came("c1", [text("a map"), {"type": "image", "source": BASE64}]),
            came("c2", "no such city", is_error=True),
            text("so?", cache_control=EPHEMERAL),
        ]
    ),
    system=[text("Be "), text("brief.", cache_control=EPHEMERAL)],
    metadata={"user_id": "u" * 70},
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    thinking={"type": "enabled", "budget_tokens": 1024},
    stop_sequences=["END"],
    top_p=0.97,
    tools=TOOLS,
    tool_choice={"type": "tool", "name": "weather"},
    stream=True,
)


def test_a_message_is_put_to_a_chat() -> None:
    assert put(ANTHROPIC, CHAT, MESSAGE) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            user([text("what is this?"), PICTURE]),
            assistant(
                "let me see", call("c1", "weather", '{"city":"Köln"}'), call("c2", "weather")
            ),
            result("c1", "a map"),
            result("c2", "Error: no such city"),
            user([PICTURE, text("so?")]),
        ],
        "max_completion_tokens": 100,
        "top_p": 0.97,
        "stop": ["END"],
        "user": "d73ea28dd3d10dfcdad1736f6568864c58b5cb7bb318ac5d3098a0f07c6162a8",
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
        },
        "tools": CHAT_TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "stream": True,
    }


def test_a_message_is_put_to_converse() -> None:
    point = {"cachePoint": {"type": "default", "ttl": "1h"}}
    image = {"image": {"format": "png", "source": {"bytes": "aWk="}}}
    schema = {"schema": '{"type":"object","properties":{"city":{"type":"string"}}}'}
    assert put(ANTHROPIC, CONVERSE, MESSAGE) == {
        "messages": [
            user([{"text": "what is this?"}, image]),
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s1"}}},
                    {"reasoningContent": {"redactedContent": "aWk="}},
                    {"text": "let me see"},
                    {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Köln"}}},
                    {"toolUse": {"toolUseId": "c2", "name": "weather", "input": {}}},
                ],
            },
            user(
                [
                    {"toolResult": {"toolUseId": "c1", "content": [{"text": "a map"}, image]}},
                    {
                        "toolResult": {
                            "toolUseId": "c2",
                            "content": [{"text": "no such city"}],
                            "status": "error",
                        }
                    },
                    {"text": "so?"},
                    point,
                ]
            ),
        ],
        "system": [{"text": "Be "}, {"text": "brief."}, point],
        "inferenceConfig": {"maxTokens": 100, "topP": 0.97, "stopSequences": ["END"]},
        "toolConfig": {"tools": SPECS, "toolChoice": {"tool": {"name": "weather"}}},
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {**schema, "name": "answer"}},
            },
            "effort": "low",
        },
        "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    }


def test_a_response_is_put_to_a_chat() -> None:
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            user([{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": PNG}]),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "it rains"}],
            },
            {"type": "message", "role": "user", "content": "thanks"},
        ],
        "max_output_tokens": 9,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "auto",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    assert put(RESPONSES, CHAT, body) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            user([text("hi"), PICTURE]),
            assistant(None, call("c1", "weather")),
            result("c1", "rain"),
            assistant("it rains"),
            user("thanks"),
        ],
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
        "tools": CHAT_TOOLS,
        "tool_choice": "auto",
    }


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
said = words.filter(lambda word: word.strip())
names = st.from_regex(r"\A[a-zA-Z0-9_-]{1,12}\Z")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
pictures = st.sampled_from([PICTURE, LINKED])
parts = said.map(text) | pictures


@st.composite
def exchanges(draw: st.DrawFn) -> list[Json]:
    """Return a question, perhaps calls with their results, and an answer."""
    many = st.lists(parts, min_size=2, max_size=3)
    messages = [user(draw(said | many))]
    if draw(st.booleans()):
        ids = draw(st.lists(names, min_size=1, max_size=3, unique=True))
        arguments = st.dictionaries(words, values, max_size=2).map(json.dumps)
        calls = [call(name, draw(names), draw(arguments)) for name in ids]
        messages.append(assistant(draw(st.none() | said), *calls))
        messages += [result(name, draw(said)) for name in ids]
    return [*messages, assistant(draw(said))]


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    turns = draw(st.lists(exchanges(), max_size=3))
    system = draw(st.none() | said)
    front = [] if system is None else [{"role": "system", "content": system}]
    asked = chat(*front, *(each for turn in turns for each in turn), user(draw(said)))
    limits = {"max_completion_tokens": st.integers(1, 999), "temperature": st.floats(0, 1)}
    return asked | draw(st.fixed_dictionaries({}, optional=limits)) | {"tools": CHAT_TOOLS}


def parsed(body: Json) -> Json:
    """Return a chat with its calls' arguments read."""
    body = copy.deepcopy(body)
    for each in body["messages"]:
        for made in each.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    return body


@settings(max_examples=60, deadline=None)
@given(conversations())
def test_a_chat_comes_back_from_anthropic_as_it_was(asked: Json) -> None:
    there = put(CHAT, ANTHROPIC, asked)
    back = put(ANTHROPIC, CHAT, there)
    assert parsed(back) == parsed({"max_completion_tokens": 8192, **asked})
    seen = chat_form(ANTHROPIC, there)
    assert parsed(seen)["messages"] == parsed(asked)["messages"]


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_both_ways_to_converse_are_the_same(asked: Json) -> None:
    try:
        direct = put(CHAT, CONVERSE, asked)
    except Untranslatable as error:
        assert "pictures.test" in json.dumps(asked)
        assert error.param is not None
        return
    by_anthropic = put(ANTHROPIC, CONVERSE, translated(CHAT, ANTHROPIC, asked))
    by_anthropic["inferenceConfig"].pop("maxTokens")
    if "maxTokens" in direct.get("inferenceConfig", {}):
        direct["inferenceConfig"].pop("maxTokens")
    assert by_anthropic == {"inferenceConfig": {}, **direct}
