"""Policies on the read path: who is sent what, what never leaves, and how a set is swapped."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from coordinator.config import EngineSpec
from tests import gateways
from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.gateways import Running
from tests.waiting import until

pytestmark = pytest.mark.flow

EXAMPLES = Path(__file__).parents[2] / "policies/examples"
PUBLISHED = ("burst-policy", "pii-stays-local", "smart-semantic-routing")
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
KEY = "provider-key"
PII, NO_PII = {"x-tags": "pii-detected"}, {"x-tags": "pii-detected=absent"}

PROVIDER = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: {{ name: databricks }}
spec:
  type: OpenAI
  baseURL: {url}/v1
  credentials: {{ file: {key} }}
  models: [ {{ name: tiny-qwen3, upstream: big-model }} ]
"""


@dataclass
class Scene:
    """A coordinator with one engine and one provider, and the folder of its resources."""

    running: Running
    engine: FakeEngine
    provider: FakeEngine
    folder: Path

    async def chat(self, headers: dict[str, str], **fields: Any) -> tuple[int, Any, dict[str, Any]]:
        status, answered, body = await self.running.post(
            "/v1/chat/completions", CHAT | fields, headers
        )
        return status, json.loads(body), await self.running.record(answered)

    async def policies(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.running.debug("/debug/policies")
        return found

    async def swapped(self, before: int) -> None:
        async def is_swapped() -> bool:
            return bool((await self.policies())["revision"] > before)

        await until(is_swapped)


@asynccontextmanager
async def scene(
    folder: Path, policies: dict[str, str], engine: FakeEngine | None = None
) -> AsyncIterator[Scene]:
    async with fake_engines(engine or FakeEngine(), FakeEngine(models=("big-model",), key=KEY)) as (
        local,
        provider,
    ):
        (folder / "key").write_text(KEY + "\n")
        provided = PROVIDER.format(url=provider.url, key=folder / "key")
        (folder / "provider.yaml").write_text(provided)
        for name, text in policies.items():
            (folder / f"{name}.yaml").write_text(text)
        async with gateways.coordinator(
            EngineSpec(url=local.url), resources=str(folder), tags_header="x-tags"
        ) as running:
            yield Scene(running, local, provider, folder)


def published(*names: str) -> dict[str, str]:
    return {name: (EXAMPLES / f"{name}.yaml").read_text() for name in names}


@asynccontextmanager
async def overload(scene: Scene) -> AsyncIterator[None]:
    """Keep three requests without a first token on the engine: more than the burst rule allows."""
    asked = [
        asyncio.create_task(scene.running.post("/v1/chat/completions", CHAT | {"stream": True}))
        for _ in range(3)
    ]

    async def queued() -> bool:
        return (await scene.running.inflight())[0] == len(asked)

    await until(queued)
    yield
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_burst_goes_to_the_provider_with_its_own_key_model_and_headers(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, published("burst-policy"), FakeEngine(first_s=30)) as s:
        async with overload(s):
            sent = {**NO_PII, "authorization": "Bearer client", "cookie": "c", "x-secret": "s"}
            status, body, record = await s.chat(sent, cache_salt="mine")
        assert (status, body["choices"][0]["message"]["content"]) == (200, "xxxxx")
        assert s.provider.bodies == [CHAT | {"model": "big-model"}]
        (request,) = s.provider.requests
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert not {"cookie", "x-secret", "x-tags", "x-request-id"} & set(request.headers)
        names = record["policy"], record["rule"], record["stage"]
        assert names == ("inference/burst-policy", "burst-to-cloud", "select[1]")
        (local,) = [each for each in record["candidates"] if each["type"] == "engine"]
        assert local["dropped_by"].endswith("/drop-overloaded-workers")
        assert local["reason"] == "type Local, queuedPrompts 3 > 2"
        assert record["decision"]["type"] == "provider"


@pytest.mark.parametrize("tags", [PII, {}], ids=["present", "unknown"])
async def test_what_may_be_personal_is_refused_under_overload_and_the_provider_sees_nothing(
    tmp_path: Path, tags: dict[str, str]
) -> None:
    async with scene(tmp_path, published(*PUBLISHED), FakeEngine(first_s=30)) as s:
        async with overload(s):
            status, body, record = await s.chat(tags)
        assert status == 503
        assert "pii-stays-local/serve/pii-never-leaves-cluster" in body["error"]["message"]
        assert record["refusal"]["reason"] == "nothing_allowed"
        assert s.provider.requests == []


async def test_what_is_personal_stays_when_its_engine_fails_after_the_decision(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, published("burst-policy", "pii-stays-local")) as s:
        await s.engine.stop()
        status, _, record = await s.chat(PII)
        assert (status, [a["reason"] for a in record["attempts"]]) == (502, ["connection refused"])
        status, _, record = await s.chat(PII)  # the engine is known to be away by now
        assert status == 503
        assert s.provider.requests == []
        assert (await s.chat(NO_PII))[0] == 200
        assert len(s.provider.requests) == 1


async def test_a_provider_that_refuses_is_followed_by_the_engine(tmp_path: Path) -> None:
    async with scene(tmp_path, published("pii-stays-local")) as s:
        await s.provider.stop()
        status, _, record = await s.chat(NO_PII)
        assert status == 200
        assert record["decision"]["id"] == s.engine.endpoint
        assert [attempt["engine"] for attempt in record["attempts"]] == ["databricks"]


RULE = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{ name: {name} }}
spec:
  rules:
  - name: only
    {body}
