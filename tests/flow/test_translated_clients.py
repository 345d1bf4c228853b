"""Official clients before backends of their own and of other APIs: answers, streams and tools."""

import json
from typing import Any

import pytest
from anthropic.types import Message
from openai import LengthFinishReasonError
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from tests.actors import HELLO, Line, Use
from tests.fronts import PROVIDER_KEY, SECRET, UPSTREAM, Stage
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

MODELS = ["local", "gpt", "claude", "nova"]
"""Served by an engine, OpenAI's, Anthropic's and Bedrock's API."""

PARIS = Use("call_1", "weather", ('{"city"', ': "Pa', 'ris"}'))
ROME = Use("call_2", "weather", ('{"city": "Rome", ', '"days": 2}'))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "says it", "parameters": SCHEMA},
    }
]
MESSAGE_TOOLS: list[Any] = [{"name": "weather", "description": "says it", "input_schema": SCHEMA}]
ASK: list[Any] = [{"role": "user", "content": "How is it in Paris?"}]


async def chat(staged: Stage, model: str, **more: Any) -> ChatCompletion:
    """Ask for a whole answer, as `openai` does."""
    asked: Any = {"model": model, "messages": ASK, "max_tokens": 50} | more
    answer: ChatCompletion = await staged.front.openai.chat.completions.create(**asked)
    return answer


async def streamed_chat(staged: Stage, model: str, **more: Any) -> ChatCompletion:
    """Ask for a stream; return what `openai` puts together from it."""
    asked: Any = {"model": model, "messages": ASK, "max_tokens": 50} | more
    asked |= {"stream_options": {"include_usage": True}}
    async with staged.front.openai.chat.completions.stream(**asked) as stream:
        answer: ChatCompletion = await stream.get_final_completion()
    return answer


async def message(staged: Stage, model: str, **more: Any) -> Message:
    """Ask for a whole answer, as `anthropic` does."""
    asked: Any = {"model": model, "messages": ASK, "max_tokens": 50} | more
    answer: Message = await staged.front.anthropic.messages.create(**asked)
    return answer


async def streamed_message(staged: Stage, model: str, **more: Any) -> Message:
    """Ask for a stream; return what `anthropic` puts together from it."""
    asked: Any = {"model": model, "messages": ASK, "max_tokens": 50} | more
    async with staged.front.anthropic.messages.stream(**asked) as stream:
        answer: Message = await stream.get_final_message()
    return answer


CHATS = [pytest.param(chat, id="whole"), pytest.param(streamed_chat, id="stream")]
MESSAGES = [pytest.param(message, id="whole"), pytest.param(streamed_message, id="stream")]


def calls(answer: ChatCompletion) -> list[tuple[str, str, Any]]:
    """Return the calls of a chat's answer."""
    found = []
    for call in answer.choices[0].message.tool_calls or ():
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        found.append((call.id, call.function.name, json.loads(call.function.arguments)))
    return found


def blocks(answer: Message) -> list[dict[str, Any]]:
    """Return the blocks of a message, without what is empty."""
    found = [block.model_dump(exclude_none=True) for block in answer.content]
    for block in found:
        block.pop("caller", None)
    return found


@pytest.mark.parametrize("ask", CHATS)
@pytest.mark.parametrize("model", MODELS)
async def test_openai_gets_its_answer_from_any_backend(staged: Stage, model: str, ask: Any) -> None:
    answer = await ask(staged, model)
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.content, choice.finish_reason) == (HELLO.text, "stop")
    assert choice.message.role == "assistant"
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 3, 14)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert answer.model == (UPSTREAM if model == "gpt" else model)
    (asked,) = staged.actor(model).asked
    assert SECRET not in json.dumps(asked.headers)
    if model != "local":
        assert PROVIDER_KEY in json.dumps(asked.headers)


@pytest.mark.parametrize("ask", MESSAGES)
@pytest.mark.parametrize("model", MODELS)
async def test_anthropic_gets_its_answer_from_any_backend(
    staged: Stage, model: str, ask: Any
) -> None:
    answer = await ask(staged, model)
    assert blocks(answer) == [{"type": "text", "text": HELLO.text}]
    assert (answer.stop_reason, answer.role, answer.type) == ("end_turn", "assistant", "message")
    usage = answer.usage
    counted = usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens
    assert counted == (7, 4, 3)
    assert answer.model == (UPSTREAM if model == "claude" else model)
    (asked,) = staged.actor(model).asked
    assert SECRET not in json.dumps(asked.headers)


