"""An event stream may be cut anywhere: what is sent on, what is noticed and what is taken out."""

import json
from pathlib import Path

import pytest

from coordinator.answer_parts import read_answer
from coordinator.apis import Api
from coordinator.doors.sse import HELD_BYTES, Stream, stream_of
from coordinator.limits import Usage

CASES = Path(__file__).parent / "cases" / "http"


def captured(name: str) -> bytes:
    raw: str = json.loads((CASES / f"{name}.json").read_text())["sse_raw"]
    return raw.encode()


def events(stream: bytes) -> list[bytes]:
    return stream.removesuffix(b"\n\n").split(b"\n\n")


def told(stream: Stream) -> tuple[bool, bool, bool, Usage, str | None]:
    return (stream.has_content, stream.done, stream.failed, stream.usage, stream.finish)


CHAT = captured("chat_stream_usage")
CHAT_STRIPPED = b"".join(e + b"\n\n" for e in events(CHAT) if b'"choices":[]' not in e)
CHAT_TOLD = (True, True, False, Usage(126, 96, 6), "length")


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("strip", [True, False], ids=["strip usage", "keep usage"])
def test_a_stream_may_be_cut_at_every_byte(strip: bool, newline: bytes) -> None:
    whole = CHAT.replace(b"\n", newline)
    expected = (CHAT_STRIPPED if strip else CHAT).replace(b"\n", newline)
    for at in range(len(whole) + 1):
        stream = Stream(strip_usage=strip)
        sent = stream.feed(whole[:at]) + stream.feed(whole[at:]) + stream.close()
        assert sent == expected, at
        assert told(stream) == CHAT_TOLD, at


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_a_stream_may_come_in_small_pieces(size: int) -> None:
    stream = Stream(strip_usage=True)
    pieces = [CHAT[at : at + size] for at in range(0, len(CHAT), size)]
    assert b"".join(map(stream.feed, pieces)) + stream.close() == CHAT_STRIPPED
    assert told(stream) == CHAT_TOLD


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        pytest.param("chat_stream_plain", Usage(), id="a chat without usage"),
        pytest.param("completion_stream_usage", Usage(49, 32, 6), id="a completion"),
        pytest.param("chat_stream_continuous_usage", Usage(126, 96, 6), id="usage in each chunk"),
    ],
)
def test_events_pass_one_by_one(name: str, usage: Usage) -> None:
    whole = captured(name)
    stream = Stream(strip_usage=False)
    for event in events(whole):
        assert stream.feed(event + b"\n\n") == event + b"\n\n"
    assert stream.close() == b""
    assert told(stream) == (True, True, False, usage, "length")


def test_events_with_content_are_counted_as_they_pass() -> None:
    stream = Stream(strip_usage=True)
    counts = []
    for event in events(CHAT):
        stream.feed(event + b"\n\n")
        counts.append(stream.pieces)
    assert counts == [0, 1, 2, 3, 4, 5, 6, 6, 6]


def test_the_role_alone_is_no_content() -> None:
    first, second, *_ = events(CHAT)
    stream = Stream(strip_usage=True)
    stream.feed(first + b"\n\n")
    assert not stream.has_content
    stream.feed(second + b"\n\n")
    assert stream.has_content


