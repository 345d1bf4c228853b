"""Request bodies of one API for backends of another: what is carried, and what is refused where."""

import copy
import functools
import json
from typing import Any

import pytest
from anthropic.types import message_create_params as anthropic_params
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params as chat_params
from pydantic import TypeAdapter

from coordinator.apis import Api
from coordinator.translate.requests import Untranslatable, chat_form, translated

CHAT, ANTHROPIC, CONVERSE = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE
RESPONSES = Api.OPENAI_RESPONSES
Json = dict[str, Any]

_CHAT: TypeAdapter[Any] = TypeAdapter(chat_params.CompletionCreateParamsNonStreaming)
_CHAT_STREAM: TypeAdapter[Any] = TypeAdapter(chat_params.CompletionCreateParamsStreaming)
_ANTHROPIC: TypeAdapter[Any] = TypeAdapter(anthropic_params.MessageCreateParamsNonStreaming)
_ANTHROPIC_STREAM: TypeAdapter[Any] = TypeAdapter(anthropic_params.MessageCreateParamsStreaming)


@functools.cache
def converse_shape() -> Any:
    described = Loader().load_service_model("bedrock-runtime", "service-2")
    return ServiceModel(described).operation_model("Converse").input_shape


def drain(value: Any) -> None:
    """Read all of a validated value: what is iterable is not validated before."""
    for each in value.values() if isinstance(value, dict) else value:
        if not isinstance(each, str) and hasattr(each, "__iter__"):
            drain(each)


def check(api: Api, body: Json) -> None:
    """Hold a body against the official definition of its API."""
    streams = body.get("stream")
    if api is CHAT:
        drain((_CHAT_STREAM if streams else _CHAT).validate_python(body))
    elif api is ANTHROPIC:
        drain((_ANTHROPIC_STREAM if streams else _ANTHROPIC).validate_python(body))
    else:
        report = ParamValidator().validate({"modelId": "m", **body}, converse_shape())
        assert not report.has_errors(), report.generate_report()


def put(api_from: Api, api_to: Api, body: Json) -> Json:
    before = copy.deepcopy(body)
    result = translated(api_from, api_to, body)
    assert body == before
    check(api_to, json.loads(json.dumps(result)))
    return result


def refused(api_from: Api, api_to: Api, body: Json) -> str | None:
    with pytest.raises(Untranslatable) as error:
        translated(api_from, api_to, body)
    return error.value.param


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any = None, *calls: Json) -> Json:
    said = {} if content is None else {"content": content}
    return {"role": "assistant", **said, **({"tool_calls": [*calls]} if calls else {})}


def call(name: str, function: str, arguments: str = "{}") -> Json:
    return {
        "id": name,
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }


