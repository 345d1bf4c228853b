"""What each API calls an error, and the shape that it gives one. Pure; tables.

The one place that knows: refusals of ours, failures of backends and errors in streams are all put
so, whoever words them.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

OVERLOADED = 529
"""Anthropic's status of a service that did not take a request."""

OPENAI: Mapping[int, str] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
    OVERLOADED: "ServiceUnavailableError",
}
"""By status, as vLLM calls them; of others it is 400's, or 500's."""

ANTHROPIC: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""The same of Anthropic's."""

STATUS: Mapping[str, int] = {
    **{kind: status for status, kind in ANTHROPIC.items() if kind != "billing_error"},
    "rate_limit_exceeded": 429,  # of a response, and OpenAI's code
    "insufficient_quota": 429,
    "server_error": 500,  # of a response
}
"""Statuses of errors that come in a stream, where there is none: by type, or by code."""


def openai_kind(status: int) -> str:
    """Return what OpenAI's APIs call a status."""
    return OPENAI.get(status) or OPENAI[400 if status < 500 else 500]


def openai_error(status: int, message: str, kind: str = "", param: str | None = None) -> Json:
    """Return an error as OpenAI's APIs have it, as the engines send it."""
    kind = kind or openai_kind(status)
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def anthropic_error(status: int, message: str, request_id: str | None = None) -> Json:
    """Return an error as Anthropic's API has it."""
    kind = ANTHROPIC.get(status) or ANTHROPIC[400 if status < 500 else 500]
    said: Json = {"type": "error", "error": {"type": kind, "message": message}}
    return said if request_id is None else said | {"request_id": request_id}


def response_error(code: str, message: str, number: int | None = None) -> Json:
    """Return an error as an event of a response has it."""
    said: Json = {"type": "error", "code": code, "message": message, "param": None}
    return said if number is None else said | {"sequence_number": number}
