"""The APIs that clients and backends speak, and the paths that a door knows them by. Pure."""

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

TEMPLATED = (Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS)
"""The two ways to a prompt's tokens: by a template, or as it is. Others come down to these."""


def api_of(path: str) -> Api | None:
    """Return the API whose body a path takes; `None`: it is no such path."""
    return Api.ANTHROPIC_MESSAGES if path == COUNT_TOKENS else PATHS.get(path)