def result(name: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": name, "content": content}


def chat(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "messages": list(messages), **more}


def message(*messages: Json, **more: Any) -> Json:
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **more}


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def use(name: str, function: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": name, "name": function, "input": arguments}


def came(name: str, content: Any = None, **more: Any) -> Json:
    given = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": name, **given, **more}


HELLO = user("hello")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Says it.", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"name": "weather", "description": "Says it.", "input_schema": SCHEMA}]
SPECS = [
    {
        "toolSpec": {
            "name": "weather",
            "description": "Says it.",
            "inputSchema": {"json": SCHEMA},
        }
    }
]
PNG = "data:image/png;base64,aWk="
PICTURE = {"type": "image_url", "image_url": {"url": PNG}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": "aWk="}
LINKED = {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}}
PDF = "data:application/pdf;base64,aWk="
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}

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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, {"max_tokens": 8192}, id="a limit in any case"),
        pytest.param({"max_completion_tokens": 7, "max_tokens": 9}, {"max_tokens": 7}, id="newer"),
        pytest.param({"temperature": 1.7}, {"temperature": 1.0}, id="as warm as it gets"),
        pytest.param({"stop": "END"}, {"stop_sequences": ["END"]}, id="one stop"),
        pytest.param({"stop": ""}, {}, id="no stop"),
        pytest.param({"top_k": 3}, {"top_k": 3}, id="top k"),
        pytest.param(
            {"safety_identifier": "s", "user": "u"}, {"metadata": {"user_id": "s"}}, id="whose"
        ),
        pytest.param(
            {"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}, id="effort"
        ),
        pytest.param(
            {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, id="no thinking"
        ),
        pytest.param(
            {"thinking_token_budget": 2000, "temperature": 0.1, "top_p": 0.5},
            {
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "max_tokens": 10192,
                "top_p": 0.95,
            },
            id="a budget of thoughts, and room for it",
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            id="a schema",
        ),
        pytest.param({"tools": CHAT_TOOLS}, {"tools": TOOLS}, id="tools"),
        pytest.param(
            {"tools": CHAT_TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
            {"tools": TOOLS, "tool_choice": {"type": "none"}},
            id="tools, but none",
        ),
        pytest.param(
            {"tools": CHAT_TOOLS, "parallel_tool_calls": False},
            {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            id="one call at a time",
        ),
        pytest.param(
            {
                "tools": [{"type": "function", "function": {"name": "now", "strict": True}}],
                "tool_choice": {"type": "function", "function": {"name": "now"}},
            },
            {
                "tools": [
                    {
                        "name": "now",
                        "input_schema": {"type": "object", "properties": {}},
                        "strict": True,
                    }
                ],
                "tool_choice": {"type": "tool", "name": "now"},
            },
            id="a tool without anything",
        ),
        pytest.param({"tool_choice": "auto", "parallel_tool_calls": True}, {}, id="no tools"),
        pytest.param({"seed": 1, "n": 1, "logprobs": False, "store": True}, {}, id="left out"),
    ],
)
def test_fields_of_a_chat_are_put_to_anthropic(asked: Json, expected: Json) -> None:
    body = put(CHAT, ANTHROPIC, chat(HELLO, **asked))
    assert body == {"model": "m", "max_tokens": 8192, "messages": [HELLO], **expected}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        pytest.param({"metadata": {"user_id": "u"}}, {"user": "u"}),
        pytest.param({"metadata": {}}, {}),
        pytest.param({"thinking": {"type": "adaptive"}}, {}),
        pytest.param({"tool_choice": {"type": "auto"}}, {}),
        pytest.param(
            {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        ),
        pytest.param(
            {"tools": TOOLS, "tool_choice": {"type": "none"}},
            {"tools": CHAT_TOOLS, "tool_choice": "none"},
        ),
        pytest.param({"service_tier": "auto", "context_management": {"edits": []}}, {}),
    ],
)
def test_fields_of_a_message_are_put_to_a_chat(asked: Json, expected: Json) -> None:
    body = put(ANTHROPIC, CHAT, message(HELLO, **asked))
    assert body == {"model": "m", "max_completion_tokens": 100, "messages": [HELLO], **expected}


def test_system_words_stay_where_they_are_said() -> None:
    later = {"role": "developer", "content": "Be kind."}
    body = put(CHAT, ANTHROPIC, chat(later, HELLO, later, HELLO))
    assert body["system"] == "Be kind."
    assert body["messages"] == [HELLO, {"role": "system", "content": "Be kind."}, HELLO]
    assert put(ANTHROPIC, CHAT, {**body})["messages"] == [
        {"role": "system", "content": "Be kind."},
        HELLO,
        {"role": "system", "content": "Be kind."},
        HELLO,
    ]


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    assert put(CHAT, ANTHROPIC, chat(HELLO, max_tokens=16.0))["max_tokens"] == 16
    assert put(ANTHROPIC, CHAT, message(HELLO, max_tokens=16.0))["max_completion_tokens"] == 16
    assert refused(CHAT, ANTHROPIC, chat(HELLO, max_tokens=16.5)) == "max_tokens"


def test_an_answer_that_must_cite_is_for_who_can() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "d"}
    for enabled, param in ((True, "messages[0].content[0].citations"), (False, None)):
        document = {"type": "document", "source": source, "citations": {"enabled": enabled}}
        body = message({"role": "user", "content": [document]})
        if param is None:
            assert put(ANTHROPIC, CHAT, body)["messages"] == [user("d")]
        else:
            assert refused(ANTHROPIC, CHAT, body) == param


def test_what_the_model_goes_on_with_has_no_blank_at_its_end() -> None:
    begun = chat(HELLO, assistant("It is: \n"))
    assert put(CHAT, ANTHROPIC, begun)["messages"][-1]["content"] == "It is:"
    assert put(CHAT, CONVERSE, begun)["messages"][-1]["content"] == [{"text": "It is:"}]


def test_converse_takes_turns() -> None:
    body = put(CHAT, CONVERSE, chat(HELLO, user("again"), assistant("a"), assistant("b"), HELLO))
    assert [(turn["role"], len(turn["content"])) for turn in body["messages"]] == [
        ("user", 2),
        ("assistant", 2),
        ("user", 1),
    ]


