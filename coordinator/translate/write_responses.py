"""Responses, whole and streamed, for clients of OpenAI's responses API. Pure.

What a response repeats of its request is at its default: the request is not at hand. No backend
keeps such a response, so none can be gone on from.
"""

from typing import Any

import msgspec

from coordinator.translate import errors
from coordinator.translate.blocks import InBlocks
from coordinator.translate.collect import Answer, Block, Call, Redacted, Text, Thinking
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
    Unreadable,
)
from coordinator.translate.stops import INCOMPLETE
from coordinator.translate.write_chat import Named

Json = dict[str, Any]
_encode = msgspec.json.encode

HELD_CHARS = 64 * 2**20
"""Of an answer: its last events repeat all of it. A longer one is broken."""


def usage_of(tokens: Tokens) -> Json:
    """Return what an answer cost, as a response says it."""
    prompt, output = tokens.prompt or 0, tokens.output or 0
    read = {"cached_tokens": tokens.read or 0, "cache_write_tokens": tokens.written or 0}
    return {
        "input_tokens": prompt,
        "input_tokens_details": read,
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning or 0},
        "total_tokens": prompt + output,
    }


def whole(answer: Answer, named: Named) -> bytes:
    """Return an answer that is not streamed."""
    shown = [block for block in answer.blocks if not isinstance(block, Redacted)]
    items = [_item(block, named, at, "completed") for at, block in enumerate(shown)]
    return _encode(_response(named, items, answer.stop, answer.tokens))


def _response(named: Named, items: list[Json], why: Stop | None, tokens: Tokens | None) -> Json:
    """Return a response. `why`: why it ended; `None`: it goes on."""
    reason = None if why is None else INCOMPLETE.get(why)
    status = "in_progress" if why is None else "completed" if reason is None else "incomplete"
    return {
        "id": f"resp_{named.id}",
        "object": "response",
        "created_at": named.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": None,
        "metadata": {},
        "model": named.model,
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None if tokens is None else usage_of(tokens),
    }


def _item(block: Block, named: Named, at: int, status: str) -> Json:
    match block:
        case Thinking(text):
            content = [{"type": "reasoning_text", "text": text}] if text else []
            name = f"rs_{named.id}_{at}"
            return {"type": "reasoning", "id": name, "summary": [], "content": content}
        case Call(name, function, arguments):
            if status == "completed":
                arguments = arguments.strip() or "{}"
            called = {"call_id": name, "name": function, "arguments": arguments}
            return {"type": "function_call", "id": f"fc_{named.id}_{at}", "status": status} | called
        case _:
            text = block.text if isinstance(block, Text) else ""
            content = [_text_part(text)] if text else []
            said = {"role": "assistant", "content": content}
            return {"type": "message", "id": f"msg_{named.id}_{at}", "status": status} | said


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesWriter:
    """Writes one stream: each item is added, brings its parts and is done before the next one."""

    def __init__(self, named: Named, usage_asked: bool) -> None:
        self._named = named
        self._blocks = InBlocks()
        self._number = 0
        self._items: list[Json] = []
        self._open: Block | None = None
        self._parts: list[str] = []
        self._chars = 0
        self._tokens = Tokens()
        self._why = Stop.END

    def write(self, event: Event) -> bytes:
        """Return what an event is to the client."""
        match event:
            case Began():
                begun = _response(self._named, [], None, None)
                created = self._event("response.created", response=begun)
                return created + self._event("response.in_progress", response=begun)
            case Counted(tokens):
                self._tokens = tokens.after(self._tokens)
                return b""
            case Stopped(why):
                self._why = why
                return b""
            case Done():
                return self._done()
            case Failed(status, text):
                data = errors.responses_event(status, text, self._number)
                return b"event: error\ndata: " + data + b"\n\n"
            case _:
                return b"".join(self._part(part) for part in self._blocks.put(event))

    def _part(self, part: Event) -> bytes:
        match part:
            case Said(text):
                return self._begin(Text("")) + self._delta("response.output_text", text)
            case Thought(text):
                start = self._begin(Thinking(""))
                return start + (self._delta("response.reasoning_text", text) if text else b"")
            case Called(_, name, function):
                return self._begin(Call(name, function))
            case Argued(_, text):
                return self._delta("response.function_call_arguments", text)
            case Closed() if self._open is not None:
                return self._end(self._open)
            case _:
                return b""

    def _begin(self, block: Block) -> bytes:
        if self._open is not None:
            return b""
        self._open, self._parts = block, []
        at = len(self._items)
        item = _item(block, self._named, at, "in_progress")
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=at, item=item)
        if isinstance(block, Call):
            return added
        return added + self._of_content("response.content_part.added", part=_part_of(block))

    def _delta(self, kind: str, text: str) -> bytes:
        self._chars += len(text)
        if self._chars > HELD_CHARS:
            raise Unreadable
        self._parts.append(text)
        if isinstance(self._open, Call):
            return self._of_item(f"{kind}.delta", delta=text)
        more: Json = {"logprobs": []} if isinstance(self._open, Text) else {}
        return self._of_content(f"{kind}.delta", delta=text, **more)

    def _end(self, block: Block) -> bytes:
        self._open, text = None, "".join(self._parts)
        at = len(self._items) - 1
        match block:
            case Call():
                block = Call(block.id, block.name, text or "{}")
                kind = "response.function_call_arguments.done"
                said = self._of_item(kind, name=block.name, arguments=block.arguments)
            case Thinking():
                block = Thinking(text)
                said = self._of_content("response.reasoning_text.done", text=text)
            case _:
                block = Text(text)
                said = self._of_content("response.output_text.done", text=text, logprobs=[])
        if not isinstance(block, Call):
            said += self._of_content("response.content_part.done", part=_part_of(block))
        item = self._items[at] = _item(block, self._named, at, "completed")
        return said + self._event("response.output_item.done", output_index=at, item=item)

    def _done(self) -> bytes:
        end = b"".join(self._part(part) for part in self._blocks.end())
        response = _response(self._named, self._items, self._why, self._tokens)
        return end + self._event(f"response.{response['status']}", response=response)

    def _of_item(self, kind: str, **said: Any) -> bytes:
        at = len(self._items) - 1
        return self._event(kind, item_id=self._items[at]["id"], output_index=at, **said)

    def _of_content(self, kind: str, **said: Any) -> bytes:
        return self._of_item(kind, content_index=0, **said)

    def _event(self, kind: str, **said: Any) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._number, **said})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part_of(block: Block) -> Json:
    if isinstance(block, Thinking):
        return {"type": "reasoning_text", "text": block.text}
    return _text_part(block.text if isinstance(block, Text) else "")
