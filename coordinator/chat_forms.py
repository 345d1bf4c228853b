"""Conversations of other APIs as OpenAI chats: the plain cases, until translation does them all."""

from collections.abc import Mapping
from typing import Any

from coordinator.apis import Api


class Untranslatable(Exception):
    """A body that cannot be said in another API's words."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def chat_form(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body as an OpenAI chat."""
    chat = {k: v for k, v in body.items() if k not in ("input", "system", "instructions")}
    messages: list[Any] = []
    lead = body.get("system" if api is Api.ANTHROPIC_MESSAGES else "instructions")
    if isinstance(lead, list):
        lead = "".join(block["text"] for block in lead)
    if lead:
        messages.append({"role": "system", "content": lead})
    given = body.get("messages") if api is Api.ANTHROPIC_MESSAGES else body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Untranslatable("`input` must be text or a list of items", "input")
    return {**chat, "messages": messages + given}
