"""A responses body read into an `Ask`. Pure.

Only what stands in the body itself, and only tools that the client runs: a response that is kept,
runs in the background or uses a backend's own tools has no counterpart elsewhere.
"""

import re
from collections.abc import Mapping
from typing import Any

from coordinator.translate.ask import Ask, Json
from coordinator.translate.ask_chat import ask_of_chat
from coordinator.translate.form_responses import responses_as_chat
from coordinator.translate.untranslatable import Untranslatable, cannot_carry, unknown_fields

KNOWN = frozenset(
    {
        *("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "stream"),
        *("tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "user", "top_k"),
        *("safety_identifier", "stop"),
    }
)

LEFT_OUT = frozenset(
    {
        *("store", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
        *("stream_options", "seed", "include_reasoning", "cache_salt", "vllm_xargs"),
        *("chat_template_kwargs", "session_id", "priority", "request_id"),
        *("kv_transfer_params", "ec_transfer_params", "enable_response_messages"),
    }
)
"""Fields without which the answer is of the same kind."""

AS_USUAL: Mapping[str, Any] = {
    "background": False,
    "include": [],
    "truncation": "disabled",
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
}
"""Fields that no other API has, with the values that change nothing."""

_FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "choice": "tool_choice",
    "parallel": "parallel_tool_calls",
    "effort": "reasoning.effort",
    "schema": "text.format",
    "stops": "stop",
}


_PLACES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Where a response says what a chat says there."""


def ask_of_responses(body: Mapping[str, Any]) -> Ask:
    """Return what a response asks for. Raises `Untranslatable`."""
    usual = {name for name, value in AS_USUAL.items() if body.get(name) == value}
    unknown_fields(body, KNOWN, LEFT_OUT | usual | _included(body.get("include")))
    _check_tools(body.get("tools"))
    _check_text(body.get("text"))
    _check_items(body.get("input"))
    chat = responses_as_chat(body)
    if chat.get("continue_final_message"):
        raise cannot_carry("input", "end with what the user says")
    chat["messages"] = [_as_in_chats(message) for message in chat["messages"]]
    chat |= {k: body[k] for k in ("safety_identifier",) if body.get(k) is not None}
    try:
        ask = ask_of_chat(chat)
    except Untranslatable as refused:  # the places in a chat are not the client's
        name = re.split(r"[.\[]", refused.param or "messages")[0]
        place = _PLACES.get(name, refused.param or name)
        raise cannot_carry(place, "use what other backends have too") from None
    ask.fields = _FIELDS
    for turn in ask.turns:
        turn.at = "input"
        for block in turn.blocks:
            block.at = "input"
    return ask


def _included(include: Any) -> set[str]:
    """Whether what is to be included can only be encrypted reasoning, which nobody else has."""
    return {"include"} if include == ["reasoning.encrypted_content"] else set()


def _check_tools(tools: Any) -> None:
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise cannot_carry(f"tools[{at}]", "use tools of type `function`")


def _check_items(items: Any) -> None:
    """Refuse a turn of the model in several parts: a chat form keeps the first, as vLLM does."""
    for at, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("role") == "assistant":
            content = item.get("content")
            if isinstance(content, list) and len(content) > 1:
                raise cannot_carry(f"input[{at}].content", "put it into one part")


def _check_text(text: Any) -> None:
    if isinstance(text, dict) and text.get("verbosity", "medium") not in (None, "medium"):
        raise cannot_carry("text.verbosity")


def _as_in_chats(message: Json) -> Json:
    """Return a message whose parts have the names that they have in a chat."""
    said = {key: value for key, value in message.items() if key not in ("type", "id", "status")}
    if isinstance(said.get("content"), list):
        said["content"] = [_part(part) for part in said["content"]]
    return said


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        raise cannot_carry("input")
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "input_image" if isinstance(part.get("image_url"), str):
            return {"type": "image_url", "image_url": {"url": part["image_url"]}}
        case "input_file" if isinstance(part.get("file_data"), str):
            file = {"file_data": part["file_data"], "filename": part.get("filename")}
            return {"type": "file", "file": file}
        case _:
            return part
