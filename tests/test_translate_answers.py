"""Answers and errors that are not streamed, in the client's shape."""

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from anthropic.types.shared import ErrorResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from coordinator.apis import Api
from coordinator.limits import Usage
from coordinator.translate.answers import Unreadable, error, whole

CHAT, ANTHROPIC, CONVERSE = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE
RESPONSES = Api.OPENAI_RESPONSES
HTTP = Path(__file__).with_name("cases") / "http"
Json = dict[str, Any]
_TYPES: dict[Api, Any] = {CHAT: ChatCompletion, ANTHROPIC: Message, RESPONSES: Response}

USAGE = Usage(prompt_tokens=100, cached_tokens=90, completion_tokens=9)
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a":"ö"}'}},
    {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
]
CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 9,
    "total_tokens": 109,
    "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
ANTHROPIC_USAGE = {
    "input_tokens": 6,
    "output_tokens": 9,
    "cache_creation_input_tokens": 4,
    "cache_read_input_tokens": 90,
}
CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "theirs",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "hi",
                "reasoning": "hm",
                "tool_calls": CALLS,
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": CHAT_USAGE,
}
USES = [
    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"a": "ö"}},
    {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
]
ANTHROPIC_ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "theirs",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s1"},
        {"type": "redacted_thinking", "data": "aWk="},
        {"type": "text", "text": "hi"},
        *USES,
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {**ANTHROPIC_USAGE, "output_tokens_details": {"thinking_tokens": 3}},
}
CONVERSE_ANSWER = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s1"}}},
                {"reasoningContent": {"redactedContent": "aWk="}},
                {"text": "hi"},
                {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"a": "ö"}}},
                {"toolUse": {"toolUseId": "c2", "name": "now", "input": {}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {
        "inputTokens": 6,
        "outputTokens": 9,
        "totalTokens": 109,
        "cacheReadInputTokens": 90,
        "cacheWriteInputTokens": 4,
    },
    "metrics": {"latencyMs": 3},
}
ANSWERS = {CHAT: CHAT_ANSWER, ANTHROPIC: ANTHROPIC_ANSWER, CONVERSE: CONVERSE_ANSWER}


def said(client: Api, backend: Api, answer: Json) -> tuple[Json, Usage, str | None]:
    body, usage, finish = whole(
        client, backend, json.dumps(answer).encode(), "ours", answer_id="7", created=5
    )
    decoded: Json = json.loads(body)
    _TYPES[client].model_validate(decoded, strict=True)
    return decoded, usage, finish


@pytest.mark.parametrize(
    ("backend", "name", "details"),
    [
        pytest.param(ANTHROPIC, "msg_1", {"reasoning_tokens": 3}, id="anthropic"),
        pytest.param(CONVERSE, "chatcmpl-7", None, id="converse"),
    ],
)
def test_an_answer_for_a_client_of_chats(backend: Api, name: str, details: Json | None) -> None:
    usage = {k: v for k, v in CHAT_USAGE.items() if k != "completion_tokens_details"}
    answer, counted, finish = said(CHAT, backend, ANSWERS[backend])
    assert answer == {
        "id": name,
        "object": "chat.completion",
        "created": 5,
        "model": "ours",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "refusal": None,
                    "reasoning": "hm",
                    "tool_calls": CALLS,
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": usage | ({} if details is None else {"completion_tokens_details": details}),
    }
    assert (counted, finish) == (USAGE, "tool_calls")


@pytest.mark.parametrize(
    ("backend", "name", "thoughts"),
    [
        pytest.param(
            CHAT, "chatcmpl-1", [{"type": "thinking", "thinking": "hm", "signature": ""}], id="chat"
        ),
        pytest.param(CONVERSE, "msg_7", ANTHROPIC_ANSWER["content"][:2], id="converse"),
    ],
)
def test_an_answer_for_a_client_of_messages(backend: Api, name: str, thoughts: list[Json]) -> None:
    answer, counted, finish = said(ANTHROPIC, backend, ANSWERS[backend])
    assert answer == {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": "ours",
        "content": [*thoughts, {"type": "text", "text": "hi"}, *USES],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": ANTHROPIC_USAGE,
    }
    assert (counted, finish) == (USAGE, "tool_calls")


@pytest.mark.parametrize("backend", [CHAT, ANTHROPIC, CONVERSE])
def test_an_answer_for_a_client_of_responses(backend: Api) -> None:
    answer, counted, finish = said(RESPONSES, backend, ANSWERS[backend])
    thought = [{"type": "reasoning_text", "text": "hm"}]
    words = [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}]
    done = {"status": "completed"}
    assert answer["output"] == [
        {"type": "reasoning", "id": "rs_7_0", "summary": [], "content": thought},
        {"type": "message", "id": "msg_7_1", "role": "assistant", "content": words, **done},
        {
            "type": "function_call",
            "id": "fc_7_2",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"a":"ö"}',
            **done,
        },
        {
            "type": "function_call",
            "id": "fc_7_3",
            "call_id": "c2",
            "name": "now",
            "arguments": "{}",
            **done,
        },
    ]
    assert (answer["id"], answer["status"], answer["created_at"]) == ("resp_7", "completed", 5)
    assert answer["usage"] == {
        "input_tokens": 100,
        "output_tokens": 9,
        "total_tokens": 109,
        "input_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 0 if backend is CONVERSE else 3},
    }
    assert (counted, finish) == (USAGE, "tool_calls")


