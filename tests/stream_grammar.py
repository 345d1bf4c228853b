"""Streams of each API: made event by event, and held against the API's grammar.

The grammars are written down here from the APIs' own documents; they share nothing with what is
tested.
"""

import base64
import json
import struct
import zlib
from typing import Any

from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

Json = dict[str, Any]
_RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ANTHROPIC_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def sse(*events: Json | str) -> bytes:
    """Return chat chunks as a stream; text stands as it is, as `[DONE]` does."""
    said = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return b"".join(f"data: {each}\n\n".encode() for each in said)


def named_sse(*events: Json) -> bytes:
    """Return Anthropic events as a stream."""
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def frame(name: str, payload: Json, kind: str = "event") -> bytes:
    """Return one message of Bedrock's event stream."""
    key = {"event": ":event-type", "exception": ":exception-type", "error": ":error-code"}[kind]
    named = {key: name, ":content-type": "application/json", ":message-type": kind}
    headers = b"".join(
        struct.pack("!B", len(k)) + k.encode() + struct.pack("!BH", 7, len(v)) + v.encode()
        for k, v in named.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack("!I", zlib.crc32(message))


def blob(data: bytes) -> str:
    """Return bytes as JSON carries them."""
    return base64.b64encode(data).decode()


def sse_data(stream: bytes) -> list[tuple[str | None, str]]:
    """Return (name, data) of each event. Every one has to be whole."""
    assert stream == b"" or stream.endswith(b"\n\n")
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        lines = block.split("\n")
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        (data,) = lines
        assert data.startswith("data: ")
        events.append((name, data.removeprefix("data: ")))
    return events


def check_chat(stream: bytes, usage_asked: bool) -> Json:
    """Hold a whole stream of chunks against OpenAI's grammar; return what a client gets of it.

    A role alone first; then content; a finish with an empty delta; the usage without choices only
    where it was asked for; `[DONE]` last. A call has its index, id, type and name in its first
    fragment, and only arguments after it.
    """
    events = [data for name, data in sse_data(stream) if name is None]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(data) for data in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert ("usage" in chunk) == usage_asked
    assert len({(c["id"], c["model"], c["created"], c["object"]) for c in chunks}) == 1
    usage = None
    if usage_asked:
        last = chunks.pop()
        usage = last["usage"]
        assert last["choices"] == []
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    first, last = choices[0], choices[-1]
    assert (first["delta"], first["finish_reason"]) == ({"role": "assistant", "content": ""}, None)
    assert last["delta"] == {}
    assert last["finish_reason"] is not None
    got: Json = {"content": "", "reasoning": "", "calls": [], "finish": last["finish_reason"]}
    for choice in choices[1:-1]:
        assert choice["finish_reason"] is None
        _check_delta(choice["delta"], got)
    return got | {"usage": usage, "stop": last.get("stop_reason")}


def _check_delta(delta: Json, got: Json) -> None:
    ((kind, value),) = delta.items()
    assert value
    if kind != "tool_calls":
        got[kind] += value
        return
    (call,) = value
    if call["index"] == len(got["calls"]):
        assert call.keys() == {"index", "id", "type", "function"}
        assert call["type"] == "function"
        assert call["function"].keys() == {"name", "arguments"}
        got["calls"].append([call["id"], call["function"]["name"], call["function"]["arguments"]])
    else:
        assert call.keys() == {"index", "function"}
        assert call["function"].keys() == {"arguments"}
        got["calls"][call["index"]][2] += call["function"]["arguments"]


def check_anthropic(stream: bytes) -> Json:
    """Hold a whole stream of events against Anthropic's grammar; return what a client gets of it.

    `message_start` with an empty message; blocks one after another, numbered from 0, each begun
    empty and stopped; one `message_delta`; `message_stop`. A block takes deltas of its kind only,
    a signature is the last of its block.
    """
    events = []
    for name, data in sse_data(stream):
        event = json.loads(data)
        assert event["type"] == name
        if name != "ping":
            events.append(event)
            _ANTHROPIC_EVENT.validate_python(event)
    first, last, ended = events.pop(0), events.pop(), events.pop()
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    assert ended["type"] == "message_delta"
    assert ended["delta"].keys() == {"stop_reason", "stop_sequence"}
    assert ended["delta"]["stop_reason"] is not None
    blocks: list[Json] = []
    while events:
        _check_block(events, blocks)
    return {"content": blocks, "usage": ended["usage"], "model": message["model"]} | ended["delta"]


_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
    "redacted_thinking": {},
}
_EMPTY: Json = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "redacted_thinking": {},
}


def _check_block(events: list[Json], blocks: list[Json]) -> None:
    start = events.pop(0)
    assert (start["type"], start["index"]) == ("content_block_start", len(blocks))
    block = dict(start["content_block"])
    assert block | _EMPTY[block["type"]] == block
    signed, arguments = False, ""
    while (event := events.pop(0))["type"] == "content_block_delta":
        delta = event["delta"]
        assert event["index"] == len(blocks)
        assert not signed
        key = _DELTAS[block["type"]][delta["type"]]
        assert delta[key]
        signed = key == "signature"
        if key == "partial_json":
            arguments += delta[key]
        else:
            block[key] += delta[key]
    assert event == {"type": "content_block_stop", "index": len(blocks)}
    if block["type"] == "tool_use":
        block["input"] = arguments
    blocks.append(block)


def check_responses(stream: bytes) -> Json:
    """Hold a whole stream of events against the grammar of responses; return the response.

    `response.created` and `response.in_progress`; items one after another, each added, brought in
    parts that are repeated when it is done; the whole response last. Events are numbered from 0.
    """
    events = []
    for number, (name, data) in enumerate(sse_data(stream)):
        event = json.loads(data)
        assert (event["type"], event["sequence_number"]) == (name, number)
        _RESPONSE_EVENT.validate_python(event)
        events.append(event)
    created, going, last = events.pop(0), events.pop(0), events.pop()
    assert (created["type"], going["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == going["response"]
    assert created["response"]["status"] == "in_progress"
    response = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["id"] == created["response"]["id"]
    items: list[Json] = []
    while events:
        _check_item(events, items)
    assert response["output"] == items
    return dict(response)


_ITEM_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


def _check_item(events: list[Json], items: list[Json]) -> None:
    at = len(items)
    added = events.pop(0)
    assert (added["type"], added["output_index"]) == ("response.output_item.added", at)
    item, kind = added["item"], _ITEM_DELTAS[added["item"]["type"]]
    is_call = item["type"] == "function_call"
    assert item.get("content", []) == []
    assert item.get("arguments", "") == ""
    if not is_call:
        part = events.pop(0)
        assert (part["type"], part["part"]["text"]) == ("response.content_part.added", "")
    text = ""
    while (event := events.pop(0))["type"] == f"{kind}.delta":
        assert (event["item_id"], event["output_index"]) == (item["id"], at)
        assert event["delta"]
        text += event["delta"]
    assert event["type"] == f"{kind}.done"
    assert event["arguments" if is_call else "text"] == (text or ("{}" if is_call else ""))
    if not is_call:
        part = events.pop(0)
        assert (part["type"], part["part"]["text"]) == ("response.content_part.done", text)
    done = events.pop(0)
    assert (done["type"], done["output_index"]) == ("response.output_item.done", at)
    assert (done["item"]["id"], done["item"].get("status", "completed")) == (
        item["id"],
        "completed",
    )
    if is_call:
        assert done["item"]["arguments"] == (text or "{}")
    else:
        assert [each["text"] for each in done["item"]["content"]] == ([text] if text else [])
    items.append(done["item"])
