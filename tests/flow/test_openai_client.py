"""The official `openai` client before simulated engines, by our door and through Envoy."""

import asyncio
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.fronts import EMBEDDER, SECRET, Front
from tests.simulated import MODEL
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.asyncio(loop_scope="module")]

ASK: list[Any] = [
    {"role": "system", "content": "You answer questions about the Python language."},
    {"role": "user", "content": "What is a generator?"},
]
ABORT_S = 1.0
"""In which engines hear that a client has gone."""


async def test_a_chat_and_its_stream_say_the_same(served: Front) -> None:
    chats = served.openai.chat.completions
    whole = await chats.create(model=MODEL, messages=ASK)
    assert (whole.object, whole.model) == ("chat.completion", MODEL)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens > 10
    async with chats.stream(
        model=MODEL, messages=ASK, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type async for event in stream}
        streamed = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.usage is not None
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens
    await until(served.is_quiet)
    outcome = (await served.records())[0]["outcome"]
    assert outcome["completion_tokens"] == whole.usage.completion_tokens


async def test_usage_is_in_a_stream_only_if_it_was_asked_for(served: Front) -> None:
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    await until(served.is_quiet)
    assert (await served.records())[0]["outcome"]["completion_tokens"] == 4


async def test_several_choices_and_their_stream(served: Front) -> None:
    chats = served.openai.chat.completions
    whole = await chats.create(model=MODEL, messages=ASK, n=2, max_tokens=8)
    texts: dict[int, str] = {}
    async for chunk in await chats.create(
        model=MODEL, messages=ASK, n=2, max_tokens=8, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {c.index: c.message.content for c in whole.choices}
    assert set(texts) == {0, 1}


async def test_completions_of_a_text_and_of_tokens(served: Front) -> None:
    completions = served.openai.completions
    whole = await completions.create(model=MODEL, prompt="def f(x):", max_tokens=8)
    stream = await completions.create(model=MODEL, prompt="def f(x):", max_tokens=8, stream=True)
    text = "".join([chunk.choices[0].text async for chunk in stream])
    assert (text, whole.object) == (whole.choices[0].text, "text_completion")
    tokens = await completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
    assert tokens.usage is not None
    assert (tokens.usage.prompt_tokens, tokens.usage.completion_tokens) == (3, 3)


def sync_calls(url: str) -> tuple[str | None, str]:
    """Do the same with the client that blocks."""
    with OpenAI(base_url=f"{url}/v1", api_key=SECRET, max_retries=0, timeout=10) as client:
        chats = client.chat.completions
        whole = chats.create(model=MODEL, messages=ASK, max_tokens=8)
        with chats.create(model=MODEL, messages=ASK, max_tokens=8, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return whole.choices[0].message.content, text


async def test_the_client_that_blocks_works_as_well(served: Front) -> None:
    whole, text = await asyncio.to_thread(sync_calls, served.url)
    assert whole == text


async def test_a_response_its_stream_and_what_goes_on_from_it(served: Front) -> None:
    responses = served.openai.responses
    asked: Any = {"model": MODEL, "instructions": "Be brief.", "input": "What is a list?"}
    whole = await responses.create(**asked, max_output_tokens=12)
    assert (whole.object, whole.status) == ("response", "incomplete")
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    async with responses.stream(**asked, max_output_tokens=12) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == whole.output_text
    latest, engines = whole, {(await served.records())[1]["decision"]["id"]}
    for question in ("And a tuple?", "And a set?", "And a dict?"):
        latest = await responses.create(
            model=MODEL, input=question, previous_response_id=latest.id, max_output_tokens=4
        )
        engines.add((await served.records())[0]["decision"]["id"])
    assert len(engines) == 1
    assert latest.usage is not None
    assert latest.usage.input_tokens > whole.usage.input_tokens + 12


async def test_what_goes_on_from_a_response_that_nobody_knows_is_not_found(served: Front) -> None:
    with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
        await served.openai.responses.create(
            model=MODEL, input="And?", previous_response_id="resp_none"
        )


async def test_embeddings_come_from_the_engine_that_makes_them(served: Front) -> None:
    made = await served.openai.embeddings.create(model=EMBEDDER, input=["one", "two"])
    assert [each.index for each in made.data] == [0, 1]
    assert len(made.data[0].embedding) == len(made.data[1].embedding) > 1
    assert made.data[0].embedding != made.data[1].embedding
    floats = await served.openai.embeddings.create(
        model=EMBEDDER, input="one", encoding_format="float"
    )
    assert floats.data[0].embedding == pytest.approx(made.data[0].embedding, abs=1e-6)


async def test_an_error_of_the_engines_is_passed_on(served: Front) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as raised:
        await served.openai.chat.completions.create(model=MODEL, messages=ASK, temperature=-1)
    assert raised.value.param == "temperature"
    long: Any = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await served.openai.chat.completions.create(model=MODEL, messages=long, stream=True)


async def test_a_stream_that_is_closed_ends_the_engines_work(served: Front) -> None:
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=600, stream=True, extra_body={"ignore_eos": True}
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert await served.working() == 1
    await stream.close()

    async def idle() -> bool:
        return await served.working() == 0 and await served.is_quiet()

    await until(idle, ABORT_S)
    outcome = (await served.records())[0]["outcome"]
    assert outcome["end"] == "aborted"
    assert 0 < outcome["completion_tokens"] < 600


async def test_a_call_that_is_cancelled_ends_the_engines_work(served: Front) -> None:
    asking = asyncio.create_task(
        served.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=600, extra_body={"ignore_eos": True}
        )
    )

    async def works() -> bool:
        return await served.working() == 1

    await until(works)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def idle() -> bool:
        return await served.working() == 0 and await served.is_quiet()

    await until(idle, ABORT_S)


async def test_models_are_listed_and_shown(served: Front) -> None:
    models = {each.id async for each in served.openai.models.list()}
    assert models == {MODEL, EMBEDDER}
    shown = await served.openai.models.retrieve(MODEL)
    assert (shown.id, shown.object) == (MODEL, "model")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await served.openai.models.retrieve("none")