def recorded(name: str) -> Json:
    exchange = json.loads((HTTP / f"{name}.json").read_text(encoding="utf-8"))
    body: Json = exchange["body"]
    return body


@pytest.mark.parametrize("name", ["messages", "messages_again_cached"])
def test_a_recorded_message_keeps_every_word_and_count(name: str) -> None:
    answer, usage, finish = said(CHAT, ANTHROPIC, recorded(name))
    assert answer["choices"][0]["message"]["content"] == recorded(name)["content"][0]["text"]
    assert (usage, finish) == (Usage(126, 96, 6), "length")


@pytest.mark.parametrize("name", ["chat_first", "chat_again_cached"])
def test_a_recorded_chat_keeps_every_word_and_count(name: str) -> None:
    body = recorded(name)
    answer, usage, _ = said(ANTHROPIC, CHAT, body)
    text = body["choices"][0]["message"]["content"]
    assert answer["content"] == [{"type": "text", "text": text}]
    assert usage.prompt_tokens == body["usage"]["prompt_tokens"]
    counted = answer["usage"]
    assert usage.prompt_tokens == sum(v for k, v in counted.items() if k != "output_tokens")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(
            {"prompt_tokens": 1000, "completion_tokens": 5},
            {"input_tokens": 1000, "output_tokens": 5},
            id="no caches",
        ),
        pytest.param(
            {
                "prompt_tokens": 1000,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 900},
            },
            {"input_tokens": 100, "output_tokens": 5, "cache_read_input_tokens": 900},
            id="read from a cache",
        ),
        pytest.param(
            {
                "prompt_tokens": 1000,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 900, "created_cache_tokens": 90},
            },
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 90,
            },
            id="as vLLM says it",
        ),
        pytest.param(None, {"input_tokens": 0, "output_tokens": 0}, id="nothing said"),
    ],
)
def test_tokens_of_caches_count_once(tokens: Json | None, expected: Json) -> None:
    answer, usage, _ = said(ANTHROPIC, CHAT, {**CHAT_ANSWER, "usage": tokens})
    assert answer["usage"] == expected
    assert usage.prompt_tokens == (None if tokens is None else 1000)


def test_a_call_that_was_cut_short_is_left_out() -> None:
    cut = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [cut]}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    answer, _, finish = said(ANTHROPIC, CHAT, {**CHAT_ANSWER, "choices": [choice]})
    assert (answer["content"], answer["stop_reason"]) == (
        [{"type": "text", "text": "hi"}],
        "max_tokens",
    )
    assert finish == "length"


