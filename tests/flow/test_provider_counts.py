"""Tokens that no engine of ours can count are counted by a provider that may see the message."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import Gateways
from tests.fakes import MODEL, FakeEngine
from tests.provider_scenes import CHAT, UPSTREAM, in_order, published, scene
from tests.provider_stubs import COUNT, KEY, Stub

pytestmark = pytest.mark.flow

PATH = "/v1/messages/count_tokens"
ASK: dict[str, Any] = {"model": MODEL, "messages": CHAT["messages"], "system": "be brief"}
NOT_COUNTED = f"nothing can count tokens for `{MODEL}` now; try again shortly"
PII = "pii-stays-local"


async def test_a_provider_of_its_api_is_asked_and_gets_nothing_else(tmp_path: Path) -> None:
    stubs = {"gpt": Stub("OpenAI"), "claude": Stub("Anthropic")}
    async with scene(tmp_path, stubs, in_order("gpt", "claude")) as s:
        theirs = {"x-api-key": "mine", "cookie": "mine", "anthropic-beta": "b-1"}
        body = ASK | {"cache_salt": "s", "priority": 3}
        status, headers, said = await s.running.post(PATH, body, theirs)
        assert (status, json.loads(said)) == (200, {"input_tokens": COUNT})
        assert headers["request-id"] == headers["x-request-id"]
        (call,) = stubs["claude"].calls
        assert (call.path, call.body) == (PATH, ASK | {"model": UPSTREAM})
        assert (call.headers["x-api-key"], call.headers["anthropic-beta"]) == (KEY, "b-1")
        assert "cookie" not in call.headers
        assert stubs["gpt"].calls == []
        assert await s.running.inflight() == [0]
        assert await s.running.debug("/debug/decisions") == []


async def test_none_is_asked_where_an_engine_counts(tmp_path: Path) -> None:
    stub = Stub("Anthropic")
    async with scene(tmp_path, {"claude": stub}, in_order("claude"), FakeEngine(counts=7)) as s:
        assert json.loads((await s.running.post(PATH, ASK))[2]) == {"input_tokens": 7}
        assert stub.calls == []


@pytest.mark.parametrize(
    ("policies", "tags"),
    [
        pytest.param({}, "", id="no policy names providers"),
        pytest.param(in_order("claude") | published(PII), "pii-detected", id="PII"),
        pytest.param(in_order("claude") | published(PII), "", id="it may hold PII"),
    ],
)
async def test_none_is_asked_that_may_not_see_the_message(
    tmp_path: Path, policies: dict[str, str], tags: str
) -> None:
    stub = Stub("Anthropic")
    async with scene(tmp_path, {"claude": stub}, policies) as s:
        headers = {"x-tags": tags} if tags else {}
        status, answered, said = await s.running.post(PATH, ASK, headers)
        assert (status, json.loads(said)["error"]["message"]) == (503, NOT_COUNTED)
        assert (await s.running.record(answered))["refusal"]["reason"] == "not_counted"
        assert stub.calls == []


async def test_one_without_pii_is_counted_under_the_same_policies(tmp_path: Path) -> None:
    policies = in_order("claude") | published(PII)
    async with scene(tmp_path, {"claude": Stub("Anthropic")}, policies) as s:
        absent = {"x-tags": "pii-detected=absent"}
        assert (await s.running.post(PATH, ASK, absent))[0] == 200


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        pytest.param({"status": 500}, 503, NOT_COUNTED, id="it fails"),
        pytest.param({"status": 429, "says": "your quota"}, 503, NOT_COUNTED, id="it is full"),
        pytest.param({"status": 404}, 503, NOT_COUNTED, id="it does not count"),
        pytest.param({"status": 401, "says": KEY}, 503, NOT_COUNTED, id="it wants another key"),
        pytest.param(
            {"refuses": "system"}, 400, "Unknown parameter: 'system'.", id="the client's mistake"
        ),
    ],
)
async def test_what_it_says_of_our_account_reaches_no_client(
    tmp_path: Path, how: dict[str, Any], status: int, message: str
) -> None:
    stub = Stub("Anthropic", **how)
    async with scene(tmp_path, {"claude": stub}, in_order("claude")) as s:
        answered, headers, said = await s.running.post(PATH, ASK)
        error = json.loads(said)
        assert (answered, error["type"], error["error"]["message"]) == (status, "error", message)
        assert headers["content-type"].startswith("application/json")
        assert len(stub.calls) == 1


async def test_a_gateway_that_asks_is_told_of_the_provider_behind_the_engine(
    tmp_path: Path,
) -> None:
    open_ = Gateways(anonymous=True)
    query = {"path": PATH, "headers": {"x-api-key": "mine"}, "body": ASK}
    async with scene(
        tmp_path, {"claude": Stub("Anthropic")}, in_order("claude"), gateways=open_
    ) as s:
        _, _, said = await s.running.post("/lineside/v1/route", query)
        answer = json.loads(said)
        first, (other,) = answer["routed"]["target"], answer["routed"]["fallbacks"]
        assert (answer["decision_id"], first["url"].endswith(PATH)) == ("", True)
        assert (other["backend"], other["model"]) == ("claude", MODEL)
        assert other["url"].endswith(PATH)
        assert json.loads(other["body"]) == ASK | {"model": UPSTREAM}
        assert "x-api-key" in other["remove_headers"]
        assert await s.running.debug("/debug/decisions") == []
