"""What a real engine was recorded to say comes through the gateway unchanged, in every API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.apis import COUNT_TOKENS, PATHS
from coordinator.config import EngineSpec
from tests.exchanges import HTTP, recorded
from tests.gateways import Running, coordinator
from tests.replayer import Replayer, Said, replayers
from tests.simulated import MODEL

pytestmark = pytest.mark.flow


def _reaches_an_engine(exchange: Any) -> bool:
    """Whether it is the door's to pass on: the path, the model and the JSON are good."""
    request = exchange.get("request", {})
    body = request.get("body")
    return (
        request.get("path") in (*PATHS, COUNT_TOKENS)
        and request["method"] == "POST"
        and request["headers"]["Content-Type"] == "application/json"
        and isinstance(body, dict)
        and body.get("model") == MODEL
        and body.get("cache_salt") != ""
        and bool({"messages", "prompt", "input"} & body.keys())
    )


CORPUS = [
    name
    for name in sorted(p.stem for p in HTTP.glob("*.json"))
    if _reaches_an_engine(recorded(name))
]


@asynccontextmanager
async def before(*servers: Replayer, **settings: Any) -> AsyncIterator[Running]:
    async with replayers(*servers):
        specs = [EngineSpec(url=server.url) for server in servers]
        async with coordinator(*specs, **settings) as running:
            yield running


async def test_recorded_exchanges_pass_unchanged() -> None:
    engine = Replayer()
    async with before(engine) as running:
        for name in CORPUS:
            exchange = recorded(name)
            request, engine.said = exchange["request"], Said.of(exchange)
            raw = json.dumps(request["body"]).encode()
            headers = {**request["headers"], "anthropic-beta": "tools-2024"}
            url = running.http + request["path"]
            async with running.session.post(url, data=raw, headers=headers) as answer:
                body = await answer.read()
            method, path, sent_headers, sent = engine.asked[-1]
            assert (answer.status, body) == (exchange["status"], engine.said.body), name
            assert answer.headers["content-type"] == engine.said.content_type
            assert "access-control-allow-origin" not in answer.headers
            assert (method, path) == ("POST", request["path"])
            assert sent_headers["anthropic-beta"] == "tools-2024"
            if name != "chat_stream_plain":  # whose usage we ask for
                assert sent == raw, name
        assert await running.inflight() == [0]


def test_the_corpus_holds_every_api_that_was_recorded() -> None:
    paths = {recorded(name)["request"]["path"] for name in CORPUS}
    assert paths == {*PATHS, COUNT_TOKENS} - {"/v1/embeddings"}
    assert len(CORPUS) >= 20


OPENING = 'event: message_start\ndata: {"type":"message_start","message":{"id":"a"}}\n\n'


@pytest.mark.parametrize(
    ("path", "events", "status"),
    [
        pytest.param(
            "/v1/chat/completions",
            'data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}\n\n',
            400,
            id="a chat",
        ),
        pytest.param(
            "/v1/messages",
            OPENING
            + 'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error"}}\n\n',
            400,
            id="messages",
        ),
        pytest.param(
            "/v1/responses",
            'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
            'event: error\ndata: {"type":"error","code":"server_error","message":"no"}\n\n',
            500,
            id="a response",
        ),
    ],
)
async def test_an_error_before_any_content_is_an_answer_with_a_status(
    path: str, events: str, status: int
) -> None:
    engine = Replayer(Said.events(events.encode()))
    body = {"model": MODEL, "stream": True, "max_tokens": 9, "input": "x"}
    body["messages"] = [{"role": "user", "content": "x"}]
    async with before(engine) as running:
        code, headers, said = await running.post(path, body)
        assert (code, headers["content-type"]) == (status, "application/json")
        assert "error" in json.loads(said)
        assert (await running.record(headers))["outcome"]["status"] == status
        assert await running.inflight() == [0]


