"""Any answer, in any backend's stream, cut anywhere: the client's grammar holds, no word is lost.

Calls that a backend writes at once come in the order in which they end, each of them whole.
"""

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.apis import Api
from coordinator.translate.answers import Stream, whole
from tests.stream_grammar import (
    blob,
    check_anthropic,
    check_chat,
    check_responses,
    frame,
    named_sse,
    sse,
)

CHAT, ANTHROPIC, CONVERSE = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE
RESPONSES = Api.OPENAI_RESPONSES
Json = dict[str, Any]

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
arguments = st.dictionaries(texts, st.integers() | texts | st.lists(texts, max_size=2), max_size=2)
stops = st.sampled_from(["end_turn", "max_tokens", "refusal"])


@st.composite
def answers(draw: st.DrawFn) -> Json:
    """Return an answer as Anthropic has it whole: thoughts, text, calls."""
    content: list[Json] = []
    if draw(st.booleans()):
        content.append({"type": "thinking", "thinking": draw(texts), "signature": "s1"})
    if draw(st.booleans()):
        content.append({"type": "redacted_thinking", "data": blob(b"ii")})
    if draw(st.booleans()):
        content.append({"type": "text", "text": draw(texts)})
    for at in range(draw(st.integers(0, 3))):
        use = {"type": "tool_use", "id": f"c{at}", "name": f"f{at}", "input": draw(arguments)}
        content.append(use)
    called = any(block["type"] == "tool_use" for block in content)
    counts = st.integers(0, 99)
    usage = {
        "input_tokens": draw(counts),
        "output_tokens": draw(counts),
        "cache_read_input_tokens": draw(counts),
        "cache_creation_input_tokens": draw(counts),
    }
    ended = {"stop_reason": "tool_use" if called else draw(stops), "stop_sequence": None}
    return {"id": "msg_1", "type": "message", "content": content, "usage": usage, **ended}


@st.composite
def fragments(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text into pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    bounds = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds) if a < b]


def arguments_of(draw: st.DrawFn, block: Json) -> list[str]:
    """Return the pieces of a call's arguments; none at all are sometimes none."""
    if not block["input"] and draw(st.booleans()):
        return []
    return draw(fragments(json.dumps(block["input"], ensure_ascii=draw(st.booleans()))))


@st.composite
def anthropic_streams(draw: st.DrawFn, answer: Json) -> bytes:
    first = {**answer, "content": [], "stop_reason": None, "role": "assistant", "model": "theirs"}
    events: list[Json] = [{"type": "message_start", "message": first}]
    for at, block in enumerate(answer["content"]):
        kind, text = block["type"], "thinking" if block["type"] == "thinking" else "text"
        empty = {"tool_use": {"input": {}}, "thinking": {"thinking": "", "signature": ""}}
        begun = {**block, **empty.get(kind, {"text": ""} if kind == "text" else {})}
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        deltas: list[Json] = []
        if kind == "tool_use":
            pieces = arguments_of(draw, block)
            deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        elif kind != "redacted_thinking":
            pieces = draw(fragments(block[text]))
            deltas += [{"type": f"{text}_delta", text: piece} for piece in pieces]
        if kind == "thinking":
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            events.append({"type": "content_block_delta", "index": at, "delta": delta})
            if draw(st.booleans()):
                events.append({"type": "ping"})
        events.append({"type": "content_block_stop", "index": at})
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": answer["usage"]})
    return named_sse(*events, {"type": "message_stop"})


_FINISH = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter"} | {
    "tool_use": "tool_calls"
}


