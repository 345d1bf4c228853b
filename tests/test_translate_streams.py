"""Streams of one API for another's clients: grammar, content, usage, errors, every byte split."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from coordinator.apis import Api
from coordinator.limits import Usage
from coordinator.translate.answers import Stream
from tests.stream_grammar import (
    blob,
    check_anthropic,
    check_chat,
    check_responses,
    frame,
    named_sse,
    sse,
    sse_data,
)

CHAT, ANTHROPIC, CONVERSE = Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE
HTTP = Path(__file__).with_name("cases") / "http"


def recorded(name: str) -> bytes:
    exchange = json.loads((HTTP / f"{name}.json").read_text(encoding="utf-8"))
    raw: str = exchange["sse_raw"]
    return raw.encode()


def stream(client: Api, backend: Api, usage_asked: bool = True) -> Stream:
    return Stream(client, backend, "ours", usage_asked, answer_id="7", created=5)


def passed(
    client: Api, backend: Api, chunks: Iterable[bytes], usage_asked: bool = True
) -> tuple[bytes, Stream]:
    carried = stream(client, backend, usage_asked)
    out = b"".join(carried.feed(chunk) for chunk in chunks)
    return out + carried.close(), carried


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "theirs", "choices": [choice]}


def calling(index: int, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    begun = {"id": f"call_{index}", "type": "function"} if name else {}
    named = {"name": name} if name else {}
    return delta(
        tool_calls=[{"index": index, **begun, "function": {**named, "arguments": arguments}}]
    )


USED = {
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 9,
        "total_tokens": 109,
        "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 4},
    },
}
CHAT_STREAM = sse(
    delta(role="assistant", content=""),
    delta(reasoning="hm"),
    delta(reasoning_content=", well"),
    delta(content="ä – "),
    delta(content="東京"),
    calling(0, "weather"),
    calling(0, arguments='{"city": '),
    calling(0, arguments='"Köln"}'),
    calling(1, "now", '{"a":'),
    calling(1, arguments=" {}}"),
    delta("tool_calls"),
    USED,
    "[DONE]",
)

BEGUN = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "theirs",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "output_tokens": 1,
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 4,
        },
    },
}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def part(index: int, kind: str, **said: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, sequence: str | None = None, **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9, **usage}},
        {"type": "message_stop"},
    ]


ANTHROPIC_STREAM = named_sse(
    BEGUN,
    start(0, type="thinking", thinking="", signature=""),
    {"type": "ping"},
    part(0, "thinking_delta", thinking="hm"),
    part(0, "thinking_delta", thinking=", well"),
    part(0, "signature_delta", signature="s1"),
    stop(0),
    start(1, type="redacted_thinking", data="abc="),
    stop(1),
    start(2, type="text", text=""),
    part(2, "text_delta", text="ä – "),
    part(2, "text_delta", text="東京"),
    stop(2),
    start(3, type="tool_use", id="toolu_0", name="weather", input={}),
    part(3, "input_json_delta", partial_json=""),
    part(3, "input_json_delta", partial_json='{"city": '),
    part(3, "input_json_delta", partial_json='"Köln"}'),
    stop(3),
    start(4, type="tool_use", id="toolu_1", name="now", input={}),
    part(4, "input_json_delta", partial_json=""),
    stop(4),
    *ended("tool_use"),
)

CONVERSE_FRAMES = [
    frame("messageStart", {"role": "assistant"}),
    frame(
        "contentBlockDelta",
        {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm, well"}}},
    ),
    frame(
        "contentBlockDelta",
        {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "s1"}}},
    ),
    frame("contentBlockStop", {"contentBlockIndex": 0}),
    frame(
        "contentBlockDelta",
        {"contentBlockIndex": 1, "delta": {"reasoningContent": {"redactedContent": blob(b"i")}}},
    ),
    frame("contentBlockStop", {"contentBlockIndex": 1}),
    frame("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"text": "ä – 東京"}}),
    frame("contentBlockStop", {"contentBlockIndex": 2}),
    frame(
        "contentBlockStart",
        {
            "contentBlockIndex": 3,
            "start": {"toolUse": {"toolUseId": "tooluse_0", "name": "weather"}},
        },
    ),
    frame(
        "contentBlockDelta",
        {"contentBlockIndex": 3, "delta": {"toolUse": {"input": '{"city": "Köln"}'}}},
    ),
    frame("contentBlockStop", {"contentBlockIndex": 3}),
    frame("messageStop", {"stopReason": "tool_use"}),
    frame(
        "metadata",
        {
            "usage": {
                "inputTokens": 6,
                "outputTokens": 9,
                "totalTokens": 109,
                "cacheReadInputTokens": 90,
                "cacheWriteInputTokens": 4,
            },
            "metrics": {"latencyMs": 5},
        },
    ),
]
CONVERSE_STREAM = b"".join(CONVERSE_FRAMES)
USAGE = Usage(prompt_tokens=100, cached_tokens=90, completion_tokens=9)
CHAT_USAGE = USED["usage"]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(name: str, function: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": function, "input": arguments}


def test_a_chat_becomes_a_message() -> None:
    out, carried = passed(ANTHROPIC, CHAT, [CHAT_STREAM])
    assert check_anthropic(out) == {
        "model": "ours",
        "content": [
            {"type": "thinking", "thinking": "hm, well", "signature": ""},
            text("ä – 東京"),
            use("call_0", "weather", '{"city": "Köln"}'),
            use("call_1", "now", '{"a": {}}'),
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "output_tokens": 9,
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 4,
        },
    }
    assert (carried.done, carried.failed, carried.has_content) == (True, False, True)
    assert (carried.usage, carried.finish, carried.pieces) == (USAGE, "tool_calls", 10)


def test_a_message_becomes_a_chat() -> None:
    out, carried = passed(CHAT, ANTHROPIC, [ANTHROPIC_STREAM])
    assert check_chat(out, usage_asked=True) == {
        "content": "ä – 東京",
        "reasoning": "hm, well",
        "calls": [["toolu_0", "weather", '{"city": "Köln"}'], ["toolu_1", "now", "{}"]],
        "finish": "tool_calls",
        "stop": None,
        "usage": CHAT_USAGE,
    }
    assert (carried.done, carried.failed, carried.usage) == (True, False, USAGE)
    assert (carried.finish, carried.pieces) == ("tool_calls", 9)


def test_converse_becomes_a_chat() -> None:
    out, carried = passed(CHAT, CONVERSE, [CONVERSE_STREAM])
    assert check_chat(out, usage_asked=True) == {
        "content": "ä – 東京",
        "reasoning": "hm, well",
        "calls": [["tooluse_0", "weather", '{"city": "Köln"}']],
        "finish": "tool_calls",
        "stop": None,
        "usage": CHAT_USAGE,
    }
    assert (carried.done, carried.failed, carried.usage) == (True, False, USAGE)


def test_converse_becomes_a_message() -> None:
    out, carried = passed(ANTHROPIC, CONVERSE, [CONVERSE_STREAM])
    assert check_anthropic(out) == {
        "model": "ours",
        "content": [
            {"type": "thinking", "thinking": "hm, well", "signature": "s1"},
            {"type": "redacted_thinking", "data": blob(b"i")},
            text("ä – 東京"),
            use("tooluse_0", "weather", '{"city": "Köln"}'),
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "output_tokens": 9,
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 4,
        },
    }
    assert (carried.done, carried.usage) == (True, USAGE)


STREAMS = [
    pytest.param(ANTHROPIC, CHAT, CHAT_STREAM, id="chat for anthropic"),
    pytest.param(CHAT, ANTHROPIC, ANTHROPIC_STREAM, id="anthropic for chat"),
    pytest.param(CHAT, CONVERSE, CONVERSE_STREAM, id="converse for chat"),
    pytest.param(ANTHROPIC, CONVERSE, CONVERSE_STREAM, id="converse for anthropic"),
    pytest.param(ANTHROPIC, CHAT, recorded("chat_stream_usage"), id="recorded chat"),
    pytest.param(ANTHROPIC, CHAT, recorded("chat_stream_plain"), id="recorded without usage"),
    pytest.param(
        ANTHROPIC, CHAT, recorded("chat_stream_continuous_usage"), id="recorded with much usage"
    ),
    pytest.param(CHAT, ANTHROPIC, recorded("messages_stream"), id="recorded messages"),
    pytest.param(
        CHAT, ANTHROPIC, ANTHROPIC_STREAM.replace(b"\n", b"\r\n"), id="lines end as on Windows"
    ),
]


@pytest.mark.parametrize(("client", "backend", "data"), STREAMS)
def test_it_makes_no_difference_where_a_stream_is_cut(
    client: Api, backend: Api, data: bytes
) -> None:
    whole, whole_stream = passed(client, backend, [data])
    check_anthropic(whole) if client is ANTHROPIC else check_chat(whole, usage_asked=True)
    for at in range(len(data) + 1):
        out, carried = passed(client, backend, [data[:at], data[at:]])
        assert out == whole, at
    out, carried = passed(client, backend, [data[at : at + 1] for at in range(len(data))])
    assert out == whole
    kept = ("usage", "finish", "pieces", "done", "failed", "has_content")
    assert [getattr(carried, k) for k in kept] == [getattr(whole_stream, k) for k in kept]


def test_a_recorded_chat_keeps_every_word_and_count() -> None:
    got = check_anthropic(passed(ANTHROPIC, CHAT, [recorded("chat_stream_usage")])[0])
    chunks = [json.loads(d) for _, d in sse_data(recorded("chat_stream_usage")) if d != "[DONE]"]
    said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert got["content"] == [text(said)]
    assert got["stop_reason"] == "max_tokens"
    assert got["usage"] == {
        "input_tokens": 30,
        "output_tokens": 6,
        "cache_read_input_tokens": 96,
        "cache_creation_input_tokens": 0,
    }


def test_a_recorded_message_keeps_every_word_and_count() -> None:
    out, carried = passed(CHAT, ANTHROPIC, [recorded("messages_stream")])
    got = check_chat(out, usage_asked=True)
    assert (got["content"], got["finish"]) == ("\n" * 6, "length")
    assert got["usage"] == {
        "prompt_tokens": 126,
        "completion_tokens": 6,
        "total_tokens": 132,
        "prompt_tokens_details": {"cached_tokens": 96, "cache_write_tokens": 0},
    }
    assert carried.usage == Usage(126, 96, 6)


def test_usage_goes_only_to_who_asked_for_it_and_is_known_in_any_case() -> None:
    out, carried = passed(CHAT, ANTHROPIC, [ANTHROPIC_STREAM], usage_asked=False)
    assert check_chat(out, usage_asked=False)["usage"] is None
    assert carried.usage == USAGE


@pytest.mark.parametrize(
    ("client", "backend", "frames", "contents"),
    [
        pytest.param(CHAT, ANTHROPIC, named_sse(BEGUN, {"type": "ping"}), False, id="a start"),
        pytest.param(
            CHAT,
            ANTHROPIC,
            named_sse(BEGUN, start(0, type="text", text=""), part(0, "text_delta", text="")),
            False,
            id="an empty block",
        ),
        pytest.param(
            CHAT,
            ANTHROPIC,
            named_sse(BEGUN, start(0, type="tool_use", id="c", name="f", input={})),
            True,
            id="a call",
        ),
        pytest.param(
            ANTHROPIC, CHAT, sse(delta(role="assistant", content="")), False, id="a role alone"
        ),
        pytest.param(ANTHROPIC, CHAT, sse(delta(reasoning="h")), True, id="a thought"),
        pytest.param(ANTHROPIC, CONVERSE, CONVERSE_FRAMES[0], False, id="a start of Converse"),
    ],
)
def test_frames_around_content_are_no_content(
    client: Api, backend: Api, frames: bytes, contents: bool
) -> None:
    out, carried = passed(client, backend, [frames])
    assert (carried.has_content, carried.pieces, carried.done) == (contents, int(contents), False)
    assert out != b""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param("stop", ("end_turn", None), id="stop"),
        pytest.param("length", ("max_tokens", None), id="length"),
        pytest.param("content_filter", ("refusal", None), id="filter"),
        pytest.param("whatever", ("end_turn", None), id="a reason that nobody knows"),
    ],
)
def test_a_chats_end_is_said_in_a_messages_words(said: str, expected: object) -> None:
    chunks = sse(delta(content="hi"), delta(said), "[DONE]")
    got = check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])
    assert (got["stop_reason"], got["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "stop"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_a_messages_end_is_said_in_a_chats_words(said: str, finish: str) -> None:
    out, carried = passed(CHAT, ANTHROPIC, [named_sse(BEGUN, *ended(said))])
    assert check_chat(out, usage_asked=True)["finish"] == carried.finish == finish


def test_a_stop_sequence_is_named_in_both_directions() -> None:
    at = delta("stop", content="hi")
    at["choices"][0]["stop_reason"] = "END"
    got = check_anthropic(passed(ANTHROPIC, CHAT, [sse(at, "[DONE]")])[0])
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", "END")
    message = named_sse(BEGUN, *ended("stop_sequence", "END"))
    got = check_chat(passed(CHAT, ANTHROPIC, [message])[0], usage_asked=True)
    assert (got["finish"], got["stop"]) == ("stop", "END")


def test_a_refusal_is_text_and_the_reason() -> None:
    chunks = sse(delta(refusal="I will"), delta(refusal=" not."), delta("stop"), "[DONE]")
    got = check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])
    assert (got["content"], got["stop_reason"]) == ([text("I will not.")], "refusal")


def test_a_call_that_was_demanded_ends_as_a_call() -> None:
    chunks = sse(calling(0, "weather", "{}"), delta("stop"), "[DONE]")
    out, carried = passed(ANTHROPIC, CHAT, [chunks])
    assert check_anthropic(out)["stop_reason"] == "tool_use"
    assert carried.finish == "tool_calls"


def test_calls_written_at_once_come_one_after_another() -> None:
    chunks = sse(
        calling(0, "weather", '{"city": '),
        calling(1, "now", '{"zone": '),
        calling(2, "hush"),
        calling(1, arguments='"CET"}'),
        delta(content="a moment"),
        calling(0, arguments='"Köln"}'),
        calling(2, arguments="{}"),
        delta("tool_calls"),
        "[DONE]",
    )
    assert check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])["content"] == [
        use("call_0", "weather", '{"city": "Köln"}'),
        use("call_1", "now", '{"zone": "CET"}'),
        use("call_2", "hush", "{}"),
        text("a moment"),
    ]


def test_a_complete_call_does_not_keep_the_next_one_waiting() -> None:
    carried = stream(ANTHROPIC, CHAT)
    carried.feed(sse(calling(0, "weather", '{"city": "Köln"}')))
    out = carried.feed(sse(calling(1, "now", '{"zo')))
    assert b'"partial_json":"{\\"zo"' in out


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param(
            [
                [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
                [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}],
            ],
            [use("a", "f", "{}"), use("b", "g", "{}")],
            id="no index at first",
        ),
        pytest.param(
            [
                [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}],
                [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}}],
            ],
            [use("a", "f", "{}"), use("b", "g", "{}")],
            id="the same index for all",
        ),
        pytest.param(
            [[{"index": 0, "function": {"name": "f"}}]], [use("call_0", "f", "")], id="no id"
        ),
        pytest.param(
            [
                [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a"'}}],
                [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}],
            ],
            [use("a", "f", '{"a":1}')],
            id="the name in every fragment",
        ),
    ],
)
def test_calls_are_understood_as_backends_write_them(
    calls: list[Any], expected: list[dict[str, Any]]
) -> None:
    chunks = sse(*(delta(tool_calls=each) for each in calls), delta("tool_calls"), "[DONE]")
    assert check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])["content"] == expected


def test_content_in_pieces_is_understood() -> None:
    pieces = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "text", "text": "hi"},
    ]
    chunks = sse(delta(content=pieces), delta("stop"), "[DONE]")
    assert check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        text("hi"),
    ]


def test_an_answer_without_content_is_one_empty_text() -> None:
    got = check_anthropic(passed(ANTHROPIC, CHAT, [sse(delta("stop"), "[DONE]")])[0])
    assert got["content"] == [text("")]


def test_unknown_events_blocks_and_choices_are_passed_over() -> None:
    message = named_sse(
        BEGUN,
        {"type": "surprise", "index": 0},
        {"type": "surprise", "index": "a", "delta": "b", "message": "c", "error": ["d"]},
        start(0, type="server_tool_use", id="s", name="web_search", input={}),
        part(0, "input_json_delta", partial_json="{}"),
        stop(0),
        start(1, type="text", text=""),
        part(1, "citations_delta"),
        part(1, "text_delta", text="hi"),
        stop(1),
        *ended("end_turn"),
    )
    got = check_chat(passed(CHAT, ANTHROPIC, [message])[0], usage_asked=True)
    assert (got["content"], got["calls"]) == ("hi", [])
    second = delta(content="other")
    second["choices"][0]["index"] = 1
    chunks = sse(delta(content="hi"), second, delta("stop"), "[DONE]")
    assert check_anthropic(passed(ANTHROPIC, CHAT, [chunks])[0])["content"] == [text("hi")]


CONVERSED = CONVERSE_FRAMES[0], b"".join(CONVERSE_FRAMES[1:])


@pytest.mark.parametrize("begins", [0, 2])
def test_an_answer_begins_once_whatever_its_backend_says(begins: int) -> None:
    frames = CONVERSED[0] * begins + CONVERSED[1]
    messages = named_sse(*[BEGUN] * begins, start(0, type="text", text="hi"), stop(0))
    messages += named_sse(*ended("end_turn"))
    for backend, said in ((CONVERSE, frames), (ANTHROPIC, messages)):
        whole = passed(CHAT, backend, [said])[0]
        assert check_chat(whole, usage_asked=True)["finish"] is not None
        check_responses(passed(Api.OPENAI_RESPONSES, backend, [said])[0])
    check_anthropic(passed(ANTHROPIC, CONVERSE, [frames])[0])


def test_a_stream_of_nothing_but_its_end_is_an_empty_message() -> None:
    got = check_anthropic(passed(ANTHROPIC, CHAT, [sse("[DONE]")])[0])
    assert got["content"] == [text("")]


def overloaded(message: str) -> bytes:
    error = {"type": "overloaded_error", "message": message}
    return named_sse({"type": "error", "error": error})


@pytest.mark.parametrize(
    ("client", "backend", "data", "kind"),
    [
        pytest.param(
            CHAT,
            ANTHROPIC,
            named_sse(BEGUN, start(0, type="text", text="hi")) + overloaded("account 7 is full"),
            ("ServiceUnavailableError", 529),
            id="anthropic for chat",
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            sse(delta(content="hi"), {"error": {"message": "m", "type": "x", "code": 503}}),
            "overloaded_error",
            id="chat for anthropic",
        ),
        pytest.param(
            CHAT,
            CONVERSE,
            CONVERSE_FRAMES[0] + frame("throttlingException", {"message": "slow"}, "exception"),
            ("RateLimitError", 429),
            id="converse for chat",
        ),
        pytest.param(
            ANTHROPIC,
            CONVERSE,
            CONVERSE_FRAMES[0] + frame("500", {}, "error"),
            "api_error",
            id="converse for anthropic",
        ),
        pytest.param(CHAT, ANTHROPIC, b"data: {\n\n", ("BadGatewayError", 502), id="no JSON"),
        pytest.param(
            CHAT, CONVERSE, b"\0" * 16, ("BadGatewayError", 502), id="no frame of Bedrock's"
        ),
        pytest.param(
            ANTHROPIC,
            CHAT,
            sse(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
            "api_error",
            id="a call without a name",
        ),
    ],
)
def test_an_error_in_mid_stream_is_one_in_the_clients_words(
    client: Api, backend: Api, data: bytes, kind: object
) -> None:
    out, carried = passed(client, backend, [data, b"data: [DONE]\n\n"])
    name, said = sse_data(out)[-1]
    error = json.loads(said)
    if client is ANTHROPIC:
        assert (name, error["type"], error["error"]["type"]) == ("error", "error", kind)
    else:
        assert (name, (error["error"]["type"], error["error"]["code"])) == (None, kind)
    assert json.loads(carried.error) == error
    assert (carried.failed, carried.done) == (True, False)
    assert b"account" not in out


def test_a_stream_that_breaks_off_gets_no_end() -> None:
    for client, backend, data in (
        (ANTHROPIC, CHAT, CHAT_STREAM),
        (CHAT, ANTHROPIC, ANTHROPIC_STREAM),
    ):
        out, carried = passed(client, backend, [data[:-30]])
        assert (carried.done, carried.failed) == (False, False)
        assert b"[DONE]" not in out
        assert b"message_stop" not in out


def test_converse_is_complete_after_its_stop() -> None:
    out, carried = passed(CHAT, CONVERSE, CONVERSE_FRAMES[:-1])
    assert carried.done
    assert check_chat(out, usage_asked=True)["finish"] == "tool_calls"
    out, carried = passed(CHAT, CONVERSE, CONVERSE_FRAMES[:-2])
    assert not carried.done


def test_a_flipped_bit_in_a_frame_is_noticed() -> None:
    data = bytearray(CONVERSE_STREAM)
    data[len(data) // 2] ^= 4
    carried = passed(CHAT, CONVERSE, [bytes(data)])[1]
    assert (carried.failed, carried.done) == (True, False)
