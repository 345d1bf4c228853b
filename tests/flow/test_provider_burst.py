"""What engines cannot take goes to providers, in the policy's order, and never twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from coordinator.attempts import BUDGET, Fault
from coordinator.config import EngineSpec
from coordinator.providers import cooldowns
from tests import gateways
from tests.doors import Sim, client_of
from tests.fakes import MODEL, FakeEngine
from tests.provider_scenes import CHAT, Scene, in_order, provider, published, scene
from tests.provider_stubs import Stub, running
from tests.waiting import until

pytestmark = pytest.mark.flow

STREAM = CHAT | {"stream": True}
PII, NO_PII = {"x_tags": "pii-detected"}, {"x_tags": "pii-detected=absent"}
TYPES = ("OpenAI", "AzureOpenAI", "Databricks", "Anthropic", "Bedrock")


@asynccontextmanager
async def overloaded(folder: Path, sims: tuple[Sim, Sim], **stubs: Stub) -> AsyncIterator[Scene]:
    """Run simulated engines that have more before them than the burst policy allows."""
    for sim in sims:
        await sim.fault("hang", where="generation")
    async with running(*stubs.values()):
        for name, stub in stubs.items():
            (folder / f"{name}.yaml").write_text(provider(name, stub, folder))
        for name, text in published("burst-policy", "pii-stays-local").items():
            (folder / f"policy-{name}.yaml").write_text(text)
        engines = [EngineSpec(url=sim.url) for sim in sims]
        async with gateways.coordinator(
            *engines, resources=str(folder), tags_header="x-tags"
        ) as here:
            asked = [
                asyncio.create_task(here.post("/v1/chat/completions", STREAM, {"x-tags": "x"}))
                for _ in range(6)
            ]

            async def queued() -> bool:
                return await here.inflight() == [3, 3]

            await until(queued)
            yield Scene(here, FakeEngine(), folder)
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def test_with_all_engines_over_the_threshold_the_first_provider_is_asked(
    tmp_path: Path, sims: tuple[Sim, Sim]
) -> None:
    bedrock, bricks = Stub("Bedrock"), Stub("Databricks")
    async with overloaded(tmp_path, sims, bedrock=bedrock, databricks=bricks) as s:
        status, _, record = await s.ask(STREAM, **NO_PII)
        assert (status, record["decision"]["id"]) == (200, "bedrock")
        assert record["decision"]["fallbacks"] == ["databricks"]
        names = record["policy"], record["rule"], record["stage"]
        assert names == ("inference/burst-policy", "burst-to-cloud", "select[1]")
        assert bedrock.bodies == [
            {
                "messages": [{"role": "user", "content": [{"text": "hello"}]}],
                "inferenceConfig": {"maxTokens": 5},
            }
        ]
        assert bricks.calls == []


async def test_a_provider_that_cannot_be_reached_is_followed_by_the_next_with_its_own_body(
    tmp_path: Path, sims: tuple[Sim, Sim]
) -> None:
    bedrock, bricks = Stub("Bedrock"), Stub("Databricks")
    async with overloaded(tmp_path, sims, bedrock=bedrock, databricks=bricks) as s:
        await bedrock.stop()
        status, _, record = await s.ask(STREAM, **NO_PII)
        assert (status, record["decision"]["id"]) == (200, "databricks")
        (attempt,) = record["attempts"]
        assert attempt == {"engine": "bedrock", "repeat": "safe", "reason": "connection refused"}
        (body,) = bricks.bodies
        asked = STREAM | {"model": "vendor.model-v1:0", "stream_options": {"include_usage": True}}
        assert body == asked


@pytest.mark.parametrize("tags", [PII, {}], ids=["present", "unknown"])
async def test_what_may_be_personal_goes_to_no_provider(
    tags: dict[str, str], tmp_path: Path, sims: tuple[Sim, Sim]
) -> None:
    bedrock, bricks = Stub("Bedrock"), Stub("Databricks")
    async with overloaded(tmp_path, sims, bedrock=bedrock, databricks=bricks) as s:
        for body in (CHAT, STREAM):
            status, _, record = await s.ask(body, **tags)
            assert (status, record["refusal"]["reason"]) == (503, "nothing_allowed")
        assert [bedrock.calls, bricks.calls] == [[], []]


@pytest.mark.parametrize(
    ("type_", "pieces"),
    [
        pytest.param("OpenAI", 1, id="OpenAI, before content"),
        pytest.param("Anthropic", 2, id="Anthropic, before content"),
        pytest.param("Bedrock", 1, id="Bedrock, before content"),
        pytest.param("OpenAI", 3, id="OpenAI, after content"),
        pytest.param("Anthropic", 5, id="Anthropic, after content"),
        pytest.param("Bedrock", 3, id="Bedrock, after content"),
    ],
)
async def test_what_broke_off_is_not_sent_again(type_: str, pieces: int, tmp_path: Path) -> None:
    """It may have run, whether or not the client has seen any of it."""
    first, second = Stub(type_, cut_after=pieces), Stub("OpenAI")
    async with scene(tmp_path, {"one": first, "two": second}, in_order("one", "two")) as s:
        async with client_of(s.running) as client:
            client.ask(STREAM)
            status, headers = await client.answer_head()
            assert status == (200 if pieces >= 3 else 502)
            length = headers.get("content-length")
            sent = await (client.reader.readexactly(int(length)) if length else client.rest())
        assert b"the provider broke off; it may have run the request" in sent
        assert b"[DONE]" not in sent
        assert [len(first.calls), len(second.calls), len(s.engine.requests)] == [1, 0, 0]
        record = await s.running.record(headers)
        assert record["refusal"]["reason"] == "upstream_broken"
        assert await s.metric('lineside_provider_faults_total{fault="broke",provider="one"') == 1


async def test_one_request_is_sent_as_often_as_its_budget_says(tmp_path: Path) -> None:
    stubs = {name: Stub("OpenAI", status=503) for name in "abcd"}
    async with scene(tmp_path, stubs, in_order(*stubs)) as s:
        status, _, record = await s.ask(CHAT)
        assert status == 503
        assert [len(stub.calls) for stub in stubs.values()] == [1] * BUDGET + [0]
        assert [each["repeat"] for each in record["attempts"]] == ["safe"] * BUDGET
        assert s.engine.requests == []


async def test_asking_again_without_usage_is_of_the_same_budget(tmp_path: Path) -> None:
    stubs = {"a": Stub("OpenAI", status=503), "b": Stub("OpenAI", status=503)}
    stubs["c"] = Stub("OpenAI", refuses="stream_options")
    async with scene(tmp_path, stubs, in_order(*stubs)) as s:
        status, _, record = await s.ask(STREAM)
        assert (status, len(record["attempts"])) == (400, BUDGET)
        assert [len(stub.calls) for stub in stubs.values()] == [1, 1, 1]


PAIRS = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: pairs }
spec:
  rules:
"""