def test_blank_text_is_left_out_where_there_is_other() -> None:
    body = put(CHAT, ANTHROPIC, chat(user([text(" "), text("hi")]), assistant(""), user("so?")))
    assert body["messages"] == [user("hi"), user("so?")]
    ended = put(CHAT, ANTHROPIC, chat(HELLO, assistant("once upon ")))
    assert ended["messages"][-1] == assistant("once upon")


def test_ids_of_calls_come_in_the_backends_alphabet_and_stay_in_pairs() -> None:
    odd = "functions.weather:0" + "x" * 80
    for other in (ANTHROPIC, CONVERSE):
        body = put(
            CHAT,
            other,
            chat(
                HELLO, assistant(None, call(odd, "weather")), result(odd, "rain"), tools=CHAT_TOOLS
            ),
        )
        asked, came = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
        names = (
            (asked["id"], came["tool_use_id"])
            if other is ANTHROPIC
            else (asked["toolUse"]["toolUseId"], came["toolResult"]["toolUseId"])
        )
        assert names[0] == names[1]
        assert len(names[0]) == 37


def test_calls_without_tools_get_tools_that_nobody_calls() -> None:
    body = put(
        CHAT, ANTHROPIC, chat(HELLO, assistant(None, call("c", "weather")), result("c", "rain"))
    )
    assert body["tools"] == [{"name": "weather", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


def test_thinking_is_off_in_the_middle_of_calls_whose_thoughts_are_gone() -> None:
    turns = (HELLO, assistant(None, call("c", "weather")), result("c", "rain"))
    body = put(
        CHAT, ANTHROPIC, chat(*turns, tools=CHAT_TOOLS, thinking_token_budget=2000, temperature=0.1)
    )
    assert ("thinking" in body, body["temperature"], body["max_tokens"]) == (False, 0.1, 8192)
    ended = chat(*turns, assistant("it rains"), HELLO, tools=CHAT_TOOLS, thinking_token_budget=2000)
    assert put(CHAT, ANTHROPIC, ended)["thinking"]["type"] == "enabled"


def test_thoughts_without_a_signature_stay_behind() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    body = message(HELLO, {"role": "assistant", "content": [thought, text("hi")]}, HELLO)
    assert put(ANTHROPIC, CONVERSE, body)["messages"][1]["content"] == [{"text": "hi"}]


def test_documents_are_carried_where_they_can_be() -> None:
    file = {"type": "file", "file": {"filename": "a b.pdf", "file_data": PDF}}
    source = {"type": "base64", "media_type": "application/pdf", "data": "aWk="}
    document = {"type": "document", "source": source, "title": "a b.pdf"}
    body = put(CHAT, ANTHROPIC, chat(user([file])))
    assert body["messages"] == [user([document])]
    assert put(ANTHROPIC, CHAT, body)["messages"] == [user([file])]
    named = {"format": "pdf", "name": "a b pdf", "source": {"bytes": "aWk="}}
    assert put(CHAT, CONVERSE, chat(user([file])))["messages"] == [user([{"document": named}])]
    plain = {"type": "text", "media_type": "text/plain", "data": "it rains"}
    said = message(user([{"type": "document", "source": plain, "title": "news"}]))
    assert put(ANTHROPIC, CHAT, said)["messages"] == [user([text("news"), text("it rains")])]


def test_images_at_addresses_are_carried_where_they_can_be() -> None:
    source = {"type": "url", "url": "https://pictures.test/a.png"}
    body = put(CHAT, ANTHROPIC, chat(user([LINKED])))
    assert body["messages"] == [user([{"type": "image", "source": source}])]
    assert put(ANTHROPIC, CHAT, body)["messages"] == [user([LINKED])]
    assert (
        refused(CHAT, CONVERSE, chat(HELLO, user([text("?"), LINKED]))) == "messages[1].content[1]"
    )
    assert refused(ANTHROPIC, CONVERSE, body) == "messages[0].content[0]"


def test_the_line_that_differs_in_every_request_is_left_out() -> None:
    system = [text("x-anthropic-billing-header: cch=1"), text("Be brief.")]
    assert put(ANTHROPIC, CONVERSE, message(HELLO, system=system))["system"] == [
        {"text": "Be brief."}
    ]


@pytest.mark.parametrize(
    ("api_from", "api_to", "body", "param"),
    [
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, n=2), "n", id="several answers"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, logprobs=True), "logprobs", id="logprobs"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, presence_penalty=1), "presence_penalty", id="-"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, guided_json={}), "guided_json", id="unknown"),
        pytest.param(CHAT, ANTHROPIC, chat(HELLO, stop="\n"), "stop", id="a blank stop"),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, response_format={"type": "json_object"}),
            "response_format.type",
            id="any JSON",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(user([{"type": "input_audio", "input_audio": {}}])),
            "messages[0].content[0].type",
            id="audio",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])),
            "messages[0].content[0].image_url",
            id="an image elsewhere",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(
                user([{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,aWk="}}])
            ),
            "messages[0].content[0]",
            id="a format that is not taken",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, assistant(None, call("c", "f", '{"a":'))),
            "messages[1].tool_calls[0].function.arguments",
            id="arguments that are not whole",
        ),
        pytest.param(CHAT, ANTHROPIC, chat(user("")), "messages[0].content", id="nothing said"),
        pytest.param(CHAT, ANTHROPIC, chat(assistant("hi")), "messages", id="the model first"),
        pytest.param(
            CHAT, ANTHROPIC, chat({"role": "system", "content": "hi"}), "messages", id="nobody"
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            chat(HELLO, thinking_token_budget=10),
            "thinking_token_budget",
            id="too few thoughts",
        ),
        pytest.param(
            CHAT,
            CONVERSE,
            chat(HELLO, tools=CHAT_TOOLS, parallel_tool_calls=False),
            "parallel_tool_calls",
            id="Converse cannot forbid parallel calls",
        ),
        pytest.param(
            CHAT,
            CONVERSE,
            chat(HELLO, assistant(None, call("c", "weather")), result("c", "rain")),
            "tools",
            id="Converse wants tools beside calls",
        ),
        pytest.param(
            ANTHROPIC,
            CONVERSE,
            message(
                HELLO,
                {"role": "assistant", "content": [use("c", "weather")]},
                user([came("c")]),
                tools=TOOLS,
                tool_choice={"type": "none"},
            ),
            "tool_choice",
            id="Converse cannot forbid tools",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(HELLO, {"role": "assistant", "content": "once"}),
            "messages[1]",
            id="a chat is not gone on with",
        ),
        pytest.param(ANTHROPIC, CHAT, message(HELLO, top_k=5), "top_k", id="top k"),
        pytest.param(
            ANTHROPIC, CHAT, message(HELLO, stop_sequences=[*"abcde"]), "stop_sequences", id="stops"
        ),
        pytest.param(ANTHROPIC, CHAT, {**chat(HELLO)}, None, id="no limit"),
        pytest.param(ANTHROPIC, CHAT, message(HELLO, mcp_servers=[{}]), "mcp_servers", id="MCP"),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(HELLO, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            "tools[0].type",
            id="a tool of Anthropic's",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])),
            "messages[0].content[0].source.type",
            id="a file that Anthropic keeps",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            message(user([use("c", "weather")])),
            "messages[0].content[0]",
            id="a call by the user",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "background": True},
            "background",
            id="bg",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "previous_response_id": "resp_1"},
            "previous_response_id",
            id="a response that others keep",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]},
            "tools[0]",
            id="a tool of OpenAI's",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": [{"type": "item_reference", "id": "x"}]},
            "input[0].type",
            id="an item that others keep",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": [user([{"type": "input_image", "file_id": "f"}])]},
            "input",
            id="a file that OpenAI keeps",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "text": {"verbosity": "low"}},
            "text.verbosity",
            id="verbosity",
        ),
        pytest.param(
            RESPONSES,
            CHAT,
            {"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}},
            "text.format",
            id="any JSON in a response",
        ),
        pytest.param(
            RESPONSES,
            ANTHROPIC,
            {"model": "m", "input": [{"role": "assistant", "content": "hi"}]},
            "input",
            id="the model first in a response",
        ),
        pytest.param(
            RESPONSES,
            CONVERSE,
            {"model": "m", "input": [user([{"type": "input_image", "image_url": "https://x/a"}])]},
            "input",
            id="an image at an address in a response",
        ),
        pytest.param(Api.OPENAI_COMPLETIONS, ANTHROPIC, {"prompt": "hi"}, None, id="completion"),
        pytest.param(CHAT, RESPONSES, chat(HELLO), None, id="nobody answers in responses"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_its_place(
    api_from: Api, api_to: Api, body: Json, param: str | None
) -> None:
    assert refused(api_from, api_to, body) == param


def test_a_refusal_repeats_nothing_of_the_content() -> None:
    secret = "my number is 12"
    for body in (
        chat(user([{"type": secret}])),
        chat({"role": secret, "content": secret}),
        {**chat(HELLO), secret + "\n": 1},
    ):
        with pytest.raises(Untranslatable) as error:
            translated(CHAT, ANTHROPIC, body)
        assert secret not in error.value.message or error.value.param == secret


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
