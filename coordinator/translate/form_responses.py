"""A responses body as a chat, exactly as vLLM makes one before it renders. Pure.

Only what the body itself holds: the engine puts the history of a `previous_response_id` in front.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.translate.untranslatable import Untranslatable

Json = dict[str, Any]


def responses_as_chat(body: Mapping[str, Any]) -> Json:
    """Return a body as a chat's. Shares values, changes none."""
    messages: list[Json] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    asked = body.get("input")
    if isinstance(asked, str):
        messages.append({"role": "user", "content": asked})
    elif isinstance(asked, list):
        messages += _messages(asked)
    elif asked is not None or body.get("previous_response_id") is None:
        raise Untranslatable("`input` must be text or a list of items", "input")
    chat: Json = {"model": body.get("model"), "messages": messages}
    chat |= {new: body[old] for old, new in _SAME.items() if body.get(old) is not None}
    chat |= _reasoning(body.get("reasoning")) | _format(body.get("text"))
    if asked and isinstance(asked, list) and _is_open(asked[-1]):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if tools := list(_tools(body.get("tools"))):
        chat["tools"] = tools
        chat |= _tool_choice(body.get("tool_choice"))
    return chat


_SAME = {
    name: name
    for name in (
        *("temperature", "top_p", "top_k", "min_p", "stream", "stop", "seed", "user"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
        *("parallel_tool_calls", "cache_salt", "chat_template_kwargs", "vllm_xargs", "session_id"),
    )
} | {"max_output_tokens": "max_completion_tokens"}


def _messages(items: list[Any]) -> list[Json]:
    """Return the messages of a list of items; several items can make up one turn of the model."""
    messages: list[Json] = []
    for at, item in enumerate(items):
        where = f"input[{at}]"
        if not isinstance(item, dict):
            raise Untranslatable(f"`{where}` must be an object", where)
        message = _message(item, where)
        if message["role"] != "assistant" or not _joins(messages, message):
            messages.append(message)
    return messages


def _message(item: Json, where: str) -> Json:
    """Return what an item alone would be: a message with one thing said or done."""
    match item.get("type") or "message":
        case "function_call":
            space = item.get("namespace")
            name = f"{space}__{item.get('name')}" if space else item.get("name")
            return _calling(item, name, item.get("arguments"))
        case "custom_tool_call":
            arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
            return _calling(item, item.get("name"), arguments)
        case "function_call_output" | "custom_tool_call_output":
            result = {"content": item.get("output"), "tool_call_id": item.get("call_id")}
            return {"role": "tool", **result}
        case "reasoning":
            return {"role": "assistant", "reasoning": _reasoned(item, where)}
        case "message" if item.get("role") == "assistant":
            return {"role": "assistant", "content": _said(item.get("content"))}
        case "message" if isinstance(item.get("role"), str):
            return item
        case _:
            raise Untranslatable(f"`{where}` is no item that an engine takes", f"{where}.type")


def _calling(item: Json, name: Any, arguments: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def _said(content: Any) -> Any:
    """Return a turn's text. Of several parts the engine takes the first."""
    if not isinstance(content, list) or not content:
        return content
    first = content[0]
    return first.get("text") if isinstance(first, dict) else first


def _reasoned(item: Json, where: str) -> str:
    if item.get("encrypted_content"):
        place = f"{where}.encrypted_content"
        raise Untranslatable(f"`{place}` is readable to who encrypted it only", place)
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, list) and parts and isinstance(parts[0], dict):
            return str(parts[0].get("text", ""))
    return ""


def _joins(messages: list[Json], new: Json) -> bool:
    """Put what is new into the turn before it, where that has nothing of the kind yet."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        return False
    for key in ("tool_calls", "reasoning", "content"):
        if key in new:
            if key == "tool_calls":
                last[key] = [*(last.get(key) or ()), *new[key]]
            elif last.get(key) is None:
                last[key] = new[key]
            else:
                return False
    return True


def _is_open(item: Any) -> bool:
    """Whether the last item is a turn of the model that it should go on with."""
    kinds, states = ("message", "reasoning"), ("in_progress", "incomplete")
    if not isinstance(item, dict) or item.get("type", "message") not in kinds:
        return False
    return item.get("status") in states


def _reasoning(reasoning: Any) -> Json:
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return {} if effort is None else {"reasoning_effort": effort}


def _format(text: Any) -> Json:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") == "text":
        return {}
    if wanted.get("type") == "json_schema":
        schema = {key: value for key, value in wanted.items() if key != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": wanted.get("type")}}


def _tools(tools: Any) -> Iterator[Json]:
    """Yield the tools that the model is shown: functions, and what can be put as one."""
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            raise Untranslatable("`tools` must be a list of objects", "tools")
        match tool.get("type"):
            case "function":
                yield _function(tool)
            case "namespace":
                for inner in tool.get("tools") or ():
                    if isinstance(inner, dict) and inner.get("type") == "function":
                        yield _function({**inner, "name": f"{tool.get('name')}__{inner['name']}"})
            case "custom":
                yield _function({**tool, "parameters": _FREE_TEXT})


def _function(tool: Json) -> Json:
    named = ("name", "description", "parameters", "strict", "defer_loading")
    function = {key: tool[key] for key in named if tool.get(key) is not None}
    return {"type": "function", "function": function}


_FREE_TEXT = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "The freeform text payload for this tool."}
    },
    "required": ["input"],
    "additionalProperties": False,
}
"""What the engine shows the model of a tool that takes text. Part of the prompt: word for word."""


def _tool_choice(choice: Any) -> Json:
    if isinstance(choice, str):
        return {"tool_choice": choice}
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    return {}
