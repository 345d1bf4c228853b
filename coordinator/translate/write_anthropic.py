"""Anthropic messages, whole and streamed, for clients of Anthropic's API. Pure.

A stream is one message: each block begins, brings its parts and stops before the next one; why it
ended and what it cost come together, when both are known.
"""

from typing import Any

import msgspec

from coordinator.translate import errors
from coordinator.translate.blocks import InBlocks
from coordinator.translate.collect import Answer, Block, Call, Redacted, Text, Thinking, stop_of
from coordinator.translate.events import (
    Argued,
    Began,
    Called,
    Closed,
    Counted,
    Done,
    Event,
    Failed,
    Said,
    Signed,
    Stop,
    Stopped,
    Thought,
    Tokens,
    Withheld,
)
from coordinator.translate.stops import TO_ANTHROPIC
from coordinator.translate.write_chat import Named

Json = dict[str, Any]
_encode = msgspec.json.encode


def usage_of(tokens: Tokens) -> Json:
    """Return what an answer cost, as a message says it."""
    usage: Json = {"input_tokens": tokens.fresh or 0, "output_tokens": tokens.output or 0}
    if tokens.written is not None:
        usage["cache_creation_input_tokens"] = tokens.written
    if tokens.read is not None:
        usage["cache_read_input_tokens"] = tokens.read
    return usage


def whole(answer: Answer, named: Named) -> bytes:
    """Return an answer that is not streamed. One without content has an empty text, as vLLM's."""
    content = [_block(block) for block in answer.blocks] or [{"type": "text", "text": ""}]
    ended = {"stop_reason": TO_ANTHROPIC[answer.stop], "stop_sequence": answer.sequence}
    return _encode(
        _message(answer.id, named)
        | {"content": content}
        | ended
        | {"usage": usage_of(answer.tokens)}
    )


def _message(name: str | None, named: Named) -> Json:
    return {
        "id": name or f"msg_{named.id}",
        "type": "message",
        "role": "assistant",
        "model": named.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _block(block: Block) -> Json:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Redacted(data):
            return {"type": "redacted_thinking", "data": data}
        case Call(name, function):
            return {"type": "tool_use", "id": name, "name": function, "input": block.parsed() or {}}


class AnthropicWriter:
    """Writes one stream."""

    def __init__(self, named: Named, usage_asked: bool) -> None:
        self._named = named
        self._blocks = InBlocks()
        self._index = -1
        self._is_open = False
        self._tokens = Tokens()
        self._stop = Stopped(Stop.END)

    def write(self, event: Event) -> bytes:
        """Return what an event is to the client."""
        match event:
            case Began(name):
                message = _message(name, self._named) | {"usage": usage_of(self._tokens)}
                return _event("message_start", message=message)
            case Counted(tokens):
                self._tokens = tokens.after(self._tokens)
                return b""
            case Stopped():
                self._stop = event
                return b""
            case Done():
                return self._done()
            case Failed(status, text):
                return b"event: error\ndata: " + errors.anthropic(status, text) + b"\n\n"
            case _:
                return b"".join(self._part(part) for part in self._blocks.put(event))

    def _part(self, part: Event) -> bytes:
        match part:
            case Said(text):
                start = self._start({"type": "text", "text": ""})
                return start + self._delta("text_delta", text=text)
            case Thought(text):
                start = self._start({"type": "thinking", "thinking": "", "signature": ""})
                return start + (self._delta("thinking_delta", thinking=text) if text else b"")
            case Signed(signature):
                return self._delta("signature_delta", signature=signature)
            case Withheld(data):
                return self._start({"type": "redacted_thinking", "data": data})
            case Called(_, name, function):
                return self._start({"type": "tool_use", "id": name, "name": function, "input": {}})
            case Argued(_, text):
                return self._delta("input_json_delta", partial_json=text)
            case Closed():
                self._is_open = False
                return _event("content_block_stop", index=self._index)
            case _:
                return self.write(part)

    def _start(self, block: Json) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **said: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **said})

    def _done(self) -> bytes:
        end = b"".join(self._part(part) for part in self._blocks.end())
        if self._index < 0:
            end += self._start({"type": "text", "text": ""}) + self._part(Closed())
        why, sequence = self._stop.why, self._stop.sequence
        why = stop_of(why, self._blocks.called, self._blocks.last_is_whole)
        delta = {
            "stop_reason": TO_ANTHROPIC[why],
            "stop_sequence": sequence if why is Stop.SEQUENCE else None,
        }
        end += _event("message_delta", delta=delta, usage=usage_of(self._tokens))
        return end + _event("message_stop")


def _event(kind: str, **said: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **said}))
