"""A request's messages and tools in the form that chat templates take, made as engines do. Pure.

The engine normalises before it renders: content parts become text or stay parts, arguments of tool
calls become objects, unknown keys of tools go. Every difference here would be a different prompt.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinator.fields import is_media
from coordinator.tokens.content_format import ContentFormat

CUT = f"\ue000{secrets.token_hex(16)}\ue000"
"""Stands where the first media part would; what follows is not routed by. No client can type it."""


def conversation(
    messages: Sequence[Mapping[str, Any]], content_format: ContentFormat, knows_developers: bool
) -> list[dict[str, Any]]:
    """Return a chat's messages for a template. Fresh: nothing of the request is shared or changed.

    A template that does not know the role `developer` gets one system message instead.
    Raises `LookupError`, `TypeError` or `ValueError` for what the engine would refuse too.
    """
    rendered = [_message(message, content_format) for message in messages]
    if not knows_developers and any(m["role"] == "developer" for m in rendered):
        for message in rendered:
            if message["role"] == "developer":
                message["role"] = "system"
                message.pop("tools", None)
        return _with_one_system_message(rendered)
    return rendered


def as_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as the engine's request model prints it: known keys, its order, its nulls.

    Raises like `conversation`.
    """
    function = tool["function"]
    if tool.get("type", "function") != "function" or not isinstance(function["name"], str):
        raise ValueError("a tool must be a named function")
    printed = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    inner = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading")}
    if inner["defer_loading"] is None:
        inner["defer_loading"] = deferred
    printed |= {key: value for key, value in inner.items() if value is not None}
    outer = {} if deferred is None else {"defer_loading": deferred}
    return {"type": "function", "function": printed, **outer}


def _message(message: Mapping[str, Any], content_format: ContentFormat) -> dict[str, Any]:
    role = message["role"]
    parts = list(_parts(message.get("content"), role))
    content: Any = parts
    if content_format is ContentFormat.STRING:
        content = _joined(parts)
    elif role == "tool" and all(part["type"] == "text" for part in parts):
        content = _lines(parts)
    result = {"role": role, "content": content}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = [_tool_call(call) for call in calls]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        result |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool":
        result["tool_call_id"] = message.get("tool_call_id")
    result |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    if role == "developer":
        result["tools"] = message.get("tools")
    return {key: value for key, value in result.items() if value is not None}


def _parts(content: Any, role: str) -> Iterator[dict[str, Any]]:
    """Yield a message's parts as a template knows them; a media part as the cut."""
    parts: list[Any] = [content] if isinstance(content, str) else content or []
    for part in parts:
        kind = "text" if isinstance(part, str) else part.get("type") or "text"
        if is_media(part):
            yield {"type": "text", "text": CUT}
        elif kind == "tool_reference":
            yield {"type": kind, "name": part["name"]}
        else:
            text = part if isinstance(part, str) else part.get(_TEXT_KEYS.get(kind, "text"))
            if role == "system" and kind == "text":
                text = _without_attribution(text)
            if text is not None:
                more = {} if isinstance(part, str) else part
                extra = {key: value for key, value in more.items() if key not in _PART_KEYS}
                yield {"type": "text", "text": text, **extra}


_PART_KEYS = frozenset(
    {
        *("type", "text", "refusal", "thinking", "name", "uuid", "closed", "data", "file"),
        *("prompt_cache_breakpoint", "input_audio", "audio_url", "audio_embeds"),
        *("image_url", "image_pil", "image_embeds", "video_url", "video_embeds"),
    }
)
"""A part's own keys; the engine hands all others to the template, such as `cache_control`."""

_TEXT_KEYS = {"refusal": "refusal", "thinking": "thinking"}
_ATTRIBUTION = "x-anthropic-billing-header"


def _without_attribution(text: str | None) -> str | None:
    """Drop the line of a coding client that differs in every request, as the engine does."""
    if text is None or not text.startswith(_ATTRIBUTION):
        return text
    return text.partition("\n")[2] or None


def _joined(parts: list[dict[str, Any]]) -> str:
    texts = [part.get("text", part.get("name")) for part in parts]
    if CUT in texts:  # the engine puts its placeholders before a message's text
        return CUT
    return "\n".join(text for text in texts if text)


def _tool_call(call: Any) -> dict[str, Any]:
    function = call["function"]
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise ValueError("a tool call must be of type `function`")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None  # the engine goes on with none, so that a conversation can
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}},
    }


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0] is system[0]:
        return messages
    texts = [
        content if isinstance(content := message["content"], str) else _lines(content)
        for message in system
    ]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _lines(parts: list[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if "text" in part)
