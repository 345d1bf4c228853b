"""What a chat template is given of a chat: messages, tools and variables as vLLM prepares them.

vLLM reads before it renders: arguments of tool calls become objects, content becomes one text or
parts, and tools are printed from its own request model. Written from what vLLM does, apart from the
product, so that a product which prepares otherwise is seen to differ. Pure.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

TEXT_KINDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Kinds of content parts that a text model reads, and where each has its text."""

_WALKS_CONTENT = re.compile(
    r"for\s+\w+\s+in\s+(?:\w+\.content|\w+\[['\"]content['\"]\]|content)(?![\w.\[(])"
)


def takes_parts(template: str) -> bool:
    """Say whether a template walks the parts of a content, and so is given parts."""
    return bool(_WALKS_CONTENT.search(template))


def knows_developers(template: str) -> bool:
    """Say whether a template has the role `developer`."""
    return "'developer'" in template or '"developer"' in template


def prepared(
    messages: Sequence[Mapping[str, Any]], *, parts: bool, developers: bool
) -> list[Message]:
    """Return the messages as a template is given them; none is shared with the request.

    Raises `LookupError`, `TypeError` or `ValueError` for what vLLM refuses too.
    """
    given = [_message(message, parts) for message in messages]
    if developers or all(message["role"] != "developer" for message in given):
        return given
    return _instructed(given)


def printed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in vLLM's order of keys: gaps as null, what it does not know left out."""
    function = tool["function"]
    shown = {key: function.get(key) for key in ("name", "description", "parameters")}
    rare = {key: function.get(key) for key in ("strict", "defer_loading")}
    shown |= {key: value for key, value in rare.items() if value is not None}
    return {"type": "function", "function": shown}


def variables(
    options: Mapping[str, Any] | None, effort: str | None, documents: list[Any] | None
) -> dict[str, Any]:
    """Return the template's variables that a request sets."""
    asked = dict(options or {})
    if effort is not None:
        asked = {"enable_thinking": effort != "none"} | asked | {"reasoning_effort": effort}
    return {"documents": None} | asked | ({} if documents is None else {"documents": documents})


def _message(message: Mapping[str, Any], parts: bool) -> Message:
    role = message["role"]
    pieces = list(_pieces(message.get("content")))
    given: Message = {"role": role, "content": pieces}
    if not parts:
        given["content"] = "\n".join(piece["text"] for piece in pieces if piece["text"])
    elif role == "tool":
        given["content"] = "\n".join(piece["text"] for piece in pieces)
    if role == "assistant":
        if calls := message.get("tool_calls"):
            given["tool_calls"] = [_called(call) for call in calls]
        thought = message.get("reasoning")
        thought = message.get("reasoning_content") if thought is None else thought
        given |= {"reasoning": thought, "reasoning_content": thought}
    elif role == "tool":
        given["tool_call_id"] = message.get("tool_call_id")
    elif role == "developer":
        given["tools"] = message.get("tools")
    given |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    return {key: value for key, value in given.items() if value is not None}


def _pieces(content: Any) -> Iterator[Message]:
    for part in [content] if isinstance(content, str) else content or []:
        text = part if isinstance(part, str) else part.get(TEXT_KINDS[part.get("type", "text")])
        if text is not None:
            yield {"type": "text", "text": text}


def _called(call: Mapping[str, Any]) -> Message:
    """Return a tool call with its arguments as an object, an empty one where they are none."""
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    known = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": {**function, "arguments": known}}


def _instructed(messages: Sequence[Message]) -> list[Message]:
    """Return a chat whose developers' and system messages are one, at its start."""
    leads = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    texts = [
        lead if isinstance(lead, str) else "\n".join(piece["text"] for piece in lead)
        for lead in leads
    ]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *rest]
