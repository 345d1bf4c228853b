"""Messages, responses and token counts of real engines: their tokens and keys are ours."""

from typing import Any

import pytest

from tests.vllm.asks import BOUND, MESSAGES, SYSTEM, Request, chat, known
from tests.vllm.mix import TOOLS
from tests.vllm.model import NAME
from tests.vllm.product import Product

pytestmark = pytest.mark.vllm

LEAD, ASK = SYSTEM["content"], MESSAGES[1]
TOOL = TOOLS[0]["function"]
ANTHROPIC_TOOL = {
    "name": TOOL["name"],
    "description": TOOL.get("description"),
    "input_schema": TOOL["parameters"],
}
USE = {"type": "tool_use", "id": "call-1", "name": TOOL["name"], "input": {"place": "Zürich"}}
RESULT = {"type": "tool_result", "tool_use_id": "call-1", "content": "Sun, then rain. " * 20}
CALL = {"type": "function_call", "call_id": "c", "name": TOOL["name"], "arguments": '{"x": [1]}'}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "Sun, then rain. " * 20}


def message(*turns: Any, **more: Any) -> Request:
    body = {"model": NAME, "messages": [*(turns or (ASK,))], "max_tokens": 8, "temperature": 0}
    return "/v1/messages", {**body, "system": LEAD, **more}


def response(given: Any = ASK["content"], **more: Any) -> Request:
    body = {"model": NAME, "input": given, "max_output_tokens": 8, "temperature": 0}
    return "/v1/responses", {**body, "instructions": LEAD, **more}


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(message(), id="a message"),
        pytest.param(message(system=[{"type": "text", "text": LEAD}]), id="a system of blocks"),
        pytest.param(
            message(ASK, {"role": "system", "content": "Be brief."}, ASK), id="a system within"
        ),
        pytest.param(message(tools=[ANTHROPIC_TOOL]), id="a tool"),
        pytest.param(
            message(
                ASK,
                {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]},
                tools=[ANTHROPIC_TOOL],
            ),
            id="a tool's result",
        ),
        pytest.param(
            message(
                ASK,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "It is noon.", "signature": "s"},
                        {"type": "text", "text": "Noon."},
                    ],
                },
                ASK,
            ),
            id="thinking",
        ),
        pytest.param(message(thinking={"type": "disabled"}), id="no thinking"),
        pytest.param(message(cache_salt="tenant"), id="a salt"),
        pytest.param(response(), id="a response"),
        pytest.param(response([{"role": "user", "content": "What?"}]), id="items"),
        pytest.param(
            response(
                [{"role": "user", "content": [{"type": "input_text", "text": "What is a list?"}]}]
            ),
            id="an item of parts",
        ),
        pytest.param(
            response([ASK, CALL, OUTPUT], tools=[{"type": "function", "strict": False, **TOOL}]),
            id="a function's output",
        ),
        pytest.param(response(reasoning={"effort": "low"}), id="an effort"),
    ],
)
async def test_our_tokens_are_the_engines_and_are_found_again(
    front: Product, request_: Request
) -> None:
    first = await known(front, request_)
    second = await front.ask(*request_)
    for answer in (first, second):
        assert answer.well, answer
        assert answer.record["tokens"] == "exact"
        assert answer.record["prompt_tokens"] == answer.record["outcome"]["prompt_tokens"]
    assert second.engine == first.engine
    assert second.reported is not None and second.reported >= 128
    assert second.beyond is not None and 0 <= second.beyond < BOUND


async def test_one_conversation_in_three_apis_is_one_prompt(front: Product) -> None:
    first = await known(front, chat())
    for request in (message(), response()):
        answer = await front.ask(*request)
        assert answer.engine == first.engine
        assert answer.record["prompt_tokens"] == first.record["prompt_tokens"]
        assert answer.beyond is not None and 0 <= answer.beyond < BOUND
        assert answer.predicted is not None and answer.predicted >= 128


@pytest.mark.parametrize(
    "request_",
    [message(), message(ASK, {"role": "system", "content": "Be brief."}, ASK), message(tools=[])],
    ids=["a message", "a system within", "no tools"],
)
async def test_what_is_counted_is_what_is_computed(front: Product, request_: Request) -> None:
    path, body = request_
    counted = await front.ask(path + "/count_tokens", body)
    answer = await front.ask(path, body)
    assert counted.body["input_tokens"] == answer.record["outcome"]["prompt_tokens"]


async def test_what_goes_on_from_a_response_finds_it(front: Product) -> None:
    first = await front.ask(*response())
    engines = set()
    for _ in range(5):
        answer = await front.ask(*response("And?", previous_response_id=first.body["id"]))
        assert answer.well, answer.body
        assert answer.record["outcome"]["prompt_tokens"] > first.record["prompt_tokens"]
        engines.add(answer.engine)
    assert engines == {first.engine}
    url = f"{front.http}/v1/responses/{first.body['id']}"
    async with front.session.get(url) as shown:
        assert (shown.status, (await shown.json())["id"]) == (200, first.body["id"])
