"""Request bodies in another API's shape. The facade: what doors and attempts call. Pure.

`chat_form` is for us: the one form that is rendered, tagged and routed by. `translated` is for a
backend that does not speak the client's API, made anew for each attempt.
"""

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.apis import Api
from coordinator.translate.ask import Ask
from coordinator.translate.ask_anthropic import ask_of_anthropic
from coordinator.translate.ask_chat import ask_of_chat
from coordinator.translate.ask_responses import ask_of_responses
from coordinator.translate.body_anthropic import anthropic_body
from coordinator.translate.body_chat import chat_body
from coordinator.translate.body_converse import converse_body
from coordinator.translate.form_anthropic import anthropic_as_chat, with_leading_system
from coordinator.translate.form_responses import responses_as_chat
from coordinator.translate.untranslatable import Untranslatable

__all__ = ["Untranslatable", "chat_form", "translated", "with_leading_system"]


def chat_form(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body as an OpenAI chat's, as vLLM converts it. Raises `Untranslatable`."""
    match api:
        case Api.OPENAI_CHAT:
            return dict(body)
        case Api.ANTHROPIC_MESSAGES:
            return anthropic_as_chat(body)
        case Api.OPENAI_RESPONSES:
            return responses_as_chat(body)
        case _:
            raise Untranslatable(f"a body of {api.value} has no conversation", None)


_ASKS: dict[Api, Callable[[Mapping[str, Any]], Ask]] = {
    Api.OPENAI_CHAT: ask_of_chat,
    Api.OPENAI_RESPONSES: ask_of_responses,
    Api.ANTHROPIC_MESSAGES: ask_of_anthropic,
}

_BODIES: dict[Api, Callable[[Ask], dict[str, Any]]] = {
    Api.OPENAI_CHAT: chat_body,
    Api.ANTHROPIC_MESSAGES: anthropic_body,
    Api.BEDROCK_CONVERSE: converse_body,
}


def translated(api_from: Api, api_to: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body for a backend of another API, fresh. Raises `Untranslatable`.

    The body for Bedrock names no model and does not say whether to stream: its path does. A chat's
    says nothing of usage; who needs it in a stream asks for it.
    """
    if api_from is api_to:
        return dict(body)
    if api_from not in _ASKS or api_to not in _BODIES:
        text = (
            f"a request of {api_from.value} cannot be put to a backend that speaks {api_to.value}"
        )
        raise Untranslatable(text, None)
    return _BODIES[api_to](_ASKS[api_from](body))
