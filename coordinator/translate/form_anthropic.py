"""Anthropic messages as a chat, exactly as vLLM makes one before it renders. Pure.

Every difference here would be a different prompt, and so other block keys. Blocks that vLLM refuses
stay what they are, for backends that take them: their text is kept as text, so that taggers see it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinator.translate.untranslatable import Untranslatable

Json = dict[str, Any]

ATTRIBUTION = "x-anthropic-billing-header"
"""A coding client's line that differs in every request; the engine leaves such blocks out."""


def anthropic_as_chat(body: Mapping[str, Any]) -> Json:
    """Return a message's or a token count's body as a chat's. Shares values, changes none."""
    turns = _objects(body.get("messages"), "messages")
    messages = list(_system(body.get("system")))
    for at, turn in enumerate(turns):
        messages += _turn(turn, f"messages[{at}]")
    chat: Json = {"model": body.get("model"), "messages": messages}
    chat |= {new: body[old] for old, new in _SAME.items() if body.get(old) is not None}
    if body.get("stream") is True:
        chat["stream_options"] = {"include_usage": True}
    chat |= _reasoning(body) | _tool_choice(body.get("tool_choice"))
    tools = _tools(body.get("tools"), turns)
    if tools is not None:
        chat["tools"] = tools
        chat.setdefault("tool_choice", "auto")
    return chat


def with_leading_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Merge all system messages into one in front, as vLLM does where a template demands it."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "".join(texts)}, *others] if texts else others


_SAME = {
    name: name
    for name in (
        *("max_tokens", "temperature", "top_p", "top_k", "stream"),
        *("cache_salt", "chat_template_kwargs", "vllm_xargs", "session_id"),
    )
} | {"stop_sequences": "stop"}


def _objects(value: Any, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise Untranslatable(f"`{where}` must be a list", where)
    for at, each in enumerate(value):
        if not isinstance(each, dict):
            raise Untranslatable(f"`{where}[{at}]` must be an object", f"{where}[{at}]")
    return value


def _system(system: Any) -> Iterator[Json]:
    if system is None:
        return
    text = system if isinstance(system, str) else _system_text(system, "system")
    if text:
        yield {"role": "system", "content": text}


def _system_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return "" if content.startswith(ATTRIBUTION) else content
    texts = (block.get("text") for block in _objects(content, where) if block.get("type") == "text")
    return "".join(
        text for text in texts if isinstance(text, str) and not text.startswith(ATTRIBUTION)
    )


def _turn(turn: Json, where: str) -> Iterator[Json]:
    """Yield the messages of one turn; results of tools come before what the user says."""
    role, content = turn.get("role"), turn.get("content")
    if role == "system":
        text = _system_text(content, f"{where}.content")
        if text:
            yield {"role": role, "content": text}
        return
    if role not in ("user", "assistant"):
        raise Untranslatable(f"`{where}.role` must be `user` or `assistant`", f"{where}.role")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    message: Json = {"role": role}
    parts: list[Json] = []
    for at, block in enumerate(_objects(content, f"{where}.content")):
        yield from _block(block, message, parts, f"{where}.content[{at}]")
    if len(parts) == 1 and parts[0]["type"] == "text":
        message["content"] = parts[0]["text"]
    elif parts:
        message["content"] = parts
    if role == "assistant" or parts:
        yield message


def _block(block: Json, message: Json, parts: list[Json], where: str) -> Iterator[Json]:
    """Add a block to its message; yield the messages that it makes of its own."""
    match block.get("type"):
        case "text":
            if text := _text(block, "text", where):
                parts.append({"type": "text", "text": text})
        case "image" if isinstance(block.get("source"), dict):
            parts.append(_image(block["source"]))
        case "thinking":
            message["reasoning"] = message.get("reasoning", "") + _text(block, "thinking", where)
        case "tool_use":
            message.setdefault("tool_calls", []).append(_call(block))
        case "tool_result" if message["role"] == "user":
            yield from _result(block)
        case "tool_result":
            said = block.get("content")
            parts.append({"type": "text", "text": f"Tool result: {said or ''}"})
        case "redacted_thinking" | "tool_reference" | "tool_addition" | "tool_removal":
            pass
        case str():
            parts.append(block)
            parts += _inner_texts(block)
        case _:
            raise Untranslatable(f"`{where}.type` must be a string", f"{where}.type")


def _text(block: Json, key: str, where: str) -> str:
    text = block.get(key)
    if text is not None and not isinstance(text, str):
        raise Untranslatable(f"`{where}.{key}` must be a string", f"{where}.{key}")
    return text or ""


def _image(source: Json) -> Json:
    return {"type": "image_url", "image_url": {"url": image_url(source)}}


def image_url(source: Mapping[str, Any]) -> str:
    """Return an image's address: its own, or its data in one."""
    if source.get("type") == "url":
        return str(source.get("url", ""))
    return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"


def _call(block: Json) -> Json:
    function = {
        "name": block.get("name") or "",
        "arguments": json.dumps(block.get("input") or {}),
    }
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _result(block: Json) -> Iterator[Json]:
    name, content = block.get("tool_use_id") or "", block.get("content")
    listed = content if isinstance(content, list) else []
    inner = [each for each in listed if isinstance(each, dict)]
    text = content if isinstance(content, str) else "\n".join(_result_texts(inner))
    yield {"role": "tool", "tool_call_id": name, "content": text}
    images = [_image(each.get("source") or {}) for each in inner if each.get("type") == "image"]
    if images:
        yield {"role": "user", "content": images}
    named = (
        each.get("tool_name") or each.get("name")
        for each in inner
        if each.get("type") == "tool_reference"
    )
    references = [{"type": "tool_reference", "name": each} for each in named if each]
    if references:
        yield {"role": "tool", "tool_call_id": name, "content": references}


def _result_texts(inner: list[Json]) -> Iterator[str]:
    for each in inner:
        if each.get("type") == "text":
            yield str(each.get("text", ""))
        elif each.get("type") not in ("image", "tool_reference"):
            yield from (part["text"] for part in _inner_texts(each))


def _inner_texts(block: Any) -> Iterator[Json]:
    """Yield what a block of a kind that the engine does not take says, wherever it says it."""
    waiting = [block.get("source"), block.get("content"), block.get("title"), block.get("input")]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, str):
            yield {"type": "text", "text": value}
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict) and value.get("type") not in ("base64", "url", "file"):
            waiting += [inner for key, inner in value.items() if key not in ("type", "media_type")]


