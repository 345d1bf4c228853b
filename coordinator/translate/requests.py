"""Request bodies in another API's shape. The facade: what doors and attempts call. Pure.

`chat_form` is for us: the one form that is rendered, tagged and routed by. `translated` is for a
backend that does not speak the client's API, made anew for each attempt.
"""

from collections.abc import Mapping
from typing import Any

from coordinator.apis import Api
from coordinator.translate.form_anthropic import anthropic_as_chat, with_leading_system
from coordinator.translate.form_responses import responses_as_chat
from coordinator.translate.untranslatable import Untranslatable

__all__ = ["Untranslatable", "chat_form", "with_leading_system"]


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
