"""OpenAI's responses API as vLLM serves it: bodies to chats, answers, streams, and what is kept.

Written from what vLLM does, apart from the product. Text only: no tools are called.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from simulate.core import Request
from simulate.driver import Token
from simulate.generation import Asked
from simulate.replies import JsonObject, encode
from simulate.requests import Chat, Refused

KEPT = 1000
"""Responses that are kept; the oldest goes first. A real engine keeps them all."""


class Response(msgspec.Struct, kw_only=True):
    """What is asked. Unknown fields are ignored."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | None = True
    background: bool | None = False
    previous_response_id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] = []
    metadata: dict[str, Any] | None = None
    user: str | None = None
    cache_salt: str | None = None
    vllm_xargs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(slots=True)
class Kept:
    """What an engine knows of a response."""

    messages: list[dict[str, Any]]
    reply: JsonObject


@dataclass(slots=True)
class Shelf:
    """The responses of an engine that keeps any (`VLLM_ENABLE_RESPONSES_API_STORE`)."""

    keeps: bool
    _kept: dict[str, Kept] = field(default_factory=dict)

    def find(self, response: str) -> Kept:
        """Return a response. Raises `Refused`."""
        if response not in self._kept:
            told = f"Response with id '{response}' not found."
            raise Refused(404, told, "invalid_request_error", "response_id")
        return self._kept[response]

    def put(self, body: Response, messages: list[dict[str, Any]], reply: JsonObject) -> None:
        """Keep a response, if it wants to be and this engine does."""
        if not (self.keeps and body.store):
            return
        self._kept[reply["id"]] = Kept(messages, reply)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def check(self, body: Response) -> None:
        """Refuse what an engine that keeps nothing cannot do. Raises `Refused`."""
        if body.background:
            told = "This vLLM engine does not support `store=True` and therefore does not support "
            told += "the background mode."
            raise Refused(400, told, "invalid_request_error", "background")

    def cancel(self, response: str) -> JsonObject:
        """Cancel a response: none runs in the background. Raises `Refused`."""
        self.find(response)
        told = "Cannot cancel a synchronous response."
        raise Refused(400, told, "invalid_request_error", "response_id")


def as_chat(body: Response, before: Kept | None) -> Chat:
    """Return a body as a chat, after the response that it goes on from."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if before is not None:
        messages += [message for message in before.messages if message["role"] != "system"]
        messages += [
            {"role": "assistant", "content": part["text"]}
            for item in before.reply["output"]
            for part in item["content"]
        ]
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += _items(body.input)
    return Chat(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        stream=body.stream,
        temperature=body.temperature,
        tools=[_tool(tool) for tool in body.tools if tool.get("type") == "function"] or None,
        cache_salt=body.cache_salt,
        vllm_xargs=body.vllm_xargs,
        chat_template_kwargs=body.chat_template_kwargs,
    )


@dataclass(slots=True)
class ResponseAnswer:
    """An accepted response."""

    body: Response
    asked: Asked
    shelf: Shelf
    id: str = field(default_factory=lambda: f"resp_{_random()}")
    item: str = field(default_factory=lambda: f"msg_{_random()}")
    _number: int = 0
    _text: str = ""

    @property
    def requests(self) -> list[Request]:
        return self.asked.requests

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)

    def reply(self, answers: Sequence[list[int]]) -> JsonObject:
        """Return the answer in one piece, and keep it."""
        self._text = "".join(self.asked.pieces[token] for token in answers[0])
        return self._finished(f"msg_{_random()}")

    def opening(self) -> list[bytes]:
        """Return what a stream begins with."""
        response = self._response("in_progress", [], None)
        names = ("response.created", "response.in_progress")
        return [self._event(name, response=response) for name in names]

    def events(self, tokens: Sequence[Token], *, last: bool) -> list[bytes]:
        """Return the events of some tokens; a token without a text has none."""
        text = "".join(self.asked.pieces[token.token] for token in tokens)
        if not text:
            return []
        made = [] if self._text else list(self._open())
        self._text += text
        place = {"content_index": 0, "item_id": self.item, "output_index": 0}
        return [
            *made,
            self._event("response.output_text.delta", delta=text, logprobs=[], **place),
        ]

    def ending(self) -> bytes:
        """Return what a stream ends with: complete it is called, even if it was cut short."""
        done = b"".join(self._close()) if self._text else b""
        return done + self._event("response.completed", response=self._finished(self.item))

    def _open(self) -> Iterator[bytes]:
        item: JsonObject = {
            "id": self.item,
            "content": [],
            "role": "assistant",
            "status": "in_progress",
        }
        item |= {"status": "in_progress", "type": "message", "phase": None}
        yield self._event("response.output_item.added", item=item, output_index=0)
        place = {"content_index": 0, "item_id": self.item, "output_index": 0}
        part = _part("", [])
        yield self._event("response.content_part.added", part=part, **place)

    def _close(self) -> Iterator[bytes]:
        place = {"content_index": 0, "item_id": self.item, "output_index": 0}
        yield self._event("response.output_text.done", text=self._text, logprobs=[], **place)
        yield self._event("response.content_part.done", part=_part(self._text, None), **place)
        item = self._message(self.item)
        yield self._event("response.output_item.done", item=item, output_index=0)

    def _event(self, kind: str, **fields: Any) -> bytes:
        told = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + encode(told) + b"\n\n"

    def _message(self, item: str) -> JsonObject:
        content = [_part(self._text, None)] if self._text else []
        told = {"id": item, "content": content, "role": "assistant", "status": "completed"}
        return {**told, "type": "message", "phase": None}

    def _finished(self, item: str) -> JsonObject:
        cut = self.requests[0].finish_reason == "length"
        status = "incomplete" if cut else "completed"
        reply = self._response(status, [self._message(item)], self._usage())
        self.shelf.put(self.body, list(self._messages()), reply)
        return reply

    def _messages(self) -> list[dict[str, Any]]:
        assert isinstance(self.asked.body, Chat)
        return self.asked.body.messages

    def _usage(self) -> JsonObject:
        usage = self.asked.usage()
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {
                "cached_tokens": usage.cached,
                "cache_write_tokens": usage.created or 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": usage.completion,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": usage.prompt + usage.completion,
        }

    def _response(
        self, status: str, output: list[JsonObject], usage: JsonObject | None
    ) -> JsonObject:
        body, cut = self.body, status == "incomplete"
        return {
            "id": self.id,
            "created_at": self.asked.envelope.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self.asked.envelope.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0 if body.temperature is None else float(body.temperature),
            "tool_choice": "auto" if body.tools else "none",
            "tools": body.tools,
            "top_p": 1.0 if body.top_p is None else float(body.top_p),
            "background": False,
            "max_output_tokens": len(self.requests[0].answer),
            "max_tool_calls": None,
            "previous_response_id": body.previous_response_id,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": body.user,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _part(text: str, logprobs: list[Any] | None) -> JsonObject:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _random() -> str:
    return uuid.uuid4().hex[:16]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    named = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {key: tool.get(key) for key in named}}


def _items(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages of items, one of each; an engine joins those of one turn."""
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                yield {"role": "assistant", "tool_calls": [call]}
            case "function_call_output":
                yield {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
            case "message" if item["role"] == "assistant" and isinstance(item["content"], list):
                yield {"role": "assistant", "content": item["content"][0]["text"]}
            case "message":
                yield item
            case kind:
                raise Refused(400, f"an item of type {kind} is not simulated")