def test_an_answer_without_content() -> None:
    empty = {**ANTHROPIC_ANSWER, "content": [], "stop_reason": "refusal"}
    answer, _, finish = said(CHAT, ANTHROPIC, empty)
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
    }
    assert finish == "content_filter"
    choice = {"index": 0, "message": {"content": None}, "finish_reason": "stop"}
    answer, _, _ = said(ANTHROPIC, CHAT, {**CHAT_ANSWER, "choices": [choice]})
    assert answer["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("backend", "body"),
    [
        (CHAT, b"<html>"),
        (CHAT, b"{}"),
        (CHAT, b'{"choices": 7}'),
        (ANTHROPIC, b'{"type": "error", "error": {}}'),
        (ANTHROPIC, b"[]"),
        (CONVERSE, b'{"message": "no"}'),
        (
            CHAT,
            b'{"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"name": "f", '
            b'"arguments": "{"}}]}, "finish_reason": "tool_calls"}]}',
        ),
    ],
)
def test_what_is_no_answer_is_unreadable(backend: Api, body: bytes) -> None:
    client = CHAT if backend is not CHAT else ANTHROPIC
    with pytest.raises(Unreadable):
        whole(client, backend, body, "ours")


SAFE = "messages: text content blocks must be non-empty"


@pytest.mark.parametrize(
    ("backend", "status", "body", "kind", "words"),
    [
        pytest.param(
            ANTHROPIC,
            400,
            {"type": "error", "error": {"type": "invalid_request_error", "message": SAFE}},
            "BadRequestError",
            SAFE,
            id="words about the request are kept",
        ),
        pytest.param(
            ANTHROPIC,
            400,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "Your credit is too low"},
            },
            "BadRequestError",
            "the provider did not accept the request",
            id="words about the account are not",
        ),
        pytest.param(
            ANTHROPIC,
            401,
            {"type": "error", "error": {"type": "authentication_error", "message": "x-api-key"}},
            "AuthenticationError",
            "the provider did not accept this gateway's credentials; its operator must set them",
            id="the key is the operator's",
        ),
        pytest.param(
            ANTHROPIC,
            529,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "ServiceUnavailableError",
            "the provider is overloaded; try again shortly",
            id="overloaded",
        ),
        pytest.param(
            CONVERSE,
            429,
            {"message": "Too many requests for account 123456789012"},
            "RateLimitError",
            "the provider takes no more requests now; try again shortly",
            id="throttled",
        ),
        pytest.param(
            CONVERSE,
            400,
            {"message": "The model returned the following errors: too long"},
            "BadRequestError",
            "The model returned the following errors: too long",
            id="Bedrock's words",
        ),
        pytest.param(CONVERSE, 418, None, "BadRequestError", None, id="no JSON"),
        pytest.param(CONVERSE, 500, {"error": "down"}, "InternalServerError", None, id="a text"),
    ],
)
def test_an_error_for_a_client_of_chats(
    backend: Api, status: int, body: Json | None, kind: str, words: str | None
) -> None:
    raw = b"<html>" if body is None else json.dumps(body).encode()
    message = words or "the provider failed; send the request again"
    assert json.loads(error(CHAT, backend, status, raw)) == {
        "error": {"message": message, "type": kind, "param": None, "code": status}
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_an_error_for_a_client_of_messages(status: int, kind: str) -> None:
    body = json.dumps({"error": {"message": SAFE, "type": "x", "code": None}}).encode()
    said: Json = json.loads(error(ANTHROPIC, CHAT, status, body))
    ErrorResponse.model_validate({**said, "request_id": None})
    assert (said["type"], said["error"]["type"]) == ("error", kind)
    assert (said["error"]["message"] == SAFE) == (status == 400)


@pytest.mark.parametrize("name", ["error_too_long_chat", "error_bad_temperature"])
def test_recorded_errors_are_said_in_a_messages_shape(name: str) -> None:
    body = recorded(name)
    answer = json.loads(error(ANTHROPIC, CHAT, 400, json.dumps(body).encode()))
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "secret",
    [
        "Incorrect API key provided: sk-proj-abc",
        "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/x",
        "organization org-123 has no access",
        "see https://provider.test/limits",
        "connect to 10.0.0.7 failed",
        "x" * 700,
        "bell \a rings",
    ],
)
def test_words_that_are_not_for_clients_stay_here(secret: str) -> None:
    body = json.dumps({"error": {"message": secret}}).encode()
    for client in (CHAT, ANTHROPIC):
        said = error(client, CONVERSE, 400, body)
        assert b"the provider did not accept the request" in said