async def test_every_type_can_follow_every_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cooldowns.FIRST_S, Fault.BUSY, 0.0)
    stubs = {f"{name}-{type_.lower()}": Stub(type_) for name in ("a", "b") for type_ in TYPES}
    for name, stub in stubs.items():
        stub.status = 503 if name.startswith("a-") else 200
    pairs = [(f"a-{one.lower()}", f"b-{two.lower()}") for one, two in product(TYPES, TYPES)]
    rules = PAIRS + "".join(
        f"  - name: {one}.{two}\n    matches: [ {{ headers: {{ x-pair: {one}.{two} }} }} ]\n"
        f"    route: {{ select: [ {{ type: Provider, order: [ {one}, {two} ] }} ] }}\n"
        for one, two in pairs
    )
    async with scene(tmp_path, stubs, {"pairs": rules}) as s:
        for one, two in pairs:
            status, answer, record = await s.ask(STREAM, x_pair=f"{one}.{two}")
            assert (status, record["decision"]["id"]) == (200, two), answer
            assert [each["engine"] for each in record["attempts"]] == [one]
            assert record["outcome"]["completion_tokens"] == 3
        assert [len(stub.calls) for stub in stubs.values()] == [5] * 10
        for stub in stubs.values():
            assert all(body == stub.bodies[0] for body in stub.bodies)


async def test_a_provider_that_asks_for_a_pause_gets_it(tmp_path: Path) -> None:
    one, two = Stub("OpenAI", status=429, retry_after="30"), Stub("Anthropic")
    async with scene(tmp_path, {"one": one, "two": two}, in_order("one", "two")) as s:
        for _ in range(2):
            status, _, record = await s.ask(CHAT)
            assert (status, record["decision"]["id"]) == (200, "two")
        assert (len(one.calls), len(two.calls)) == (1, 2)
        (dropped,) = [each for each in record["candidates"] if each["dropped_by"]]
        assert (dropped["id"], dropped["dropped_by"]) == ("one", "cooldown")
        assert dropped["reason"].startswith("it takes no more requests for now; for ")
        shown = (await s.providers())["one"]
        assert shown["cooldown"]["cause"] == "busy"
        assert 25 < shown["cooldown"]["for_s"] <= 30
        assert shown["faults"]["busy"] == 1
        assert await s.metric('lineside_provider_cooldown{cause="busy",provider="one"') == 1
        assert await s.metric('lineside_degraded{reason="provider_cooldown"') == 1


