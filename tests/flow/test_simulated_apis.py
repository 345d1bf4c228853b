"""The simulated engine's other APIs: messages, responses, embeddings, held against the captures."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.exchanges import again, recorded, shape
from tests.simulated import LIMIT_S, MODEL, engine, post

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, str]]:
    with engine("--store-responses") as listening:
        yield listening


@pytest.fixture(scope="module")
def pooling() -> Iterator[dict[str, str]]:
    with engine("--pooling") as listening:
        yield listening


@pytest.fixture
async def client(shared: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(f"http://{shared['http']}", timeout=timeout) as session:
        yield session


def events(stream: str) -> list[tuple[str, Any]]:
    """Return a stream's events: the name on the wire, which is the type too, and the data."""
    told = []
    for event in stream.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        told.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert [name for name, _ in told] == [data["type"] for _, data in told]
    return told


@pytest.mark.parametrize(
    "name",
    [
        "messages_count_tokens",
        "error_unknown_model_messages",
        "error_too_long_messages",
        "error_bad_json_messages",
    ],
)
async def test_answers_equal_the_recorded_ones(client: aiohttp.ClientSession, name: str) -> None:
    expected = recorded(name)
    response, text = await again(client, name)
    assert (response.status, json.loads(text)) == (expected["status"], expected["body"])


@pytest.mark.parametrize("name", ["messages", "messages_again_cached", "responses"])
async def test_answers_have_the_recorded_shape(client: aiohttp.ClientSession, name: str) -> None:
    response, text = await again(client, name)
    mine, theirs = json.loads(text), recorded(name)["body"]
    assert response.status == 200
    assert shape(mine) == shape(theirs)
    assert list(mine) == list(theirs)


async def test_a_message_is_counted_as_the_recorded_one(client: aiohttp.ClientSession) -> None:
    await post(client, "/reset_prefix_cache")
    for expected in ((30, 96, 0), (30, 0, 96)):
        _, text = await again(client, "messages")
        usage = json.loads(text)["usage"]
        fresh, written = usage["input_tokens"], usage["cache_creation_input_tokens"]
        assert (fresh, written, usage["cache_read_input_tokens"]) == expected
    # The engine that was recorded knew the prompt from before.
    assert usage == recorded("messages")["body"]["usage"]


async def test_a_stream_of_a_message_has_the_recorded_events(
    client: aiohttp.ClientSession,
) -> None:
    response, text = await again(client, "messages_stream")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    mine, theirs = events(text), events(recorded("messages_stream")["sse_raw"])
    # Tokens may share an event, or make none.
    assert list(dict.fromkeys(n for n, _ in mine)) == list(dict.fromkeys(n for n, _ in theirs))
    known = dict(theirs)
    assert all(list(data) == list(known[name]) for name, data in mine)
    assert shape(dict(mine)) == shape(known)


async def test_a_message_and_its_stream_say_what_the_chat_beneath_says(
    client: aiohttp.ClientSession,
) -> None:
    turns = [{"role": "user", "content": "tell me about generators"}]
    chat = await post(
        client, "/v1/chat/completions", model=MODEL, messages=turns, max_completion_tokens=200
    )
    body = {"model": MODEL, "messages": turns, "max_tokens": 200}
    whole = await post(client, "/v1/messages", **body)
    async with client.post("/v1/messages", json={**body, "stream": True}) as response:
        streamed = events(await response.text())
    deltas = [data["delta"] for name, data in streamed if name == "content_block_delta"]
    expected = chat["choices"][0]["message"]["content"]
    assert whole["content"] == [{"type": "text", "text": expected}]
    assert "".join(delta["text"] for delta in deltas) == expected
    assert whole["stop_reason"] == dict(streamed)["message_delta"]["delta"]["stop_reason"]


async def test_a_stream_of_a_response_follows_its_grammar(client: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "input": "What is a list?", "max_output_tokens": 16}
    whole = await post(client, "/v1/responses", **body)
    async with client.post("/v1/responses", json={**body, "stream": True}) as response:
        streamed = events(await response.text())
    names = list(dict.fromkeys(name for name, _ in streamed))
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in streamed] == list(range(len(streamed)))
    last = dict(streamed)["response.completed"]["response"]
    assert shape(last) == shape(whole)
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert dict(streamed)["response.created"]["response"]["id"] == last["id"]


async def test_a_response_is_kept_and_gone_on_from(client: aiohttp.ClientSession) -> None:
    first = await post(client, "/v1/responses", model=MODEL, input="hello", max_output_tokens=40)
    async with client.get(f"/v1/responses/{first['id']}") as answer:
        assert await answer.json() == first
    body = {"model": MODEL, "input": "and?", "previous_response_id": first["id"]}
    second = await post(client, "/v1/responses", **body, max_output_tokens=4)
    said = first["output"][0]["content"][0]["text"]
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": said}]
    again_whole = await post(
        client,
        "/v1/responses",
        model=MODEL,
        input=[*turns, {"role": "user", "content": "and?"}],
        max_output_tokens=4,
    )
    assert second["usage"]["input_tokens"] == again_whole["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/v1/responses/resp_no", 404, id="none such"),
        pytest.param("POST", "/v1/responses/resp_no/cancel", 404, id="none to cancel"),
        pytest.param("DELETE", "/v1/responses/resp_no", 405, id="vLLM deletes none"),
        pytest.param("POST", "/v1/embeddings", 404, id="a model that does not embed"),
    ],
)
async def test_what_there_is_not(
    client: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with client.request(method, path, json={}) as answer:
        assert answer.status == status


async def test_an_engine_keeps_no_responses_unless_it_is_told_to() -> None:
    with engine() as listening:
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            made = await post(client, "/v1/responses", model=MODEL, input="hello")
            async with client.get(f"/v1/responses/{made['id']}") as answer:
                assert answer.status == 404


async def test_a_pooling_engine_embeds(pooling: dict[str, str]) -> None:
    async with aiohttp.ClientSession(f"http://{pooling['http']}") as client:
        told = await post(client, "/v1/embeddings", model=MODEL, input=["hello", "hello", "x"])
        one, two, other = (each["embedding"] for each in told["data"])
        assert (len(one), one == two, one == other) == (8, True, False)
        assert told["usage"]["prompt_tokens"] == told["usage"]["total_tokens"] > 0
        async with client.post("/v1/chat/completions", json={}) as answer:
            assert answer.status == 404