"""
REJECT = RULE.format(name="deny", body='reject: { status: 451, message: "not here" }')
CAP = RULE.format(
    name="cap",
    body="route: { set: { maxTokens: 3, defaults: { top_p: 0.5 }, headers: { x-lane: slow } } }",
)
ALIAS = RULE.format(
    name="alias",
    body=f"""matches: [ {{ model: gpt-4o }} ]
    route: {{ consider: [ {{ models: {{ names: [ {MODEL} ] }} }} ] }}""",
)


async def test_a_provider_whose_address_cannot_be_used_comes_not_into_force(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, published("pii-stays-local")) as s:
        before = (await s.policies())["revision"]
        nowhere = PROVIDER.format(url="http://127.0.0.1:99999", key=s.folder / "key")
        (s.folder / "provider.yaml").write_text(nowhere)

        async def is_rejected() -> bool:
            return bool((await s.policies())["rejected"])

        await until(is_rejected)
        said = await s.policies()
        assert "address" in [finding["code"] for finding in said["findings"]]
        assert said["revision"] == before
        assert (await s.chat(NO_PII))[0] == 200


async def test_a_rejection_has_the_rules_status_and_words(tmp_path: Path) -> None:
    async with scene(tmp_path, {"deny": REJECT}) as s:
        status, body, record = await s.chat({})
        assert (status, body["error"]["message"]) == (451, "not here")
        assert (record["policy"], record["rule"]) == ("default/deny", "only")
        assert s.engine.bodies == []


async def test_a_rule_rewrites_within_bounds(tmp_path: Path) -> None:
    async with scene(tmp_path, {"cap": CAP}) as s:
        assert (await s.chat({}))[0] == 200
        assert (await s.chat({}, max_tokens=2, top_p=0.9))[0] == 200
        assert s.engine.bodies == [
            CHAT | {"max_tokens": 3, "top_p": 0.5},
            CHAT | {"max_tokens": 2, "top_p": 0.9},
        ]
        assert [request.headers["x-lane"] for request in s.engine.requests] == ["slow", "slow"]


async def test_a_rule_makes_something_of_a_name_that_nothing_serves(tmp_path: Path) -> None:
    async with scene(tmp_path, {"alias": ALIAS}) as s:
        status, _, record = await s.chat({}, model="gpt-4o")
        assert (status, record["decision"]["model"]) == (200, MODEL)
        assert s.engine.bodies == [CHAT]
        assert (await s.chat({}, model="other"))[0] == 404


async def test_a_bad_edit_keeps_the_last_good_set_and_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path, {"deny": REJECT}) as s:
        (s.folder / "deny.yaml").write_text(REJECT.replace("reject:", "rejct:"))

        async def is_rejected() -> bool:
            return bool((await s.policies())["rejected"])

        await until(is_rejected)
        (finding,) = (await s.policies())["findings"]
        assert finding["file"].endswith("deny.yaml")
        assert (finding["line"], "reject" in finding["help"]) == (8, True)
        assert (await s.chat({}))[0] == 451
        degraded = (await s.running.debug("/readyz"))["degraded"]
        assert any("resources have errors" in reason for reason in degraded)
        before = (await s.policies())["revision"]
        (s.folder / "deny.yaml").unlink()
        await s.swapped(before)
        assert (await s.chat({}))[0] == 200


async def test_a_set_is_rolled_back_by_one_command_until_files_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(tmp_path, {"deny": REJECT}) as s:
        before = (await s.policies())["revision"]
        (s.folder / "deny.yaml").write_text(REJECT.replace("451", "418"))
        await s.swapped(before)
        assert (await s.chat({}))[0] == 418
        command = ["policy", "rollback", "--admin", s.running.admin]
        assert await asyncio.to_thread(main, command) == 0
        assert capsys.readouterr().out == f"revision {before + 2} is in force: default/deny\n"
        assert (await s.chat({}))[0] == 451
        degraded = (await s.running.debug("/readyz"))["degraded"]
        assert any("rolled back" in reason for reason in degraded)
        assert await asyncio.to_thread(main, command) == 1
        assert "no earlier set" in capsys.readouterr().err
        (s.folder / "deny.yaml").write_text(REJECT.replace("451", "410"))
        await s.swapped(before + 2)
        assert (await s.chat({}))[0] == 410
        assert not (await s.policies())["rolled_back"]


async def test_no_request_sees_half_of_a_set(tmp_path: Path) -> None:
    """Two sets are swapped under load: each answer is wholly of one of them."""
    pair = [
        RULE.format(
            name=name, body=f"route: {{ set: {{ maxTokens: {n}, parameters: {{ seed: {n} }} }} }}"
        )
        for n, name in ((1, "a"), (2, "b"))
    ]
    async with scene(tmp_path, {"rule": pair[0]}) as s:
        for text in (pair[1], pair[0]):
            before = (await s.policies())["revision"]
            (s.folder / "rule.yaml").write_text(text)
            swapped = asyncio.create_task(s.swapped(before))
            while not swapped.done():
                await asyncio.gather(*(s.chat({}) for _ in range(10)))
            await swapped
        seen = {(body["max_tokens"], body["seed"]) for body in s.engine.bodies}
        assert seen == {(1, 1), (2, 2)}


PRICED = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: own }
spec: { models: [ { name: tiny-qwen3, price: { input: 1, output: 4 } } ] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: cheap }
spec:
  rules:
  - name: cheapest
    route: { select: [ { minimize: Cost } ] }
"""


