"""An answer on its way to its client: as it came, or in its own API's words."""

import json
from typing import Any

import pytest

from coordinator.apis import Api
from coordinator.doors.carriers import Carriage
from coordinator.limits import Usage

CHAT, MESSAGES = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES
SAID: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "opus",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5},
}


def carriage(client: Api = CHAT, backend: Api = CHAT, is_foreign: bool = False) -> Carriage:
    return Carriage(client, backend, "m", "d-1", 7, is_foreign)


def test_an_engines_answer_passes_to_the_byte() -> None:
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3}})
    told = carriage().answer(body.encode())
    assert told == (body.encode(), Usage(prompt_tokens=3), "stop")
    assert carriage().answer(b"no JSON") == (b"no JSON", Usage(), None)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        pytest.param(b'{"choices": []}', True, id="an answer"),
        pytest.param(b"<html>", False, id="a page"),
        pytest.param(b"", False, id="nothing"),
        pytest.param(b'{"error": {"message": "your quota"}}', False, id="an error with 200"),
    ],
)
def test_what_a_provider_says_with_200_may_be_no_answer(body: bytes, passes: bool) -> None:
    assert (carriage(is_foreign=True).answer(body) is not None) is passes


def test_another_apis_answer_is_put_into_the_clients() -> None:
    told = carriage(CHAT, MESSAGES, True).answer(json.dumps(SAID).encode())
    assert told is not None
    body, usage, finish = told
    said = json.loads(body)
    assert (said["model"], said["created"]) == ("m", 7)
    assert said["choices"][0]["message"]["content"] == "Hello."
    assert said["usage"]["prompt_tokens"] == usage.prompt_tokens == 100
    assert (usage.cached_tokens, usage.completion_tokens, finish) == (90, 5, "stop")
    assert carriage(CHAT, MESSAGES, True).answer(b"<html>") is None


ACCOUNT = {"error": {"message": "your organization is over its quota", "type": "x"}}
REQUEST = {"error": {"message": "temperature must be at most 2", "type": "x"}}


def test_an_engines_error_passes_and_is_put_into_anthropics_shape() -> None:
    raw = json.dumps(ACCOUNT).encode()
    assert carriage().failure(400, raw, "r-1") == raw
    said = json.loads(carriage(MESSAGES, MESSAGES).failure(400, raw, "r-1"))
    assert said["error"] == {
        "type": "invalid_request_error",
        "message": ACCOUNT["error"]["message"],
    }
    assert said["request_id"] == "r-1"


@pytest.mark.parametrize("backend", [CHAT, MESSAGES])
def test_of_a_providers_words_only_those_about_the_request_reach_a_client(backend: Api) -> None:
    told = carriage(CHAT, backend, True)
    kept = json.loads(told.failure(400, json.dumps(REQUEST).encode(), "r"))
    assert kept["error"]["message"] == REQUEST["error"]["message"]
    for status, raw in ((400, ACCOUNT), (500, REQUEST)):
        said = json.loads(told.failure(status, json.dumps(raw).encode(), "r"))
        assert said["error"]["message"].startswith("the provider ")


@pytest.mark.parametrize("is_foreign", [False, True])
def test_an_error_in_a_stream_is_put_in_our_words_only_where_it_is_a_providers(
    is_foreign: bool,
) -> None:
    stream = carriage(is_foreign=is_foreign).stream(usage_asked=True)
    out = stream.feed(b"data: " + json.dumps(ACCOUNT).encode() + b"\n\n") + stream.close()
    assert stream.failed
    assert (b"organization" in out) is not is_foreign


def test_a_stream_of_another_api_is_written_anew() -> None:
    stream = carriage(CHAT, MESSAGES, True).stream(usage_asked=False)
    start = {"type": "message_start", "message": SAID | {"content": []}}
    delta = {"type": "text_delta", "text": "Hello."}
    events: list[dict[str, Any]] = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": SAID["usage"]},
        {"type": "message_stop"},
    ]
    out = b""
    for event in events:
        raw = json.dumps(event).encode()
        out += stream.feed(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), raw))
    assert stream.done and stream.has_content
    assert b'"content":"Hello."' in out and out.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in out
    assert stream.usage.completion_tokens == 5
