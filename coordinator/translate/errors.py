"""Errors of backends in the words of the client's API. Pure.

A provider's own words reach a client only where they are about the request, and name no account,
key or address: what else they say is the operator's business.
"""

import re

import msgspec

from coordinator.apis import Api
from coordinator.error_kinds import anthropic_error, openai_error, response_error
from lineside.decoding import decoded

_encode = msgspec.json.encode

ABOUT_THE_REQUEST = frozenset({400, 413, 422})
"""Statuses whose words are kept."""

MAX_CHARS = 600
"""Longer words are not kept: some repeat the request."""

_NOT_FOR_CLIENTS = re.compile(
    r"https?://|www\.|arn:|\bsk-|\bkey\b|api[ _-]?key|token\b.{0,20}(expired|invalid)|credential"
    r"|secret|bearer|account|billing|credit|organi[sz]ation|\borg[-_]|project|workspace|quota|plan\b"
    r"|subscription|deployment|tier\b|\d+\.\d+\.\d+\.\d+|request[ _-]?id",
    re.IGNORECASE,
)

_WORDS = {
    400: "the provider did not accept the request",
    401: "the provider did not accept this gateway's credentials; its operator must set them",
    402: "the provider did not accept this gateway's credentials; its operator must set them",
    403: "the provider did not accept this gateway's credentials; its operator must set them",
    404: "the provider does not know the model; the operator must correct its name",
    408: "the provider took too long; send the request again",
    409: "the provider could not take the request now; send it again",
    413: "the request is too large for the provider; send a shorter one",
    422: "the provider did not accept the request",
    424: "the provider's model failed; send the request again",
    429: "the provider takes no more requests now; try again shortly",
    503: "the provider is overloaded; try again shortly",
    504: "the provider took too long; send the request again",
    529: "the provider is overloaded; try again shortly",
}


def words(status: int, text: str) -> str:
    """Return what a client is told: the provider's words if they are safe, else ours."""
    text = " ".join(text.split())
    is_safe = text.isprintable() and not _NOT_FOR_CLIENTS.search(text)
    if status in ABOUT_THE_REQUEST and 0 < len(text) <= MAX_CHARS and is_safe:
        return text
    return _WORDS.get(status, "the provider failed; send the request again")


def chat(status: int, text: str) -> bytes:
    """Return an error as OpenAI's API has it."""
    return _encode(openai_error(status, words(status, text)))


def anthropic(status: int, text: str) -> bytes:
    """Return an error as Anthropic's API has it."""
    return _encode(anthropic_error(status, words(status, text)))


def responses_event(status: int, text: str, number: int) -> bytes:
    """Return an error as an event of a response has it."""
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    return _encode(response_error(code, words(status, text), number))


class _Numbered(msgspec.Struct):
    sequence_number: int = 0


def event(client: Api, status: int, text: str, data: bytes) -> bytes:
    """Return an error as the last event of a stream, instead of one with that data."""
    if client is Api.OPENAI_RESPONSES:
        try:
            number = decoded(data, _Numbered).sequence_number
        except msgspec.MsgspecError:
            number = 0
        return b"event: error\ndata: " + responses_event(status, text, number) + b"\n\n"
    name = b"event: error\n" if client is Api.ANTHROPIC_MESSAGES else b""
    return name + b"data: " + of(client, status, text) + b"\n\n"


def of(client: Api, status: int, text: str) -> bytes:
    """Return an error as an answer's body."""
    return anthropic(status, text) if client is Api.ANTHROPIC_MESSAGES else chat(status, text)


def text_of(body: bytes) -> str:
    """Return the message in any backend's error; empty: there is none."""
    try:
        said = decoded(body, object)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""
    if not isinstance(said, dict):
        return ""
    inner = said.get("error")
    if isinstance(inner, str):
        return inner
    place = inner if isinstance(inner, dict) else said
    found = (place.get(name) for name in ("message", "Message", "detail"))
    return next((text for text in found if isinstance(text, str)), "")
