"""Providers that answer otherwise than they should: nothing of it is taken for an answer."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.provider_scenes import CHAT, in_order, scene
from tests.provider_stubs import OPENAI, SSE, Stub

pytestmark = pytest.mark.flow

MESSAGES = "/v1/messages"
CHATTY = "the key sk-1 of organization org-7 is over its quota"
ERROR = {"error": {"message": CHATTY, "type": "x", "code": 429}}
PACKED = {"content-encoding": "gzip", "content-type": "application/json"}
HELLO = {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}


@dataclass
class Scripted(Stub):
    """Answers each request as it was told to."""

    type: str = "OpenAI"
    answer: dict[str, Any] = field(default_factory=dict)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(**self.answer)


def packed(said: Any, status: int = 200) -> dict[str, Any]:
    return {"status": status, "body": gzip.compress(json.dumps(said).encode()), "headers": PACKED}


@pytest.mark.parametrize(
    ("answer", "streams"),
    [
        pytest.param({"text": "<html>", "content_type": "text/html"}, False, id="a page"),
        pytest.param({"text": "<html>", "content_type": "text/html"}, True, id="and no stream"),
        pytest.param({"body": b""}, False, id="nothing"),
        pytest.param({"text": json.dumps(ERROR)}, False, id="an error with status 200"),
        pytest.param({"text": json.dumps(OPENAI), "status": 202}, False, id="another status"),
        pytest.param({"body": b"{}", "headers": PACKED}, False, id="badly packed"),
    ],
)
async def test_what_is_no_answer_is_a_failure(
    answer: dict[str, Any], streams: bool, tmp_path: Path
) -> None:
    stub = Scripted(answer=answer)
    async with scene(tmp_path, {"cloud": stub}, in_order("cloud")) as scened:
        for path in ("/v1/chat/completions", MESSAGES):
            status, raw, record = await scened.ask(CHAT | {"stream": streams}, path)
            assert (status, record["outcome"]["end"]) == (502, "failed")
            assert b"quota" not in raw


async def test_what_was_packed_unasked_is_unpacked(tmp_path: Path) -> None:
    stub = Scripted(answer=packed(OPENAI))
    async with scene(tmp_path, {"cloud": stub}, in_order("cloud")) as scened:
        for path in ("/v1/chat/completions", MESSAGES):
            stub.answer = packed(OPENAI)
            status, raw, record = await scened.ask(CHAT, path)
            assert (status, b"Hello there." in raw) == (200, True)
            assert record["outcome"]["prompt_tokens"] == 11
            stub.answer = packed({"error": {"message": "too hot", "type": "x"}}, 400)
            status, raw, _ = await scened.ask(CHAT, path)
            assert (status, json.loads(raw)["error"]["message"]) == (400, "too hot")


async def test_an_error_in_mid_stream_has_no_words_about_accounts(tmp_path: Path) -> None:
    events = b"".join(b"data: " + json.dumps(said).encode() + b"\n\n" for said in (HELLO, ERROR))
    stub = Scripted(answer={"body": events, "content_type": SSE})
    async with scene(tmp_path, {"cloud": stub}, in_order("cloud")) as scened:
        for path in ("/v1/chat/completions", MESSAGES):
            status, raw, record = await scened.ask(CHAT | {"stream": True}, path)
            assert (status, record["outcome"]["end"]) == (200, "failed")
            assert b"Hello" in raw
            assert b"takes no more requests now" in raw.splitlines()[-2]
            assert b"quota" not in raw


async def test_an_error_that_is_called_a_stream_is_an_error(tmp_path: Path) -> None:
    error = json.dumps({"error": {"message": "too hot", "type": "x"}})
    stub = Scripted(answer={"status": 400, "text": error, "content_type": SSE})
    async with scene(tmp_path, {"cloud": stub}, in_order("cloud")) as scened:
        for path in ("/v1/chat/completions", MESSAGES):
            status, raw, _ = await scened.ask(CHAT | {"stream": True}, path)
            assert (status, json.loads(raw)["error"]["message"]) == (400, "too hot")


async def test_a_stream_without_its_type_is_one(tmp_path: Path) -> None:
    events = b"data: " + json.dumps(HELLO).encode() + b"\n\ndata: [DONE]\n\n"
    stub = Scripted(answer={"body": events})
    async with scene(tmp_path, {"cloud": stub}, in_order("cloud")) as scened:
        for path in ("/v1/chat/completions", MESSAGES):
            status, raw, record = await scened.ask(CHAT | {"stream": True}, path)
            assert (status, b"Hello" in raw) == (200, True)
            assert record["outcome"]["end"] == "finished"