@st.composite
def chat_streams(draw: st.DrawFn, answer: Json) -> bytes:
    """Return the answer as chunks; its calls are written in turns, or all at once."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    calls: list[list[Json]] = []
    for block in answer["content"]:
        if block["type"] == "thinking":
            deltas += [{"reasoning": piece} for piece in draw(fragments(block["thinking"]))]
        elif block["type"] == "text":
            deltas += [{"content": piece} for piece in draw(fragments(block["text"]))]
        elif block["type"] == "tool_use":
            index = len(calls)
            named = {"name": block["name"], "arguments": ""}
            begun = {"index": index, "id": block["id"], "type": "function", "function": named}
            pieces = arguments_of(draw, block)
            rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
            calls.append([begun, *rest])
    mixed = draw(st.booleans())
    order = [at for at, call in enumerate(calls) for _ in call]
    for at in draw(st.permutations(order)) if mixed else order:
        deltas.append({"tool_calls": [calls[at].pop(0)]})
    usage = answer["usage"]
    prompt = sum(v for k, v in usage.items() if k != "output_tokens")
    details = {
        "cached_tokens": usage["cache_read_input_tokens"],
        "cache_write_tokens": usage["cache_creation_input_tokens"],
    }
    counted = {"prompt_tokens": prompt, "completion_tokens": usage["output_tokens"]}
    finish = _FINISH[answer["stop_reason"]]
    return sse(
        *({"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas),
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"id": "c", "choices": [], "usage": {**counted, "prompt_tokens_details": details}},
        "[DONE]",
    )


@st.composite
def converse_streams(draw: st.DrawFn, answer: Json) -> bytes:
    frames = [frame("messageStart", {"role": "assistant"})]
    for at, block in enumerate(answer["content"]):
        here = {"contentBlockIndex": at}
        deltas: list[Json] = []
        match block["type"]:
            case "tool_use":
                start = {"toolUse": {"toolUseId": block["id"], "name": block["name"]}}
                frames.append(frame("contentBlockStart", {**here, "start": start}))
                deltas += [{"toolUse": {"input": piece}} for piece in arguments_of(draw, block)]
            case "text":
                deltas += [{"text": piece} for piece in draw(fragments(block["text"]))]
            case "thinking":
                pieces = draw(fragments(block["thinking"]))
                deltas += [{"reasoningContent": {"text": piece}} for piece in pieces]
                deltas.append({"reasoningContent": {"signature": block["signature"]}})
            case _:
                deltas.append({"reasoningContent": {"redactedContent": block["data"]}})
        frames += [frame("contentBlockDelta", {**here, "delta": delta}) for delta in deltas]
        frames.append(frame("contentBlockStop", here))
    said = {"refusal": "content_filtered"}.get(answer["stop_reason"], answer["stop_reason"])
    usage = answer["usage"]
    counted = {
        "inputTokens": usage["input_tokens"],
        "outputTokens": usage["output_tokens"],
        "cacheReadInputTokens": usage["cache_read_input_tokens"],
        "cacheWriteInputTokens": usage["cache_creation_input_tokens"],
    }
    frames.append(frame("messageStop", {"stopReason": said}))
    return b"".join(frames) + frame("metadata", {"usage": counted})


STREAMS = {CHAT: chat_streams, ANTHROPIC: anthropic_streams, CONVERSE: converse_streams}


@st.composite
def passed(draw: st.DrawFn, client: Api, backend: Api) -> tuple[Json, bytes, Stream]:
    """Return an answer, and what a client gets of its stream, cut anywhere."""
    answer = draw(answers())
    data = draw(STREAMS[backend](answer))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    bounds = [0, *cuts, len(data)]
    stream = Stream(client, backend, "ours", True, answer_id="7")
    pieces = itertools.pairwise(bounds)
    out = b"".join(stream.feed(data[a:b]) for a, b in pieces) + stream.close()
    assert (stream.done, stream.failed) == (True, False)
    untold = "redacted_thinking" if CHAT in (client, backend) or client is RESPONSES else ""
    assert stream.has_content == any(block["type"] != untold for block in answer["content"])
    return answer, out, stream


def blocks(answer: Json, *kinds: str) -> list[Json]:
    return [block for block in answer["content"] if block["type"] in kinds]


def as_message(got: Json) -> list[Json]:
    """Return a message's content as an answer that is not streamed has it."""
    return [
        {**block, "input": json.loads(block["input"] or "{}")} if "input" in block else block
        for block in got["content"]
    ]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([ANTHROPIC, CONVERSE]).flatmap(lambda backend: passed(CHAT, backend)))
def test_any_answer_is_a_chat(drawn: tuple[Json, bytes, Stream]) -> None:
    answer, out, stream = drawn
    got = check_chat(out, usage_asked=True)
    assert got["content"] == "".join(block["text"] for block in blocks(answer, "text"))
    assert got["reasoning"] == "".join(b["thinking"] for b in blocks(answer, "thinking"))
    assert [(name, function, json.loads(said)) for name, function, said in got["calls"]] == [
        (block["id"], block["name"], block["input"]) for block in blocks(answer, "tool_use")
    ]
    assert got["finish"] == _FINISH[answer["stop_reason"]] == stream.finish
    assert got["usage"]["prompt_tokens"] == stream.usage.prompt_tokens


@settings(max_examples=70, deadline=None)
@given(st.sampled_from([CHAT, CONVERSE]).flatmap(lambda backend: passed(ANTHROPIC, backend)))
def test_any_answer_is_a_message(drawn: tuple[Json, bytes, Stream]) -> None:
    answer, out, _ = drawn
    got = check_anthropic(out)
    assert [b["thinking"] for b in blocks(got, "thinking")] == [
        block["thinking"] for block in blocks(answer, "thinking")
    ]
    only = got["content"] == [{"type": "text", "text": ""}]
    assert blocks(got, "text") == (got["content"] if only else blocks(answer, "text"))
    calls = blocks({"content": as_message(got)}, "tool_use")
    assert sorted(calls, key=lambda call: str(call["id"])) == blocks(answer, "tool_use")
    assert (got["stop_reason"], got["usage"]) == (answer["stop_reason"], answer["usage"])


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([CHAT, ANTHROPIC, CONVERSE]).flatmap(lambda backend: passed(RESPONSES, backend))
)
def test_any_answer_is_a_response(drawn: tuple[Json, bytes, Stream]) -> None:
    answer, out, _ = drawn
    response = check_responses(out)
    kinds = {"thinking": "reasoning", "text": "message", "tool_use": "function_call"}
    assert [item["type"] for item in response["output"]] == [
        kinds[block["type"]] for block in blocks(answer, *kinds)
    ]
    incomplete = answer["stop_reason"] in ("max_tokens", "refusal")
    assert response["status"] == ("incomplete" if incomplete else "completed")


@settings(max_examples=40, deadline=None)
@given(answers().flatmap(lambda answer: st.tuples(st.just(answer), anthropic_streams(answer))))
def test_a_stream_says_what_the_whole_answer_says(drawn: tuple[Json, bytes]) -> None:
    answer, data = drawn
    stream = Stream(CHAT, ANTHROPIC, "ours", True, answer_id="7")
    got = check_chat(stream.feed(data) + stream.close(), usage_asked=True)
    body, usage, finish = whole(CHAT, ANTHROPIC, json.dumps(answer).encode(), "ours")
    said = json.loads(body)
    message = said["choices"][0]["message"]
    assert (message["content"] or "", message.get("reasoning", "")) == (
        got["content"],
        got["reasoning"],
    )
    assert [json.loads(call[2]) for call in got["calls"]] == [
        json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    assert (said["usage"], usage, finish) == (got["usage"], stream.usage, stream.finish)
