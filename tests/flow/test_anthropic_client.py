"""The official `anthropic` client before simulated engines, by our door and through Envoy."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.fronts import SECRET, Front
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

SYSTEM = "You answer questions about the Python language."
ASK: list[Any] = [{"role": "user", "content": "What is a generator?"}]
ASKED: Any = {"model": MODEL, "system": SYSTEM, "messages": ASK, "max_tokens": 60}
ABORT_S = 1.0
"""In which engines hear that a client has gone."""


async def test_a_message_and_its_stream_say_the_same(served: Front) -> None:
    whole = await served.anthropic.messages.create(**ASKED)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", MODEL)
    assert whole.stop_reason == "end_turn"
    async with served.anthropic.messages.stream(**ASKED) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["text"]
    said = [block.text for block in whole.content if block.type == "text"]
    assert [text] == said
    assert (final.stop_reason, final.usage.output_tokens) == (
        "end_turn",
        whole.usage.output_tokens,
    )
    await until(served.is_quiet)
    outcome = (await served.records())[0]["outcome"]
    assert outcome["completion_tokens"] == whole.usage.output_tokens


async def test_events_come_in_the_order_of_the_api(served: Front) -> None:
    stream = await served.anthropic.messages.create(**ASKED, stream=True)
    kinds = [event.type async for event in stream]
    assert list(dict.fromkeys(kinds)) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_a_count_is_what_the_message_is_charged(served: Front) -> None:
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    tools: Any = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    for more in ({}, {"tools": tools}):
        counted = await served.anthropic.messages.count_tokens(**asked, **more)
        whole = await served.anthropic.messages.create(**ASKED, **more)
        usage = whole.usage
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert counted.input_tokens == usage.input_tokens + cached > 10


def sync_calls(url: str) -> tuple[list[str], str, int]:
    """Do the same with the client that blocks."""
    with Anthropic(base_url=url, api_key=SECRET, max_retries=0, timeout=10) as client:
        whole = client.messages.create(**ASKED)
        with client.messages.stream(**ASKED) as stream:
            text = "".join(stream.text_stream)
        count = client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
        return [block.text for block in whole.content if block.type == "text"], text, count


async def test_the_client_that_blocks_works_as_well(served: Front) -> None:
    said, text, count = await asyncio.to_thread(sync_calls, served.url)
    assert said == [text]
    assert count > 0


async def test_a_long_conversation_with_blocks_and_tools_is_answered(served: Front) -> None:
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "w", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "fine"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    system: Any = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    tools: Any = [{"name": "w", "input_schema": {"type": "object", "properties": {}}}]
    asked: Any = {"model": MODEL, "messages": turns, "system": system, "tools": tools}
    whole = await served.anthropic.messages.create(**asked, max_tokens=8)
    assert whole.stop_reason == "max_tokens"
    async with served.anthropic.messages.stream(**asked, max_tokens=8) as stream:
        streamed = await stream.get_final_message()
    assert len(whole.content) == 1
    said = [each.content[0].model_dump(include={"type", "text"}) for each in (whole, streamed)]
    assert said[0] == said[1]


async def test_errors_are_the_clients_own(served: Front) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await served.anthropic.messages.create(**{**ASKED, "model": "none"})
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await served.anthropic.messages.count_tokens(model="none", messages=ASK)
    long: Any = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(anthropic.BadRequestError, match="maximum context length") as raised:
        await served.anthropic.messages.create(**{**ASKED, "messages": long})
    body: Any = raised.value.body
    assert (body["type"], set(body["error"])) == ("error", {"type", "message"})


async def test_a_stream_that_is_closed_ends_the_engines_work(served: Front) -> None:
    asked: Any = {**ASKED, "max_tokens": 600, "extra_body": {"ignore_eos": True}}
    turns = [{"role": "user", "content": "Tell me everything."}]
    for engine in served.engines:
        await engine.fault("slow", factor=20)
    try:
        async with served.anthropic.messages.stream(**{**asked, "messages": turns}) as stream:
            async for text in stream.text_stream:
                assert text
                break
            assert await served.working() == 1
        await until_idle(served)
    finally:
        for engine in served.engines:
            await engine.heal()
    outcome = (await served.records())[0]["outcome"]
    assert outcome["end"] == "aborted"


async def until_idle(served: Front) -> None:
    async def idle() -> bool:
        return await served.working() == 0 and await served.is_quiet()

    await until(idle, ABORT_S)


async def test_models_are_listed_in_anthropics_words(served: Front) -> None:
    models = [model async for model in served.anthropic.models.list()]
    assert MODEL in {model.id for model in models}
    assert (await served.anthropic.models.retrieve(MODEL)).type == "model"
