"""Streams that bring an error before any content: nothing was sent, so all can be mended."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.provider_scenes import CHAT, MESSAGE, in_order, scene
from tests.provider_stubs import Stub

pytestmark = pytest.mark.flow

CLIENTS = [
    pytest.param("/v1/chat/completions", CHAT | {"stream": True}, id="openai"),
    pytest.param("/v1/messages", MESSAGE | {"stream": True}, id="anthropic"),
]


@pytest.mark.parametrize("kind", ["OpenAI", "Anthropic", "Bedrock"])
@pytest.mark.parametrize(("path", "body"), CLIENTS)
async def test_a_provider_that_takes_no_more_is_followed_by_the_next(
    tmp_path: Path, kind: str, path: str, body: dict[str, Any]
) -> None:
    full, other = Stub(kind, full_after=1), Stub("OpenAI")
    async with scene(tmp_path, {"full": full, "other": other}, in_order("full", "other")) as s:
        status, said, record = await s.ask(body, path)
        assert (status, record["decision"]["id"]) == (200, "other")
        assert (len(full.calls), len(other.calls)) == (1, 1)
        (attempt,) = record["attempts"]
        assert (attempt["engine"], attempt["repeat"]) == ("full", "safe")
        assert b"".join(said.split()).count(b"full") == 0
        assert said.count(b"event: message_start") == (path == "/v1/messages")


@pytest.mark.parametrize(
    ("kind", "chats", "messages"),
    [("OpenAI", 429, 429), ("Anthropic", 503, 529), ("Bedrock", 429, 429)],
)
@pytest.mark.parametrize(("path", "body"), CLIENTS)
async def test_when_all_are_full_the_client_gets_a_status(
    tmp_path: Path, kind: str, chats: int, messages: int, path: str, body: dict[str, Any]
) -> None:
    stubs = {"one": Stub(kind, full_after=1), "two": Stub(kind, full_after=1)}
    policy = in_order("one", "two")["first"].replace("      - { type: Local }\n", "")
    async with scene(tmp_path, stubs, {"first": policy}) as s:
        status, said, record = await s.ask(body, path)
        assert status == (messages if path == "/v1/messages" else chats)
        error = json.loads(said)
        assert (error.get("type") == "error") == (path == "/v1/messages")
        assert "error" in error
        assert [len(stub.calls) for stub in stubs.values()] == [1, 1]
        assert (record["outcome"]["end"], len(record["attempts"])) == ("rejected", 2)
        assert await s.running.inflight() == [0]


@pytest.mark.parametrize(("path", "body"), CLIENTS)
async def test_after_content_there_is_no_second_call(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    full, other = Stub("Anthropic", full_after=5), Stub("OpenAI")
    async with scene(tmp_path, {"full": full, "other": other}, in_order("full", "other")) as s:
        status, said, record = await s.ask(body, path)
        assert (status, len(full.calls), len(other.calls)) == (200, 1, 0)
        assert b"Hello" in said
        assert (record["outcome"]["end"], record["decision"]["id"]) == ("failed", "full")
