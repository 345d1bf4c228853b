"""Anthropic and responses bodies as chats: what vLLM made of the same bodies, word for word."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.apis import Api
from coordinator.canonical import Canonical, parse
from coordinator.tokens.conversation import as_tool
from coordinator.tokens.rendering import ChatTemplate
from coordinator.tokens.tokenizer import Tokenizer
from coordinator.translate.requests import Untranslatable, chat_form, with_leading_system
from lineside.hashing import pack
from tests.chat_asks import ANTHROPIC, RESPONSES, TEMPLATES

CASES = Path(__file__).with_name("cases")
KEPT = json.loads((CASES / "chat_forms.json").read_text(encoding="utf-8"))
LOADED = Tokenizer.load(str(Path(__file__).parents[1] / "simulate" / "model"))
GIVEN = (
    *("stop", "temperature", "top_p", "top_k", "max_tokens", "stream", "cache_salt", "tool_choice"),
    *("chat_template_kwargs", "reasoning_effort", "thinking_token_budget"),
)


def readable(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the arguments of calls parsed, as every template gets them."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


@pytest.mark.parametrize("name", ANTHROPIC)
def test_a_message_becomes_the_chat_that_vllm_makes_of_it(name: str) -> None:
    before = copy.deepcopy(ANTHROPIC[name])
    chat, kept = chat_form(Api.ANTHROPIC_MESSAGES, ANTHROPIC[name]), KEPT["anthropic"][name]
    assert readable(chat["messages"]) == readable(kept["messages"])
    tools = chat.get("tools")
    assert (None if tools is None else [as_tool(tool) for tool in tools]) == kept["tools"]
    assert {k: chat.get(k) for k in GIVEN} == {k: kept.get(k) for k in GIVEN}
    assert chat.get("parallel_tool_calls", True) == kept.get("parallel_tool_calls", True)
    assert before == ANTHROPIC[name]


@pytest.mark.parametrize("name", RESPONSES)
def test_a_responses_body_becomes_the_chat_that_vllm_makes_of_it(name: str) -> None:
    before = copy.deepcopy(RESPONSES[name])
    chat, kept = chat_form(Api.OPENAI_RESPONSES, RESPONSES[name]), KEPT["responses"][name]
    assert readable(chat["messages"]) == readable(kept["messages"])
    tools = chat.get("tools")
    assert (None if tools is None else [as_tool(tool) for tool in tools]) == kept["tools"]
    assert chat.get("continue_final_message", False) == kept["continues"]
    assert chat.get("reasoning_effort") == kept["reasoning_effort"]
    assert before == RESPONSES[name]


def test_all_that_was_asked_of_vllm_is_compared() -> None:
    assert (KEPT["anthropic"].keys(), KEPT["responses"].keys()) == (
        ANTHROPIC.keys(),
        RESPONSES.keys(),
    )


def test_system_messages_merge_in_front_as_vllm_does_for_templates_that_demand_it() -> None:
    chat = chat_form(Api.ANTHROPIC_MESSAGES, ANTHROPIC["system among the turns"])
    assert with_leading_system(chat["messages"]) == KEPT["merged"]["messages"]
    assert with_leading_system(chat["messages"][1:2]) == chat["messages"][1:2]


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"wants turns"}))
def test_templates_get_system_messages_in_front_where_vllm_puts_them_there(name: str) -> None:
    template = ChatTemplate(
        {"default": TEMPLATES[name] + "{{ messages | length }}"}, {"bos_token": "<s>"}
    )
    body = json.dumps(ANTHROPIC["system among the turns"]).encode()
    canonical = parse(Api.ANTHROPIC_MESSAGES, {}, body)
    assert isinstance(canonical, Canonical)
    merged = KEPT["wants_system_first"][name]
    assert template.render(canonical)[-1] == ("3" if merged else "4")


@pytest.mark.parametrize("case", ["render_messages", "messages", "messages_stream", "responses"])
def test_captured_bodies_come_to_the_tokens_that_the_engine_counted(case: str) -> None:
    captured = json.loads((CASES / "http" / f"{case}.json").read_text(encoding="utf-8"))
    api = Api.OPENAI_RESPONSES if case == "responses" else Api.ANTHROPIC_MESSAGES
    chat = chat_form(api, captured["request"]["body"])
    canonical = parse(Api.OPENAI_CHAT, {}, json.dumps(chat).encode())
    assert isinstance(canonical, Canonical)
    tokens = LOADED.tokens(canonical)
    body = captured.get("body", {})
    if case == "render_messages":
        assert tokens == pack(body["token_ids"])
    else:
        usage = body.get("usage", {"input_tokens": 126})
        counted = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        assert len(tokens) // 4 == counted


def test_text_in_blocks_that_engines_refuse_stays_in_sight_of_taggers() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "my number is 12"}
    block = {"type": "document", "source": source, "title": "notes"}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    chat = chat_form(
        Api.ANTHROPIC_MESSAGES, {"messages": [{"role": "user", "content": [result, block]}]}
    )
    assert chat["messages"] == [
        {"role": "tool", "tool_call_id": "c", "content": "notes\nmy number is 12"},
        {
            "role": "user",
            "content": [
                block,
                {"type": "text", "text": "notes"},
                {"type": "text", "text": "my number is 12"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        pytest.param(Api.ANTHROPIC_MESSAGES, {}, "messages", id="no messages"),
        pytest.param(Api.ANTHROPIC_MESSAGES, {"messages": [1]}, "messages[0]", id="no turn"),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            {"messages": [{"role": "tool", "content": ""}]},
            "messages[0].role",
            id="a role of another API",
        ),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
            "messages[0].content[0].type",
            id="a block without a type",
        ),
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
            id="a text that is none",
        ),
        pytest.param(Api.OPENAI_RESPONSES, {}, "input", id="no input"),
        pytest.param(Api.OPENAI_RESPONSES, {"input": ["hi"]}, "input[0]", id="no item"),
        pytest.param(
            Api.OPENAI_RESPONSES,
            {"input": [{"type": "computer_call"}]},
            "input[0].type",
            id="an item of no engine",
        ),
        pytest.param(
            Api.OPENAI_RESPONSES,
            {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
            "input[0].encrypted_content",
            id="reasoning that is encrypted",
        ),
        pytest.param(Api.OPENAI_EMBEDDINGS, {"input": "hi"}, None, id="no conversation"),
    ],
)
def test_what_is_no_conversation_is_refused_by_its_place(
    api: Api, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(Untranslatable) as refused:
        chat_form(api, body)
    assert refused.value.param == param