def _reasoning(body: Mapping[str, Any]) -> Json:
    found: Json = {}
    config, thinking = body.get("output_config"), body.get("thinking")
    if isinstance(config, dict):
        wanted = config.get("format")
        schema = wanted.get("schema") if isinstance(wanted, dict) else None
        if schema:
            named = {"name": "json_schema", "schema": schema}
            found["response_format"] = {"type": "json_schema", "json_schema": named}
        if config.get("effort") is not None:
            found["reasoning_effort"] = config["effort"]
    if isinstance(thinking, dict):
        if thinking.get("type") == "disabled":
            found["reasoning_effort"] = "none"
        elif thinking.get("type") == "enabled":
            found["thinking_token_budget"] = thinking.get("budget_tokens")
    return found


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _tool_choice(choice: Any) -> Json:
    if not isinstance(choice, dict):
        return {}
    parallel = not choice.get("disable_parallel_tool_use")
    if choice.get("type") == "tool":
        named = {"type": "function", "function": {"name": choice.get("name")}}
        return {"tool_choice": named, "parallel_tool_calls": parallel}
    return {"tool_choice": _CHOICES.get(str(choice.get("type")), "auto")} | {
        "parallel_tool_calls": parallel
    }


def _tools(tools: Any, turns: list[Json]) -> list[Json] | None:
    """Return the tools at the conversation's end: some turns add and remove one."""
    changes = [
        block
        for turn in turns
        if turn.get("role") == "system" and isinstance(turn.get("content"), list)
        for block in turn["content"]
        if block.get("type") in ("tool_addition", "tool_removal")
    ]
    if tools is None and not changes:
        return None
    declared = _objects(tools, "tools") if tools is not None else []
    if not changes:
        return [_tool(tool) for tool in declared]
    by_name = {str(tool.get("name")): tool for tool in declared}
    removed: set[str] = set()
    for block in changes:
        _change(block, by_name, removed)
    return [_tool(tool) for name, tool in by_name.items() if name not in removed]


def _change(block: Json, tools: dict[str, Json], removed: set[str]) -> None:
    change = block.get("tool")
    if not isinstance(change, dict):
        raise Untranslatable("a change of tools must name a tool", "messages")
    if change.get("type") == "tool_definition" and isinstance(change.get("definition"), dict):
        name = str(change["definition"].get("name"))
        tools[name] = change["definition"]
    else:
        name = str(change.get("name"))
        if name not in tools:
            raise Untranslatable("a change of tools must name one of `tools`", "messages")
        if block["type"] == "tool_addition":
            tools[name] = {k: v for k, v in tools[name].items() if k != "defer_loading"}
    if block["type"] == "tool_removal":
        removed.add(name)
    else:
        removed.discard(name)


def _tool(tool: Json) -> Json:
    parameters = tool.get("input_schema")
    if isinstance(parameters, dict) and "type" not in parameters:
        parameters = {**parameters, "type": "object"}
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": parameters,
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}
