"""What went wrong, in each API's words: bodies, events of streams, and what is read of others'."""

import json
from typing import Any

import pytest

from coordinator import error_kinds, error_shapes
from coordinator.apis import Api
from coordinator.error_shapes import ErrorEvent, in_shape, is_no_answer, read_event
from coordinator.refusal import (
    BodyTooLarge,
    Draining,
    Fault,
    NotFound,
    Overloaded,
    PolicyDenied,
    Refusal,
    Reply,
    UpstreamBroken,
    UpstreamTimeout,
    to_reply,
)
from coordinator.translate import errors

MESSAGES = Api.ANTHROPIC_MESSAGES


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        pytest.param(PolicyDenied("no"), "permission_error", id="denied"),
        pytest.param(PolicyDenied("no", 451), "invalid_request_error", id="any other refusal"),
        pytest.param(NotFound(), "not_found_error", id="not found"),
        pytest.param(BodyTooLarge(9), "request_too_large", id="too large"),
        pytest.param(Overloaded("m", 9, 9), "rate_limit_error", id="overloaded"),
        pytest.param(Draining(), "overloaded_error", id="draining"),
        pytest.param(UpstreamTimeout("total", 9), "timeout_error", id="a timeout"),
        pytest.param(UpstreamBroken(), "api_error", id="broken off"),
        pytest.param(Fault("r"), "api_error", id="a fault"),
    ],
)
def test_anthropics_clients_get_their_own_words(refusal: Refusal, kind: str) -> None:
    reply = to_reply(refusal)
    error = {"type": kind, "message": reply.message}
    said = {"type": "error", "error": error, "request_id": "r-1"}
    assert json.loads(error_shapes.body(reply, MESSAGES, "r-1")) == said
    event = error_shapes.event(reply, MESSAGES, "r-1")
    assert event == b"event: error\ndata: " + error_shapes.body(reply, MESSAGES, "r-1") + b"\n\n"


@pytest.mark.parametrize("api", [None, Api.OPENAI_CHAT, Api.OPENAI_RESPONSES])
def test_all_others_get_openais(api: Api | None) -> None:
    reply = to_reply(UpstreamBroken())
    assert json.loads(error_shapes.body(reply, api, "r")) == reply.openai_error()


def test_the_last_event_of_a_stream() -> None:
    reply = to_reply(UpstreamBroken())
    chat = error_shapes.event(reply, Api.OPENAI_CHAT, "r")
    assert chat == b"data: " + reply.openai_body() + b"\n\n"
    name, data, *rest = error_shapes.event(reply, Api.OPENAI_RESPONSES, "r").split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    said = {"type": "error", "code": "upstream_broken", "message": reply.message, "param": None}
    assert json.loads(data.removeprefix(b"data: ")) == said


def test_a_call_is_named_as_its_client_looks_for_it() -> None:
    assert error_shapes.headers(Api.OPENAI_CHAT, "r") == {"x-request-id": "r"}
    assert error_shapes.headers(MESSAGES, "r") == {"x-request-id": "r", "request-id": "r"}


@pytest.mark.parametrize(
    ("api", "said", "status", "answer"),
    [
        pytest.param(
            MESSAGES,
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            529,
            None,
            id="Anthropic's, by type",
        ),
        pytest.param(
            Api.OPENAI_CHAT, {"error": {"message": "x", "code": 503}}, 503, None, id="a chat's"
        ),
        pytest.param(
            Api.OPENAI_CHAT,
            {"error": {"message": "x", "code": "rate_limit_exceeded", "type": "tokens"}},
            429,
            None,
            id="a provider's, by code",
        ),
        pytest.param(
            Api.OPENAI_RESPONSES,
            {"type": "error", "code": "rate_limit_exceeded", "message": "x"},
            429,
            {
                "message": "x",
                "type": "rate_limit_exceeded",
                "param": None,
                "code": "rate_limit_exceeded",
            },
            id="a response's",
        ),
        pytest.param(
            Api.OPENAI_RESPONSES,
            {
                "type": "response.failed",
                "response": {"error": {"code": "server_error", "message": "x"}},
            },
            500,
            {"message": "x", "type": "server_error", "param": None, "code": "server_error"},
            id="a response that failed",
        ),
        pytest.param(Api.OPENAI_CHAT, {"error": "x"}, 500, None, id="of no known shape"),
    ],
)
def test_an_error_event_is_read_as_the_answer_it_could_have_been(
    api: Api, said: dict[str, Any], status: int, answer: dict[str, Any] | None
) -> None:
    data = json.dumps(said).encode()
    event = read_event(api, data)
    assert event.status == status
    assert json.loads(event.body) == (said if answer is None else {"error": answer})


def test_an_error_event_that_is_no_json() -> None:
    assert read_event(MESSAGES, b"oops") == ErrorEvent(500, b"oops")


OPENAI = b'{"error":{"message":"x","type":"Bad Request","code":400}}'
ANTHROPIC = b'{"type":"error","error":{"type":"NotFoundError","message":"x"}}'


@pytest.mark.parametrize(
    ("api", "status", "body", "changes"),
    [
        pytest.param(MESSAGES, 400, OPENAI, True, id="OpenAI's under /v1/messages"),
        pytest.param(MESSAGES, 404, ANTHROPIC, False, id="Anthropic's"),
        pytest.param(MESSAGES, 200, OPENAI, False, id="an answer"),
        pytest.param(MESSAGES, 400, b"oops", False, id="no JSON"),
        pytest.param(Api.OPENAI_CHAT, 400, OPENAI, False, id="OpenAI's of a chat"),
    ],
)
def test_only_an_error_of_another_shape_is_changed(
    api: Api, status: int, body: bytes, changes: bool
) -> None:
    said = in_shape(api, status, body, "r")
    assert (said != body) == changes
    if changes:
        error = {"type": "invalid_request_error", "message": "x"}
        assert json.loads(said) == {"type": "error", "error": error, "request_id": "r"}


@pytest.mark.parametrize(
    ("status", "body", "is_so"),
    [
        pytest.param(404, b'{"detail":"Not Found"}', True, id="no such path"),
        pytest.param(405, b"", True, id="another method"),
        pytest.param(404, OPENAI, False, id="no such model"),
        pytest.param(404, ANTHROPIC, False, id="no such model, says Anthropic"),
        pytest.param(404, b'{"message":"no model"}', False, id="no such model, says Bedrock"),
        pytest.param(400, b'{"detail":"x"}', False, id="another status"),
    ],
)
def test_an_engine_without_an_api_is_told_from_one_without_a_model(
    status: int, body: bytes, is_so: bool
) -> None:
    assert is_no_answer(status, body) is is_so


@pytest.mark.parametrize(
    "status", [400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 503, 504, 529]
)
def test_an_error_is_called_the_same_whoever_words_it(status: int) -> None:
    ours, kind = Reply(status, "", error_kinds.openai_kind(status), "m"), Api.ANTHROPIC_MESSAGES
    said = json.loads(error_shapes.body(ours, kind, "r"))["error"]["type"]
    assert json.loads(errors.of(kind, status, "m"))["error"]["type"] == said
    chat = json.loads(errors.of(Api.OPENAI_CHAT, status, "m"))["error"]
    assert (chat["type"], chat["code"]) == (ours.openai_error()["error"]["type"], status)
    event = error_shapes.read_event(kind, errors.anthropic(status, "m"))
    assert event.status == {402: 500, 409: 400, 422: 400, 503: 529}.get(status, status)