ONLY = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: only }
spec: { rules: [ { name: only, route: { select: [ { type: Provider } ] } } ] }
"""


async def test_where_there_is_nothing_else_the_client_is_told_when_to_come_again(
    tmp_path: Path,
) -> None:
    stub = Stub("OpenAI", status=429, retry_after="30")
    async with scene(tmp_path, {"one": stub}, {"only": ONLY}) as s:
        assert (await s.ask(CHAT))[0] == 429  # its own word
        status, headers, body = await s.running.post("/v1/chat/completions", CHAT)
        assert (status, len(stub.calls)) == (503, 1)
        assert 25 < int(headers["retry-after"]) <= 30
        assert "take no requests now; try again in" in json.loads(body)["error"]["message"]


async def test_a_provider_that_refuses_our_key_is_named_and_left_alone(tmp_path: Path) -> None:
    one, two = Stub("OpenAI", status=401), Stub("OpenAI")
    async with scene(tmp_path, {"one": one, "two": two}, in_order("one", "two")) as s:
        for _ in range(2):
            assert (await s.ask(CHAT))[2]["decision"]["id"] == "two"
        assert len(one.calls) == 1
        assert (await s.providers())["one"]["cooldown"]["cause"] == "key_refused"
        assert await s.metric('lineside_degraded{reason="provider_key_refused"') == 1
        fault = 'lineside_provider_faults_total{fault="key_refused",provider="one"'
        assert await s.metric(fault) == 1


async def test_a_refused_key_is_no_answer_for_a_client(tmp_path: Path) -> None:
    async with scene(tmp_path, {"one": Stub("Anthropic", status=403)}, {"only": ONLY}) as s:
        status, answer, _ = await s.ask(CHAT)
        assert status == 502
        message = json.loads(answer)["error"]["message"]
        assert message == "the provider did not accept this gateway's key; its operator must set it"


async def test_a_provider_that_fails_is_left_alone_until_one_request_finds_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooldowns, "FAILS_S", 0.3)
    one, two = Stub("OpenAI", status=500), Stub("OpenAI")
    async with scene(tmp_path, {"one": one, "two": two}, in_order("one", "two")) as s:
        for _ in range(cooldowns.FAILS_AFTER):
            assert (await s.ask(CHAT))[0] == 500
        assert (await s.ask(CHAT))[2]["decision"]["id"] == "two"
        one.status, one.wait_s = 200, 0.2

        async def is_tried() -> bool:
            return (await s.providers())["one"]["cooldown"] is None

        await until(is_tried)
        answers = await asyncio.gather(*(s.ask(CHAT) for _ in range(5)))
        served = [record["decision"]["id"] for _, _, record in answers]
        assert sorted(served) == ["one", "two", "two", "two", "two"]
        assert (await s.ask(CHAT))[2]["decision"]["id"] == "one"
        assert len(one.calls) == cooldowns.FAILS_AFTER + 2


async def test_a_failing_provider_is_used_where_there_is_nothing_else(tmp_path: Path) -> None:
    stub = Stub("OpenAI", status=500)
    async with scene(tmp_path, {"one": stub}, {"only": ONLY}) as s:
        for _ in range(cooldowns.FAILS_AFTER):
            await s.ask(CHAT)
        assert (await s.providers())["one"]["cooldown"]["cause"] == "fails"
        stub.status = 200
        assert (await s.ask(CHAT))[0] == 200
        assert (await s.providers())["one"]["cooldown"] is None


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_provider_may_take_as_long_as_its_resource_says(
    body: dict[str, Any], tmp_path: Path
) -> None:
    stubs = {"one": Stub("OpenAI", wait_s=5), "two": Stub("OpenAI")}
    more = "  timeoutSeconds: 0.2"
    async with scene(tmp_path, stubs, in_order("one", "two"), more=more) as s:
        status, answer, record = await s.ask(body)
        assert status == 504
        message = json.loads(answer)["error"]["message"]
        assert message == "the provider took longer than 0.2 s (total timeout)"
        assert [each["repeat"] for each in record["attempts"]] == ["uncertain"]
        assert [len(stub.calls) for stub in stubs.values()] == [1, 0]


async def test_a_stream_of_a_provider_ends_when_its_resource_says(tmp_path: Path) -> None:
    stub = Stub("OpenAI", between_s=0.1)
    more = "  timeoutSeconds: 0.3"
    async with scene(tmp_path, {"one": stub}, {"only": ONLY}, more=more) as s:
        async with client_of(s.running) as client:
            client.ask(STREAM)
            assert (await client.answer_head())[0] == 200
            sent = await client.rest()
        assert b"the provider took longer than 0.3 s (total timeout)" in sent


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        pytest.param("https://{host}", "its certificate or TLS cannot be used", id="no TLS"),
        pytest.param("http://nowhere.invalid", "its name cannot be resolved", id="no such name"),
        pytest.param("http://127.0.0.1:9", "connection refused", id="nobody there"),
    ],
)
async def test_what_never_reached_a_provider_may_go_to_the_next(
    address: str, reason: str, tmp_path: Path
) -> None:
    stubs = {"one": Stub("OpenAI"), "two": Stub("OpenAI")}
    async with scene(tmp_path, stubs, in_order("one", "two")) as s:
        document = (tmp_path / "one.yaml").read_text()
        host = stubs["one"].url.removeprefix("http://")
        moved = document.replace(stubs["one"].url, address.format(host=host))
        (tmp_path / "one.yaml").write_text(moved)

        async def is_moved() -> bool:
            return bool((await s.providers())["one"]["endpoint"] == moved_to)

        moved_to = address.format(host=host).rpartition("/")[2]
        if moved_to == host:
            await asyncio.sleep(1.2)  # it looks the same from outside
        else:
            await until(is_moved)
        status, _, record = await s.ask(CHAT | {"model": MODEL})
        assert (status, record["decision"]["id"]) == (200, "two")
        assert [each["reason"] for each in record["attempts"]] == [reason]
        assert stubs["one"].calls == []
