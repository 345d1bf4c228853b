"""What clients send to real engines through the product, and what they get back."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.asks import (
    ANSWER,
    BOUND,
    MESSAGES,
    SYSTEM,
    Request,
    chat,
    complete,
    known,
    prompt,
)
from tests.vllm.mix import TOOLS
from tests.vllm.model import ADAPTER, BLOCK
from tests.vllm.product import Answer, Product
from tests.vllm.servers import BLOCKS, Server
from tests.vllm.witness import Witness
from tests.waiting import until

pytestmark = pytest.mark.vllm

CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call-1",
            "type": "function",
            # Not as any library would print it: the engine reads it, and its template prints it.
            "function": {"name": "weather", "arguments": '{"place":"Zürich" ,"days":[1,2]}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call-1", "content": "Sun, then rain. " * 20}
PARTS = [{"type": "text", "text": "What is"}, {"type": "text", "text": " a tuple?"}]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(chat(), id="a chat"),
        pytest.param(chat(messages=[SYSTEM, {"role": "user", "content": PARTS}]), id="parts"),
        pytest.param(chat(stream=True), id="a stream"),
        pytest.param(
            chat(stream=True, stream_options={"include_usage": True}), id="a stream with usage"
        ),
        pytest.param(chat(tools=TOOLS), id="tools"),
        pytest.param(chat(messages=[*MESSAGES, CALLED, RESULT], tools=TOOLS), id="a tool result"),
        pytest.param(chat(messages=[*MESSAGES, CALLED, RESULT]), id="a result without tools"),
        pytest.param(chat(chat_template_kwargs={"enable_thinking": False}), id="template options"),
        pytest.param(
            chat(
                messages=[*MESSAGES, {"role": "assistant", "content": "A list is"}],
                continue_final_message=True,
                add_generation_prompt=False,
            ),
            id="an answer to go on with",
        ),
        pytest.param(complete("The import statement " * 80), id="a text"),
        pytest.param(complete(prompt(1)), id="token ids"),
        pytest.param(complete(prompt(2, 6 * BLOCK)), id="token ids of whole blocks"),
        pytest.param(complete(prompt(3), stream=True), id="a stream from token ids"),
        pytest.param(complete(prompt(4), cache_salt="tenant"), id="a salt"),
        pytest.param(complete(prompt(5), model=ADAPTER), id="an adapter"),
        pytest.param(chat(model=ADAPTER), id="a chat with an adapter"),
    ],
)
async def test_the_same_request_again_is_found_where_it_was(
    front: Product, request_: Request
) -> None:
    first = await front.ask(*request_)
    await front.until_known(*request_, first)
    second = await front.ask(*request_)
    for answer in (first, second):
        assert answer.well, answer
        outcome = answer.record["outcome"]
        assert answer.record["prompt_tokens"] == outcome["prompt_tokens"]
        assert answer.record["tokens"] == "exact"
        assert outcome["completion_tokens"] == ANSWER["max_tokens"]
    assert (first.predicted, first.reported) == (0, 0)
    assert second.engine == first.engine
    assert second.text == first.text != ""
    assert second.reported is not None and second.reported >= 128
    assert second.beyond is not None and 0 <= second.beyond < BOUND


async def test_turns_of_a_chat_stay_and_are_found_ever_deeper(front: Product) -> None:
    answers: list[Answer] = []
    messages: list[dict[str, Any]] = MESSAGES
    for turn in range(4):
        request = chat(messages=messages, max_tokens=40)
        answer = await front.ask(*request)
        assert answer.well
        await front.until_known(*request, answer)
        answers.append(answer)
        said = {"role": "assistant", "content": answer.text}
        messages = [*messages, said, {"role": "user", "content": f"And then {turn}?"}]
    assert len({answer.engine for answer in answers}) == 1
    reported = [answer.reported or 0 for answer in answers]
    assert reported == sorted(set(reported)), "each turn finds more than the one before"
    assert [answer for answer in answers if not 0 <= (answer.beyond or 0) < BOUND] == []


async def test_prompts_side_by_side_are_not_compared_and_not_spoilt(front: Product) -> None:
    several = [
        complete([prompt(20), prompt(21)]),
        complete(prompt(20), n=2, temperature=1.0),
        complete(prompt(20), echo=True),
        complete(prompt(20), prompt_logprobs=1),
    ]
    for request in several:
        answer = await front.ask(*request)
        assert answer.well, answer
        await front.until_known(*complete(prompt(20)), answer)
        assert answer.predicted is None or 0 <= (answer.beyond or 0) < BOUND
    last = await front.ask(*complete(prompt(20)))
    assert last.reported == 192
    assert last.beyond is not None and 0 <= last.beyond < BOUND


async def test_an_adapter_a_salt_and_the_base_share_nothing(front: Product) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"model": ADAPTER},
        {"cache_salt": "one"},
        {"cache_salt": "two"},
        {"cache_salt": ADAPTER},
        {"model": ADAPTER, "cache_salt": "one"},
    ]
    for kind in kinds:
        first = await front.ask(*complete(prompt(30), **kind))
        await front.until_known(*complete(prompt(30), **kind), first)
        assert (first.predicted, first.reported) == (0, 0), kind
    for kind in kinds:
        second = await front.ask(*complete(prompt(30), **kind))
        assert second.reported == 192, kind
        assert second.predicted == 192, kind


async def test_an_adapter_that_comes_later_is_used_where_it_is(
    front: Product, pair: tuple[Server, Server], adapter: Path
) -> None:
    _, server = pair
    name = {"lora_name": "late-adapter"}
    request = complete(prompt(35), model=name["lora_name"])

    async def is_served() -> bool:
        return (await front.ask(*request)).status == 200

    async def is_gone() -> bool:
        return (await front.ask(*request)).status == 404

    assert (await front.ask(*request)).status == 404
    await asyncio.to_thread(
        server.post, "/v1/load_lora_adapter", {**name, "lora_path": str(adapter)}
    )
    try:
        await until(is_served)
        await known(front, request)
        again = await front.ask(*request)
        assert again.engine == server.id
        assert (again.predicted, again.reported) == (192, 192)
    finally:
        await asyncio.to_thread(server.post, "/v1/unload_lora_adapter", name)
    await until(is_gone)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(complete(prompt(40, 1100)), id="too long"),
        pytest.param(complete([99_999]), id="no such token"),
        pytest.param(chat(temperature=-1), id="a bad temperature"),
        pytest.param(chat(stream=True, temperature=-1), id="a bad temperature of a stream"),
        pytest.param(complete(prompt(41), max_tokens=5000), id="too long an answer"),
    ],
)
async def test_a_refusal_is_the_engines_own(
    front: Product, pair: tuple[Server, Server], request_: Request
) -> None:
    path, body = request_
    answer = await front.ask(path, body)
    async with front.session.post(pair[0].url + path, json=body) as direct:
        assert (answer.status, answer.body) == (direct.status, await direct.json())
    assert answer.record["outcome"]["end"] == "rejected"


async def test_an_answer_is_what_the_engine_would_have_said(
    front: Product, pair: tuple[Server, Server]
) -> None:
    called = chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    for path, body in (chat(), called, complete(prompt(50), logprobs=2)):
        answer = await front.ask(path, body)
        async with front.session.post(pair[0].url + path, json=body) as direct:
            said = await direct.json()
        for one in (answer.body, said):
            for name in ("id", "created", "usage"):  # the second one hits what the first left
                one.pop(name)
        assert json.dumps(answer.body, sort_keys=True) == json.dumps(said, sort_keys=True)


async def test_what_an_engine_evicts_is_promised_no_more(
    front: Product, pair: tuple[Server, Server]
) -> None:
    kept, gone = prompt(60, 320), prompt(61, 320)
    began = time.time()
    with contextlib.ExitStack() as watched:
        witnesses = [watched.enter_context(Witness.of(server)) for server in pair]
        for each in (gone, kept):
            await known(front, complete(each))
        blocks = 2 * (BLOCKS - 1)  # of both engines
        for seed in range(blocks * BLOCK // 640 + 2):
            await known(front, complete(prompt(1000 + seed, 640)))
            assert (await front.ask(*complete(kept))).well
        ended = time.time()
        evicted = [
            sum(w.evicted(p, (None, None), began, ended) for w in witnesses) for p in (gone, kept)
        ]
    assert evicted == [10, 0]
    again = await front.ask(*complete(gone))
    assert (again.predicted, again.reported) == (0, 0)
    touched = await front.ask(*complete(kept))
    assert touched.reported == 288
    assert touched.beyond is not None and 0 <= touched.beyond < BOUND


async def test_tools_that_must_not_be_called_are_routed_by_load(front: Product) -> None:
    """Whether they are in the prompt is an option of the engine, which here renders for nobody."""
    answer = await front.ask(*chat(tools=TOOLS, tool_choice="none"))
    assert answer.well, answer
    assert (answer.record["tokens"], answer.record["prompt_tokens"]) == ("unknown", None)
