"""Refusals and failures in the words of each API: bodies, events, and events read back. Pure.

How an API says that something went wrong is in `error_kinds`. What it says, and with which status,
is `refusal`'s.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.apis import Api
from coordinator.error_kinds import OVERLOADED, STATUS, anthropic_error, response_error
from coordinator.refusal import Reply
from lineside.decoding import decoded

_encode = msgspec.json.encode


def body(reply: Reply, api: Api | None, request_id: str) -> bytes:
    """Return a refusal as an answer's body. `None`: a path of no API, answered as OpenAI does."""
    if api is Api.ANTHROPIC_MESSAGES:
        return _encode(anthropic_error(reply.status, reply.message, request_id))
    return reply.openai_body()


def event(reply: Reply, api: Api, request_id: str) -> bytes:
    """Return a refusal as the last event of a stream that had begun."""
    match api:
        case Api.ANTHROPIC_MESSAGES:
            error = anthropic_error(reply.status, reply.message, request_id)
            return b"event: error\ndata: " + _encode(error) + b"\n\n"
        case Api.OPENAI_RESPONSES:
            said = response_error(reply.reason, reply.message)
            return b"event: error\ndata: " + _encode(said) + b"\n\n"
        case _:
            return b"data: " + reply.openai_body() + b"\n\n"


def headers(api: Api | None, request_id: str) -> dict[str, str]:
    """Return the headers by which a client names its request to us."""
    named = {"x-request-id": request_id}
    if api is Api.ANTHROPIC_MESSAGES:
        named["request-id"] = request_id
    return named


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error that a backend sent inside a stream."""

    status: int
    """As an answer it would have had this one."""
    body: bytes
    """The same, as an answer's body in the same API."""


def read_event(api: Api, data: bytes) -> ErrorEvent:
    """Read the data of an error event of a stream."""
    try:
        said: Any = decoded(data, object)
    except msgspec.DecodeError:
        said = {}
    error = said.get("error") if isinstance(said, dict) else None
    if api is Api.OPENAI_RESPONSES and not isinstance(error, dict) and isinstance(said, dict):
        error = _of_response(said)
    if not isinstance(error, dict):
        return ErrorEvent(500, data)
    status = _status(error.get("code"), error.get("type"))
    if api is Api.OPENAI_RESPONSES:
        return ErrorEvent(status, _encode({"error": error}))
    return ErrorEvent(status, data)


def _of_response(said: dict[str, Any]) -> dict[str, Any]:
    """Return the error in an `error` event of a response, or in the one of a response failed."""
    response = said.get("response")
    failed = response.get("error") if isinstance(response, dict) else None
    told = failed if isinstance(failed, dict) else said
    code = told.get("code")
    return {
        "message": told.get("message"),
        "type": code if isinstance(code, str) else "server_error",
        "param": told.get("param"),
        "code": code,
    }


def _status(code: Any, kind: Any) -> int:
    if isinstance(code, int) and 400 <= code < 600:
        return code
    named = (said for said in (kind, code) if isinstance(said, str))
    return next((STATUS[said] for said in named if said in STATUS), 500)


def in_shape(api: Api | None, status: int, body: bytes, request_id: str) -> bytes:
    """Return an engine's error in the client's shape: under `/v1/messages` it may be OpenAI's."""
    if status < 400 or api is not Api.ANTHROPIC_MESSAGES or b'"type":"error"' in body[:64]:
        return body
    try:
        said: Any = decoded(body, object)
    except msgspec.DecodeError:
        return body
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict) or said.get("type") == "error":
        return body
    message = error.get("message")
    told = message if isinstance(message, str) else f"the engine refused it, with status {status}"
    return _encode(anthropic_error(status, told, request_id))


def is_no_answer(status: int, body: bytes) -> bool:
    """Whether a backend says that it has no such path, or not for this method."""
    if status not in (404, 405):
        return False
    try:
        said: Any = decoded(body, object)
    except msgspec.DecodeError:
        return True
    if not isinstance(said, dict):
        return True
    is_bedrocks = isinstance(said.get("message"), str)
    return not (is_bedrocks or isinstance(said.get("error"), dict | str))


def client_status(api: Api | None, status: int) -> int:
    """Return the status that a client gets for a backend's: OpenAI's know 503 alone for 529."""
    is_odd = status == OVERLOADED and api is not Api.ANTHROPIC_MESSAGES
    return 503 if is_odd else status
