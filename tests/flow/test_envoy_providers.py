"""A real Envoy that sends requests to third parties by our word; answers are translated."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.config import EngineSpec, Envoy
from tests import provider_stubs
from tests.envoy_front import behind_envoy
from tests.envoy_rig import CHAT, Got, post
from tests.envoys import BUFFERED, FD, NONE, STREAMED, needs_envoy
from tests.fakes import FakeEngine, fake_engines
from tests.gateways import Running
from tests.provider_stubs import AWS, COUNT, KEY, REGION, WORDS, Stub
from tests.waiting import until

pytestmark = [pytest.mark.flow, needs_envoy, pytest.mark.asyncio(loop_scope="module")]

KINDS = {"gpt": "OpenAI", "claude": "Anthropic", "nova": "Bedrock"}
TEXT = "".join(WORDS)
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
ANY = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: any }
spec:
  rules: [ { name: any, route: { select: [ { type: Provider } ] } } ]
"""
PROVIDER = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: {{ name: {name} }}
spec:
  type: {kind}
  baseURL: {url}
  {more}
  models: [ {{ name: {name}, upstream: "vendor.model-v1:0" }} ]
"""


@dataclass
class Rig:
    """Providers, and the same coordinator's doors through Envoys of several modes."""

    running: Running
    url: str
    stubs: dict[str, Stub]

    async def ask(self, model: str, path: str, **more: Any) -> Got:
        headers = {"authorization": "Bearer mine", "x-api-key": "mine", "cookie": "mine"}
        return await post(self.url, ASK | {"model": model} | more, path=path, **headers)


def resources(folder: Path, stubs: dict[str, Stub]) -> None:
    (folder / "key").write_text(KEY)
    signer = f"[default]\naws_access_key_id = {AWS[0]}\naws_secret_access_key = {AWS[1]}\n"
    (folder / "aws").write_text(signer)
    (folder / "policy.yaml").write_text(ANY)
    for name, stub in stubs.items():
        more = f"credentials: {{ file: {folder}/key }}"
        if stub.type == "Bedrock":
            more = f"credentials: {{ accessKey: {{ file: {folder}/aws }} }}\n  region: {REGION}"
        text = PROVIDER.format(name=name, kind=stub.type, url=stub.url, more=more)
        (folder / f"{name}.yaml").write_text(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs() -> AsyncIterator[dict[str, Stub]]:
    made = {name: Stub(kind) for name, kind in KINDS.items()}
    async with provider_stubs.running(*made.values()):
        yield made


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[(FD, FD), (BUFFERED, STREAMED)], ids=["fd", "str"]
)
async def rig(
    request: pytest.FixtureRequest,
    stubs: dict[str, Stub],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Rig]:
    async with opened(tmp_path_factory.mktemp("resources"), stubs, *request.param) as made:
        yield made


@asynccontextmanager
async def opened(
    folder: Path, stubs: dict[str, Stub], asks: str, answers: str, **settings: Any
) -> AsyncIterator[Rig]:
    resources(folder, stubs)
    urls = {name: stub.url for name, stub in stubs.items()}
    async with (
        fake_engines(FakeEngine()) as (local,),
        behind_envoy(
            [EngineSpec(url=local.url)], urls, asks, answers, resources=str(folder), **settings
        ) as (running, url),
    ):
        yield Rig(running, url, stubs)


@pytest.mark.parametrize("model", KINDS)
async def test_a_chat_is_answered_by_a_provider_of_any_api(rig: Rig, model: str) -> None:
    got = await rig.ask(model, CHAT)
    assert got.status == 200, got.body
    answer = json.loads(got.body)
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("model", KINDS)
async def test_a_chat_is_streamed_by_a_provider_of_any_api(rig: Rig, model: str) -> None:
    got = await rig.ask(model, CHAT, stream=True)
    assert got.status == 200, got.body
    events = [line[6:] for line in got.body.splitlines() if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    chunks = [json.loads(event) for event in events]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == TEXT
    assert got.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_is_answered_by_a_provider_of_any_api(
    rig: Rig, model: str, stream: bool
) -> None:
    got = await rig.ask(model, "/v1/messages", stream=stream)
    assert got.status == 200, got.body
    if stream:
        assert b"event: message_stop" in got.body
    else:
        assert json.loads(got.body)["content"][0]["text"] == TEXT


async def test_what_a_provider_gets_is_its_own(rig: Rig) -> None:
    calls = rig.stubs["gpt"].calls
    calls.clear()
    await rig.ask("gpt", CHAT)
    (call,) = calls
    assert (call.path, call.body["model"]) == ("/v1/chat/completions", "vendor.model-v1:0")
    assert "mine" not in json.dumps(call.headers)
    assert not {"x-lineside-backend", "user-agent"} & call.headers.keys()


@pytest.mark.parametrize("model", KINDS)
async def test_a_providers_error_comes_in_the_clients_words(rig: Rig, model: str) -> None:
    stub = rig.stubs[model]
    stub.status = 400
    try:
        got = await rig.ask(model, CHAT)
    finally:
        stub.status = 200
    error = json.loads(got.body)["error"]
    assert (got.status, "message" in error) == (400, True)


async def test_a_providers_answer_is_accounted(rig: Rig) -> None:
    got = await rig.ask("claude", CHAT, stream=True)

    async def ended() -> bool:
        return bool((await rig.running.record(got.headers))["outcome"]["end"])

    await until(ended)
    record = await rig.running.record(got.headers)
    assert record["decision"]["type"] == "provider"
    assert record["outcome"]["end"] == "finished"
    assert record["outcome"]["completion_tokens"] > 0


async def test_what_cannot_be_translated_back_is_not_sent(
    stubs: dict[str, Stub], tmp_path: Path
) -> None:
    """Where no answer comes by here, a provider serves clients of its own API only."""
    async with opened(tmp_path, stubs, FD, NONE, envoy=Envoy()) as rig:
        stubs["claude"].calls.clear()
        got = await rig.ask("claude", CHAT)
        assert (got.status, b"does not have this API" in got.body) == (404, True)
        assert stubs["claude"].calls == []
        got = await rig.ask("claude", "/v1/messages")
        assert (got.status, json.loads(got.body)["content"][0]["text"]) == (200, TEXT)
        assert await rig.running.inflight() == [0]


async def test_a_gateway_that_nobody_knows_is_told_no_keys(
    stubs: dict[str, Stub], tmp_path: Path
) -> None:
    async with opened(tmp_path, stubs, FD, FD, known=False) as rig:
        stubs["gpt"].calls.clear()
        got = await rig.ask("gpt", CHAT)
        assert got.status == 401  # the provider's: its key would be the gateway's to add
        assert not {"authorization", "api-key", "x-api-key"} & stubs["gpt"].calls[0].headers.keys()


async def test_a_message_is_counted_by_who_would_answer_it(rig: Rig) -> None:
    path = "/v1/messages/count_tokens"
    before = len(rig.stubs["claude"].calls)
    got = await post(rig.url, {"model": "claude", "messages": ASK["messages"]}, path=path)
    assert (got.status, json.loads(got.body)["input_tokens"]) == (200, COUNT)
    (call,) = rig.stubs["claude"].calls[before:]
    assert (call.path, call.body["model"]) == (path, "vendor.model-v1:0")
    assert call.headers["x-api-key"] == KEY
    for model in ("gpt", "nova"):
        got = await post(rig.url, {"model": model, "messages": ASK["messages"]}, path=path)
        assert (got.status, json.loads(got.body)["type"]) == (503, "error")
    assert await rig.running.inflight() == [0]