async def test_the_cheapest_backend_is_the_one_with_the_lower_price(tmp_path: Path) -> None:
    async with scene(tmp_path, {"priced": PRICED}) as s:
        assert (await s.chat({}))[2]["decision"]["type"] == "engine"  # the provider has no price
        before = (await s.policies())["revision"]
        priced = PROVIDER.format(url=s.provider.url, key=s.folder / "key").replace(
            "upstream: big-model", "upstream: big-model, price: { input: 0.5, output: 2 }"
        )
        (s.folder / "provider.yaml").write_text(priced)
        await s.swapped(before)
        assert (await s.chat({}))[2]["decision"]["type"] == "provider"


async def test_a_client_cannot_leave_load_behind_by_what_it_writes(tmp_path: Path) -> None:
    async with scene(tmp_path, {"cap": CAP}) as s:
        body = {"model": MODEL, "prompt": "x", "max_completion_tokens": "abc"}
        status, _, _ = await s.running.post("/v1/completions", body)
        assert status == 200  # the engine's to judge; here it takes anything
        assert await s.running.inflight() == [0]
        assert s.engine.bodies[0]["max_tokens"] == 3


async def test_tags_that_contradict_themselves_count_as_the_strictest(tmp_path: Path) -> None:
    async with scene(tmp_path, published("pii-stays-local")) as s:
        for tags in ("pii-detected,pii-detected=absent", "pii-detected=absent,pii-detected"):
            assert (await s.chat({"x-tags": tags}))[2]["tags"] == {"pii-detected": "present"}
        assert s.provider.requests == []


async def test_names_that_mean_a_model_are_listed(tmp_path: Path) -> None:
    pool, _ = PRICED.split("---")
    named = pool.replace("price: { input: 1, output: 4 }", "aliases: [ tiny ], classes: [ any ]")
    async with scene(tmp_path, {"priced": named}) as s:
        async with s.running.session.get(s.running.http + "/v1/models") as answer:
            cards = (await answer.json())["data"]
        assert [card["id"] for card in cards] == ["any", "tiny", MODEL]
        assert {card["root"] for card in cards} == {cards[2]["root"]}
        assert (await s.chat({}, model="tiny"))[0] == 200
        assert s.engine.bodies[-1]["model"] == MODEL


async def test_values_of_headers_stay_out_of_records(tmp_path: Path) -> None:
    async with scene(tmp_path, {"cap": CAP}) as s:
        record = (await s.chat({}))[2]
        assert record["set"]["headers"] == ["x-lane"]
        assert "slow" not in json.dumps(record)
