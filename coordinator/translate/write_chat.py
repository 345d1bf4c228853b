"""Chat completions, whole and streamed, for clients of OpenAI's API. Pure.

Reasoning goes into `reasoning`, as vLLM has it. The API has no place for signatures and thoughts
that are withheld; they stay behind.
"""

from typing import Any, NamedTuple

import msgspec

from coordinator.translate import errors
from coordinator.translate.collect import Answer, stop_of
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
    Stop,
    Stopped,
    Thought,
    Tokens,
)
from coordinator.translate.stops import TO_CHAT

Json = dict[str, Any]
_encode = msgspec.json.encode


class Named(NamedTuple):
    """What an answer says of itself."""

    model: str
    id: str
    """Where the backend gives none."""
    created: int
    """Unix seconds."""


def usage_of(tokens: Tokens) -> Json:
    """Return what an answer cost, as a chat says it."""
    prompt, output = tokens.prompt or 0, tokens.output or 0
    usage: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    if tokens.read is not None or tokens.written is not None:
        details = {"cached_tokens": tokens.read or 0}
        if tokens.written is not None:
            details["cache_write_tokens"] = tokens.written
        usage["prompt_tokens_details"] = details
    if tokens.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def whole(answer: Answer, named: Named) -> bytes:
    """Return an answer that is not streamed."""
    message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.thinking is not None:
        message["reasoning"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments.strip() or "{}"},
            }
            for call in answer.calls
        ]
    choice: Json = {"index": 0, "message": message, "logprobs": None} | _finish(
        answer.stop, answer.sequence
    )
    return _encode(
        {
            "id": answer.id or f"chatcmpl-{named.id}",
            "object": "chat.completion",
            "created": named.created,
            "model": named.model,
            "choices": [choice],
            "usage": usage_of(answer.tokens),
        }
    )


def _finish(why: Stop, sequence: str | None) -> Json:
    """Return why it ended, and as vLLM says it, at which words."""
    said: Json = {"finish_reason": TO_CHAT[why]}
    return said if sequence is None else {**said, "stop_reason": sequence}


class ChatWriter:
    """Writes one stream: the role first, then content, the end, the usage if it was asked for."""

    def __init__(self, named: Named, usage_asked: bool) -> None:
        self._named = named
        self._id = f"chatcmpl-{named.id}"
        self._usage_asked = usage_asked
        self._tokens = Tokens()
        self._calls: dict[int, int] = {}
        self._silent: set[int] = set()
        self._finished = False

    def write(self, event: Event) -> bytes:
        """Return what an event is to the client."""
        match event:
            case Began(name):
                self._id = name or self._id
                return self._delta({"role": "assistant", "content": ""})
            case Said(text) if text:
                return self._delta({"content": text})
            case Thought(text) if text:
                return self._delta({"reasoning": text})
            case Called(key, name, function):
                return self._called(key, name, function)
            case Argued(key, text) if text:
                self._silent.discard(key)
                return self._argued(key, text)
            case Closed(int() as key):
                return self._hushed({key})
            case Counted(tokens):
                self._tokens = tokens.after(self._tokens)
            case Stopped(why, sequence):
                return self._stopped(why, sequence)
            case Done():
                return self._done()
            case Failed():
                return b"data: " + errors.chat(event.status, event.text) + b"\n\n"
        return b""

    def _called(self, key: int, name: str, function: str) -> bytes:
        index = self._calls[key] = len(self._calls)
        self._silent.add(key)
        begun = {"name": function, "arguments": ""}
        call = {"index": index, "id": name, "type": "function", "function": begun}
        return self._delta({"tool_calls": [call]})

    def _argued(self, key: int, text: str) -> bytes:
        call = {"index": self._calls[key], "function": {"arguments": text}}
        return self._delta({"tool_calls": [call]})

    def _hushed(self, keys: set[int]) -> bytes:
        """Give calls without any arguments the empty object: clients parse what they get."""
        silent = sorted(keys & self._silent)
        self._silent -= keys
        return b"".join(self._argued(key, "{}") for key in silent)

    def _stopped(self, why: Stop, sequence: str | None) -> bytes:
        if self._finished:
            return b""
        self._finished = True
        hushed = self._hushed(set(self._silent)) if why not in (Stop.LENGTH, Stop.CONTEXT) else b""
        why = stop_of(why, bool(self._calls), whole=False)
        return hushed + self._chunk([{"index": 0, "delta": {}} | _finish(why, sequence)])

    def _done(self) -> bytes:
        end = self._stopped(Stop.END, None)
        if self._usage_asked:
            end += self._chunk([], usage_of(self._tokens))
        return end + b"data: [DONE]\n\n"

    def _delta(self, delta: Json) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        chunk: Json = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._named.created,
            "model": self._named.model,
            "choices": choices,
        }
        if self._usage_asked:
            chunk["usage"] = usage
        return b"data: " + _encode(chunk) + b"\n\n"
