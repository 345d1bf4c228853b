"""Fields of requests that another API has, or has otherwise, or does not have."""

import pytest

from tests.translate_asks import (
    ANTHROPIC,
    CHAT,
    CHAT_TOOLS,
    CONVERSE,
    HELLO,
    LINKED,
    PDF,
    SCHEMA,
    TOOLS,
    Json,
    assistant,
    call,
    chat,
    message,
    put,
    refused,
    result,
    text,
    user,
)


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