@pytest.mark.parametrize("ask", CHATS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("uses", [(PARIS,), (PARIS, ROME)], ids=["one", "parallel"])
async def test_openai_gets_calls_from_any_backend(
    staged: Stage, model: str, ask: Any, uses: tuple[Use, ...]
) -> None:
    staged.actor(model).line = Line(("Let me ", "see."), uses)
    answer = await ask(staged, model, tools=CHAT_TOOLS)
    assert calls(answer) == [(use.id, use.name, use.input) for use in uses]
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    assert told_tools(staged, model) == ("weather", "says it", SCHEMA)


@pytest.mark.parametrize("ask", MESSAGES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("uses", [(PARIS,), (PARIS, ROME)], ids=["one", "parallel"])
async def test_anthropic_gets_calls_from_any_backend(
    staged: Stage, model: str, ask: Any, uses: tuple[Use, ...]
) -> None:
    staged.actor(model).line = Line((), uses)
    answer = await ask(staged, model, tools=MESSAGE_TOOLS)
    assert blocks(answer) == [
        {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input} for use in uses
    ]
    assert answer.stop_reason == "tool_use"
    assert told_tools(staged, model) == ("weather", "says it", SCHEMA)


def told_tools(staged: Stage, model: str) -> tuple[str, str, Any]:
    """Return the one tool as a backend was told of it, in its API."""
    (body,) = staged.actor(model).bodies
    if model == "nova":
        spec = body["toolConfig"]["tools"][0]["toolSpec"]
        return spec["name"], spec["description"], spec["inputSchema"]["json"]
    (tool,) = body["tools"]
    if "function" in tool:
        function = tool["function"]
        return function["name"], function["description"], function["parameters"]
    return tool["name"], tool["description"], tool["input_schema"]


@pytest.mark.parametrize("model", MODELS)
async def test_results_of_openais_calls_reach_any_backend(staged: Stage, model: str) -> None:
    staged.actor(model).line = Line((), (PARIS, ROME))
    first = await chat(staged, model, tools=CHAT_TOOLS)
    staged.actor(model).line = HELLO
    turns: list[Any] = [*ASK, first.choices[0].message.model_dump(exclude_none=True)]
    turns += [
        {"role": "tool", "tool_call_id": id_, "content": f"fine in {input_['city']}"}
        for id_, _, input_ in calls(first)
    ]
    for ask in (chat, streamed_chat):
        answer = await ask(staged, model, messages=turns, tools=CHAT_TOOLS)
        assert answer.choices[0].message.content == HELLO.text
        assert heard(staged, model) == RESULTS


@pytest.mark.parametrize("model", MODELS)
async def test_results_of_anthropics_calls_reach_any_backend(staged: Stage, model: str) -> None:
    staged.actor(model).line = Line(("One moment.",), (PARIS, ROME))
    first = await streamed_message(staged, model, tools=MESSAGE_TOOLS)
    staged.actor(model).line = HELLO
    results = [
        {"type": "tool_result", "tool_use_id": b["id"], "content": f"fine in {b['input']['city']}"}
        for b in blocks(first)
        if b["type"] == "tool_use"
    ]
    turns: list[Any] = [*ASK, {"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": [*results, {"type": "text", "text": "Well?"}]})
    for ask in (message, streamed_message):
        answer = await ask(staged, model, messages=turns, tools=MESSAGE_TOOLS, system="Be brief.")
        assert blocks(answer) == [{"type": "text", "text": HELLO.text}]
        assert heard(staged, model) == RESULTS


RESULTS = [
    ("call_1", {"city": "Paris"}, "fine in Paris"),
    ("call_2", {"city": "Rome", "days": 2}, "fine in Rome"),
]


def heard(staged: Stage, model: str) -> list[tuple[str, Any, str]]:
    """Return calls with their results as a backend was last told of them, in its API."""
    body = staged.actor(model).bodies[-1]
    inputs: dict[str, Any] = {}
    results: dict[str, str] = {}
    for turn in body["messages"]:
        for call in turn.get("tool_calls") or ():
            inputs[call["id"]] = json.loads(call["function"]["arguments"])
        if turn["role"] == "tool":
            results[turn["tool_call_id"]] = _text(turn["content"])
        for block in turn["content"] if isinstance(turn.get("content"), list) else ():
            use = block.get("toolUse") or (block if block.get("type") == "tool_use" else None)
            if use is not None:
                inputs[use.get("toolUseId") or use["id"]] = use["input"]
            done = block.get("toolResult") or (
                block if block.get("type") == "tool_result" else None
            )
            if done is not None:
                results[done.get("toolUseId") or done["tool_use_id"]] = _text(done["content"])
    return [(id_, inputs[id_], results[id_]) for id_ in inputs]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("model", ["local", "claude", "gpt"])
async def test_thoughts_reach_anthropics_client(staged: Stage, model: str) -> None:
    staged.actor(model).line = Line(("Yes.",), thoughts=("Is ", "it?"))
    for ask in (message, streamed_message):
        thought, said = blocks(await ask(staged, model))
        assert (thought["type"], thought["thinking"]) == ("thinking", "Is it?")
        assert said == {"type": "text", "text": "Yes."}


@pytest.mark.parametrize("model", MODELS)
async def test_an_answer_that_was_cut_is_said_to_be(staged: Stage, model: str) -> None:
    staged.actor(model).line = Line(("So ", "much"), is_cut=True)
    assert (await chat(staged, model)).choices[0].finish_reason == "length"
    with pytest.raises(LengthFinishReasonError):  # how this client says it of a stream
        await streamed_chat(staged, model)
    for tell in (message, streamed_message):
        assert (await tell(staged, model)).stop_reason == "max_tokens"


@pytest.mark.parametrize("model", MODELS)
async def test_every_lease_ends(staged: Stage, model: str) -> None:
    for ask in (chat, streamed_chat, message, streamed_message):
        await ask(staged, model)
        await until(staged.front.is_quiet)
        latest = (await staged.front.records())[0]
        outcome = latest["outcome"]
        counted = outcome["prompt_tokens"], outcome["cached_tokens"], outcome["completion_tokens"]
        assert (outcome["end"], outcome["finish"], counted) == ("finished", "stop", (11, 4, 3))