async def test_a_stream_that_begins_with_a_full_queue_is_another_engines_turn() -> None:
    full = Said.events(b'data: {"error":{"message":"full","code":503}}\n\n')
    engines = Replayer(full), Replayer(full)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with before(*engines) as running:
        status, headers, said = await running.post("/v1/chat/completions", body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(said) == {"error": {"message": "full", "code": 503}}
        assert [len(engine.asked) for engine in engines] == [1, 1]
        attempts = (await running.record(headers))["attempts"]
        assert [attempt["repeat"] for attempt in attempts] == ["safe", "safe"]
        well = Said.of(recorded("chat_stream_usage"))
        engines[0].said = well
        status, headers, said = await running.post("/v1/chat/completions", body)
        assert (status, headers["x-lineside-engine"]) == (200, engines[0].endpoint)
        assert await running.inflight() == [0, 0]


async def test_a_path_that_an_engine_does_not_have_is_said_in_the_clients_words() -> None:
    engine = Replayer(Said(404, b'{"detail":"Not Found"}'))
    async with before(engine) as running:
        body = {"model": MODEL, "input": "x"}
        status, headers, said = await running.post("/v1/embeddings", body)
        assert (status, json.loads(said)["error"]["message"]) == (
            404,
            f"what serves `{MODEL}` does not have this API; use another",
        )
        assert (await running.record(headers))["refusal"]["reason"] == "not_served"


async def test_an_engines_openai_error_under_messages_gets_anthropics_shape() -> None:
    said = b'{"error":{"message":"1 validation error","type":"Bad Request","code":400}}'
    engine = Replayer(Said(400, said))
    async with before(engine) as running:
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        status, headers, told = await running.post("/v1/messages", body, {"x-request-id": "r"})
        assert (status, json.loads(told)) == (
            400,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "1 validation error"},
                "request_id": "r",
            },
        )
        assert headers["request-id"] == "r"


async def test_a_clients_key_goes_to_no_engine() -> None:
    engine = Replayer(Said.of(recorded("messages")))
    keys = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    async with before(engine) as running:
        await running.post("/v1/messages", recorded("messages")["request"]["body"], keys)
        _, _, headers, _ = engine.asked[-1]
        assert ("x-api-key" in headers, headers["anthropic-version"]) == (False, "2023-06-01")


async def test_a_stored_response_is_shown_as_a_stream() -> None:
    made = recorded("responses")
    engine = Replayer(Said.of(made))
    async with before(engine) as running:
        await running.post("/v1/responses", made["request"]["body"])
        raw = b'event: response.created\ndata: {"type":"response.created"}\n\n'
        engine.said = Said.events(raw)
        path = f"/v1/responses/{made['body']['id']}?stream=true&starting_after=3"
        async with running.session.get(running.http + path) as answer:
            assert (answer.status, await answer.read()) == (200, raw)
            assert answer.headers["content-type"] == engine.said.content_type
        assert engine.asked[-1][:2] == ("GET", path)


async def test_an_api_is_known_by_its_path_before_any_header() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    async with before(Replayer()) as running:
        _, _, said = await running.post("/v1/chat/completions", {}, headers)
        assert set(json.loads(said)) == {"error"}
        _, _, said = await running.post("/v1/no", {}, headers)
        assert json.loads(said)["type"] == "error"


@pytest.mark.parametrize("bytes_", [10_000, 3_000_000], ids=["held", "too much to be held"])
async def test_a_first_token_is_noted_however_long_its_announcement_is(bytes_: int) -> None:
    announced = {"type": "response.created", "response": {"instructions": "x" * bytes_}}
    delta = {"type": "response.output_text.delta", "delta": "x"}
    ended = {"type": "response.completed", "response": {"status": "completed"}}
    raw = b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode()
        for each in (announced, delta, ended)
    )
    async with before(Replayer(Said.events(raw))) as running:
        body = {"model": MODEL, "input": "x", "stream": True}
        status, headers, said = await running.post("/v1/responses", body)
        assert (status, said) == (200, raw)
        outcome = (await running.record(headers))["outcome"]
        assert (outcome["end"], outcome["finish"]) == ("finished", "stop")
        assert outcome["ttft_s"] > 0
