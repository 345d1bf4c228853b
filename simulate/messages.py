"""Anthropic's messages API as vLLM serves it: bodies to chats, and answers and streams.

Written from what vLLM does, apart from the product. Errors have Anthropic's shape, save those of
bodies that cannot be read at all.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from simulate.core import Request
from simulate.driver import Token
from simulate.generation import Asked
from simulate.replies import JsonObject, Usage, encode
from simulate.requests import Chat, Refused

HEADER = "x-anthropic-billing-header"
"""What a text begins with that is left out: it differs in every request."""

_STOPS = {"length": "max_tokens", "stop": "end_turn"}


class Count(msgspec.Struct, kw_only=True):
    """What is counted. Unknown fields are ignored."""

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Message(Count, kw_only=True):
    """What is answered."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    cache_salt: str | None = None
    vllm_xargs: dict[str, Any] | None = None


def as_chat(body: Message | Count, *, leads: bool) -> Chat:
    """Return a body as a chat. `leads`: the template takes system messages in front only."""
    messages = _messages(body, leads)
    disabled = (body.thinking or {}).get("type") == "disabled"
    chat = Chat(
        model=body.model,
        messages=messages,
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort="none" if disabled else None,
    )
    if isinstance(body, Message):
        chat.max_tokens = chat.max_completion_tokens = body.max_tokens
        chat.temperature, chat.stream = body.temperature, body.stream
        chat.cache_salt, chat.vllm_xargs = body.cache_salt, body.vllm_xargs
    return chat


def error(refused: Refused) -> JsonObject:
    """Return the error object."""
    return {"type": "error", "error": {"type": refused.type, "message": refused.message}}


def counted(tokens: int) -> JsonObject:
    """Return the answer to a count."""
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


@dataclass(slots=True)
class MessageAnswer:
    """An accepted message. Says in Anthropic's words what the chat beneath it says in OpenAI's."""

    asked: Asked
    _is_open: bool = field(default=False, init=False)

    @property
    def requests(self) -> list[Request]:
        return self.asked.requests

    @property
    def stream(self) -> bool:
        return bool(self.asked.body.stream)

    def reply(self, answers: Sequence[list[int]]) -> JsonObject:
        """Return the answer in one piece."""
        text = "".join(self.asked.pieces[token] for token in answers[0])
        return {
            "id": self.asked.envelope.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": self.asked.envelope.model,
            "stop_reason": _STOPS[self.requests[0].finish_reason],
            "usage": _usage(self.asked.usage()),
        }

    def opening(self) -> list[bytes]:
        """Return what a stream begins with: all of the prompt counts as input."""
        envelope = self.asked.envelope
        message: JsonObject = {
            "id": envelope.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": envelope.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.asked.usage().prompt, "output_tokens": 0},
        }
        return [_event("message_start", message=message)]

    def events(self, tokens: Sequence[Token], *, last: bool) -> list[bytes]:
        """Return the events of some tokens; a token without a text has none."""
        text = "".join(self.asked.pieces[token.token] for token in tokens)
        if not text:
            return []
        made = []
        if not self._is_open:
            self._is_open = True
            made.append(
                _event("content_block_start", content_block={"type": "text", "text": ""}, index=0)
            )
        delta = {"type": "text_delta", "text": text}
        return [*made, _event("content_block_delta", delta=delta, index=0)]

    def ending(self) -> bytes:
        """Return what a stream ends with."""
        reason = _STOPS[self.requests[0].finish_reason]
        delta = {"stop_reason": reason, "stop_sequence": None}
        stop = _event("content_block_stop", index=0) if self._is_open else b""
        usage = _usage(self.asked.usage())
        return stop + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + encode({"type": kind, **fields}) + b"\n\n"


def _usage(usage: Usage) -> JsonObject:
    if not usage.with_details:
        return {"input_tokens": usage.prompt, "output_tokens": usage.completion}
    created = usage.created or 0
    return {
        "input_tokens": max(0, usage.prompt - usage.cached - created),
        "output_tokens": usage.completion,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    named = {key: tool.get(key) for key in ("name", "description", "strict", "defer_loading")}
    return {"type": "function", "function": {**named, "parameters": tool.get("input_schema")}}


def _messages(body: Message | Count, leads: bool) -> list[dict[str, Any]]:
    system = [_text(body.system)] if body.system else []
    if leads:
        system += [_text(turn["content"]) for turn in body.messages if turn["role"] == "system"]
    messages = [{"role": "system", "content": "".join(system)}] if any(system) else []
    for turn in body.messages:
        if turn["role"] != "system":
            messages += _turn(turn)
        elif not leads and (text := _text(turn["content"])):
            messages.append({"role": "system", "content": text})
    return messages


def _text(content: str | list[dict[str, Any]]) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [block.get("text") or "" for block in blocks if block.get("type") == "text"]
    return "".join(text for text in texts if not text.startswith(HEADER))


def _turn(turn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a turn's messages: results of tools come before what was said with them."""
    role, content = turn["role"], turn["content"]
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    parts, calls, thoughts = [], [], []
    for block in content:
        match block.get("type"):
            case "text" if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
            case "image" if block.get("source"):
                parts.append(_image(block["source"]))
            case "thinking":
                thoughts.append(block["thinking"])
            case "tool_use":
                calls.append(_call(block))
            case "tool_result" if role == "user":
                yield from _result(block)
    said: dict[str, Any] = {"role": role}
    said |= {"reasoning": "".join(thoughts)} if thoughts else {}
    said |= {"tool_calls": calls} if calls else {}
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        said["content"] = parts[0]["text"] if alone else parts
    if role != "user" or "content" in said:
        yield said


def _image(source: dict[str, Any]) -> dict[str, Any]:
    url = source.get("url", "")
    if source.get("type") != "url":
        kind = source.get("media_type", "image/jpeg")
        url = f"data:{kind};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = block.get("content")
    items = content if isinstance(content, list) else []
    text = (
        content
        if isinstance(content, str)
        else "\n".join(item.get("text", "") for item in items if item.get("type") == "text")
    )
    yield {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": text}
    if images := [_image(item["source"]) for item in items if item.get("type") == "image"]:
        yield {"role": "user", "content": images}