@pytest.mark.parametrize(
    "delta",
    [
        pytest.param({"content": "x"}, id="text"),
        pytest.param({"reasoning": "x"}, id="reasoning"),
        pytest.param({"tool_calls": [{"index": 0}]}, id="a tool call"),
    ],
)
def test_every_kind_of_output_is_content(delta: dict[str, object]) -> None:
    stream = Stream(strip_usage=True)
    stream.feed(b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n")
    assert stream.has_content


def test_text_that_looks_like_usage_or_an_end_is_text() -> None:
    chunk = {"choices": [{"delta": {"content": 'the "usage": [DONE] "choices":[]'}}]}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    stream = Stream(strip_usage=True)
    assert stream.feed(event) + stream.feed(event) + stream.close() == event * 2
    assert (stream.done, stream.usage) == (False, Usage())


def test_an_error_event_is_noticed_and_passes() -> None:
    error = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    first, second, *_ = events(CHAT)
    content = first + b"\n\n" + second + b"\n\n"
    for before in (b"", content):
        stream = Stream(strip_usage=True)
        assert stream.feed(before) + stream.feed(error) + stream.close() == before + error
        assert stream.failed


def test_a_providers_errors_pass_in_other_words_only() -> None:
    secret = b'"error":{"message":"of account 7","code":429}'
    chunks = [b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: {%b}\n\n" % secret]
    late = b'data: {"id":"c",%b,"choices":[]}\n\n' % secret
    for parts in (chunks, [b"".join(chunks)], chunks[1:], [chunks[0], late + chunks[0]]):
        stream = stream_of(Api.OPENAI_CHAT, usage_asked=True, reword=lambda data: b"!")
        sent = b"".join(map(stream.feed, parts)) + stream.close()
        assert (stream.failed, b"account" in sent, sent.count(b"!")) == (True, False, 1)
        assert sent.count(chunks[0]) == b"".join(parts).count(chunks[0])


def test_a_stream_cut_inside_an_event_is_not_done() -> None:
    stream = Stream(strip_usage=True)
    cut = CHAT[: len(CHAT) - 9]
    assert stream.feed(cut) + stream.close() == CHAT_STRIPPED[: len(CHAT_STRIPPED) - 9]
    assert not stream.done


def test_an_event_beyond_the_bound_passes_unread() -> None:
    stream = Stream(strip_usage=True)
    huge = b"data: " + b"x" * HELD_BYTES
    assert stream.feed(huge) == huge


def test_the_usage_of_an_answer_that_was_not_streamed() -> None:
    body = json.dumps(json.loads((CASES / "chat_again_cached.json").read_text())["body"]).encode()
    assert read_answer(body) == (Usage(126, 96, 6), "length")
    assert read_answer(b"not JSON") == (Usage(), None)


MESSAGES = captured("messages_stream")


def named(*told: dict[str, object]) -> bytes:
    """Return events whose names are their data's types."""
    return b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in told
    )


PART = {"type": "response.output_text.delta", "delta": "x", "sequence_number": 4}
USAGE = {
    "input_tokens": 18,
    "output_tokens": 2,
    "input_tokens_details": {"cached_tokens": 16},
}
RESPONSE = {"id": "resp_1", "status": "in_progress", "usage": None}
ENDED = RESPONSE | {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "usage": USAGE,
}
RESPONSES = named(
    {"type": "response.created", "response": RESPONSE},
    {"type": "response.in_progress", "response": RESPONSE},
    {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
    {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
    PART,
    PART,
    {"type": "response.output_text.done", "text": "xx"},
    {"type": "response.completed", "response": ENDED},
)
OTHERS = [
    pytest.param(Api.ANTHROPIC_MESSAGES, MESSAGES, Usage(126, 96, 6), None, id="messages"),
    pytest.param(Api.OPENAI_RESPONSES, RESPONSES, Usage(18, 16, 2), "resp_1", id="a response"),
]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize(("api", "raw", "usage", "response"), OTHERS)
def test_streams_of_other_apis_may_be_cut_at_every_byte(
    api: Api, raw: bytes, usage: Usage, response: str | None, newline: bytes
) -> None:
    whole = raw.replace(b"\n", newline)
    for at in range(len(whole) + 1):
        stream = stream_of(api, usage_asked=True)
        assert stream.feed(whole[:at]) + stream.feed(whole[at:]) + stream.close() == whole, at
        assert told(stream) == (True, True, False, usage, "length"), at
        assert stream.response == response, at


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize(("api", "raw", "usage", "response"), OTHERS)
def test_streams_of_other_apis_may_come_in_small_pieces(
    api: Api, raw: bytes, usage: Usage, response: str | None, size: int
) -> None:
    stream = stream_of(api, usage_asked=True)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert b"".join(map(stream.feed, pieces)) + stream.close() == raw
    assert told(stream) == (True, True, False, usage, "length")


@pytest.mark.parametrize(("api", "raw", "usage", "response"), OTHERS)
def test_what_only_announces_an_answer_is_no_content(
    api: Api, raw: bytes, usage: Usage, response: str | None
) -> None:
    stream = stream_of(api, usage_asked=True)
    before = []
    for event in events(raw):
        before.append(stream.has_content)
        stream.feed(event + b"\n\n")
    announcing = before.index(True) - 1
    assert announcing == {Api.ANTHROPIC_MESSAGES: 2, Api.OPENAI_RESPONSES: 4}[api]
    assert stream.pieces >= {Api.ANTHROPIC_MESSAGES: 5, Api.OPENAI_RESPONSES: 2}[api]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
    ],
    ids=["text", "thinking", "arguments", "a tool call"],
)
def test_every_kind_of_a_messages_output_is_content(event: dict[str, object]) -> None:
    stream = stream_of(Api.ANTHROPIC_MESSAGES, usage_asked=True)
    stream.feed(named({"type": "ping"}))
    assert not stream.has_content
    stream.feed(named(event))
    assert stream.has_content


@pytest.mark.parametrize("again", [{}, {"input_tokens": 10}], ids=["none of it", "some of it"])
def test_a_providers_last_usage_may_leave_out_what_its_first_said(again: dict[str, int]) -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90}
    stream = stream_of(Api.ANTHROPIC_MESSAGES, usage_asked=True)
    stream.feed(
        named({"type": "message_start", "message": {"usage": first | {"output_tokens": 1}}})
    )
    last: dict[str, object] = {"type": "message_delta", "delta": {}}
    last["usage"] = {"output_tokens": 5} | again
    stream.feed(named(last))
    assert stream.usage == Usage(1000, 900, 5)


@pytest.mark.parametrize("before", [b"", b"content"], ids=["at once", "after content"])
@pytest.mark.parametrize(
    ("api", "content", "error"),
    [
        pytest.param(
            Api.ANTHROPIC_MESSAGES,
            {"type": "content_block_delta", "delta": {"text": "x"}},
            {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
            id="messages",
        ),
        pytest.param(Api.OPENAI_RESPONSES, PART, {"type": "error", "code": "x"}, id="a response"),
        pytest.param(
            Api.OPENAI_RESPONSES,
            PART,
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
            id="a response that failed",
        ),
    ],
)
def test_errors_in_streams_of_other_apis_are_noticed_and_pass(
    api: Api, content: dict[str, object], error: dict[str, object], before: bytes
) -> None:
    stream = stream_of(api, usage_asked=True)
    first, last = named(content) if before else b"", named(error)
    assert stream.feed(first) + stream.feed(last) + stream.close() == first + last
    assert (stream.failed, json.loads(stream.error)) == (True, error)


@pytest.mark.parametrize(
    ("name", "api", "said"),
    [
        ("messages", Api.ANTHROPIC_MESSAGES, (Usage(126, 96, 6), "length")),
        ("responses", Api.OPENAI_RESPONSES, (Usage(18, 0, 16), "length")),
    ],
)
def test_the_usage_of_whole_answers_of_other_apis(
    name: str, api: Api, said: tuple[Usage, str | None]
) -> None:
    body = json.dumps(json.loads((CASES / f"{name}.json").read_text())["body"]).encode()
    assert read_answer(body, api) == said
    assert read_answer(b"not JSON", api) == (Usage(), None)
