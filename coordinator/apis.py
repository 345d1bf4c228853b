"""The APIs that clients and backends speak, and the paths that a door knows them by. Pure."""

from collections.abc import Container
from enum import Enum


class Api(Enum):
    """An API, as records, metrics and policies name it."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_COMPLETIONS = "openai-completions"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_EMBEDDINGS = "openai-embeddings"
    ANTHROPIC_MESSAGES = "anthropic-messages"
    BEDROCK_CONVERSE = "bedrock-converse"
    """Backends only: no door speaks it."""

    __hash__ = object.__hash__  # there is one of each; a request is looked up by it a dozen times


PATHS = {
    "/v1/chat/completions": Api.OPENAI_CHAT,
    "/v1/completions": Api.OPENAI_COMPLETIONS,
    "/v1/responses": Api.OPENAI_RESPONSES,
    "/v1/embeddings": Api.OPENAI_EMBEDDINGS,
    "/v1/messages": Api.ANTHROPIC_MESSAGES,
}
"""What a door is asked to generate by, with POST."""

COUNT_TOKENS = "/v1/messages/count_tokens"
"""Takes the body of a message, and generates nothing."""

CHAT_FORMS = frozenset({Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.ANTHROPIC_MESSAGES})
"""Requests that hold a conversation, which engines render by a template."""

METERED = frozenset({Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS})
"""Whose streams report usage only if they are asked to; the others always do."""

ANTHROPIC_VERSION = "anthropic-version"
"""A header that Anthropic's clients send always, and no others."""

TEMPLATED = (Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS)
"""The two ways to a prompt's tokens: by a template, or as it is. Others come down to these."""


def api_of(path: str) -> Api | None:
    """Return the API whose body a path takes; `None`: it is no such path."""
    return Api.ANTHROPIC_MESSAGES if path == COUNT_TOKENS else PATHS.get(path)


def words_of(path: str, headers: Container[str]) -> Api | None:
    """Return in whose words a client is answered; `None`: the path is no API's, OpenAI's will do.

    `headers`: names that the client sent, in lower case.
    """
    if (known := api_of(path)) is not None:
        return known
    if path.startswith("/v1/messages/") or ANTHROPIC_VERSION in headers:
        return Api.ANTHROPIC_MESSAGES
    return Api.OPENAI_RESPONSES if path.startswith("/v1/responses/") else None
