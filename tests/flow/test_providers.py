"""Each type of provider, asked in each client's API: paths, keys, signatures, bodies, answers."""

import json
from pathlib import Path

import pytest

from tests.fakes import MODEL, FakeEngine
from tests.provider_scenes import CHAT, MESSAGE, UPSTREAM, in_order, scene
from tests.provider_stubs import KEY, WORDS, Stub
from tests.waiting import until

pytestmark = pytest.mark.flow

CHAT_PATH, MESSAGES_PATH = "/v1/chat/completions", "/v1/messages"
TEXT = "".join(WORDS)
QUOTED = UPSTREAM.replace(":", "%3A")
PATHS = {
    ("OpenAI", False): CHAT_PATH,
    ("AzureOpenAI", False): "/openai/v1/chat/completions",
    ("Databricks", False): "/serving-endpoints/chat/completions",
    ("Anthropic", False): MESSAGES_PATH,
    ("Bedrock", False): f"/model/{QUOTED}/converse",
    ("Bedrock", True): f"/model/{QUOTED}/converse-stream",
}
CLIENTS_OWN = {
    "authorization": "Bearer client-secret",
    "x_api_key": "client-secret",
    "api_key": "client-secret",
    "cookie": "client-secret",
    "x_secret": "client-secret",
}


def said(path: str, stream: bool, body: bytes) -> str:
    """Return the text of an answer in a client's API."""
    if not stream:
        answer = json.loads(body)
        if path == CHAT_PATH:
            text: str = answer["choices"][0]["message"]["content"]
        else:
            text = "".join(block["text"] for block in answer["content"])
        return text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in body.decode().splitlines()
        if line.startswith("data: {")
    ]
    if path == CHAT_PATH:
        choices = [choice for event in events for choice in event["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta["text"] for delta in deltas)


@pytest.mark.parametrize("type_", ["OpenAI", "AzureOpenAI", "Databricks", "Anthropic", "Bedrock"])
async def test_every_type_serves_every_clients_chats(type_: str, tmp_path: Path) -> None:
    stub = Stub(type_)
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        for path, body in ((CHAT_PATH, CHAT), (MESSAGES_PATH, MESSAGE)):
            for stream in (False, True):
                asked = body | ({"stream": True} if stream else {})
                status, answer, record = await s.ask(asked, path, **CLIENTS_OWN)
                assert (status, said(path, stream, answer)) == (200, TEXT), answer
                assert record["decision"]["id"] == "acme"
                outcome = record["outcome"]
                counted = outcome["prompt_tokens"], outcome["completion_tokens"]
                assert (outcome["end"], outcome["finish"], counted) == ("finished", "stop", (11, 3))
                call = stub.calls[-1]
                assert call.path == PATHS.get((type_, stream), PATHS[type_, False])
                assert "client-secret" not in json.dumps([call.headers, call.body])
                if type_ == "Bedrock":
                    assert {"model", "stream"}.isdisjoint(call.body)
                else:
                    assert call.body["model"] == UPSTREAM
        assert len(stub.calls) == 4
        assert s.engine.requests == []


@pytest.mark.parametrize("type_", ["Databricks", "Anthropic", "Bedrock"])
async def test_a_response_is_made_of_what_a_provider_of_another_api_says(
    type_: str, tmp_path: Path
) -> None:
    stub = Stub(type_)
    asked = {"model": MODEL, "input": "hello", "max_output_tokens": 5, "store": False}
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        status, answer, record = await s.ask(asked, "/v1/responses")
        assert (status, record["decision"]["id"]) == (200, "acme"), answer
        (message,) = json.loads(answer)["output"]
        assert message["content"][0]["text"] == TEXT
        status, answer, record = await s.ask(asked | {"stream": True}, "/v1/responses")
        assert (status, record["outcome"]["completion_tokens"]) == (200, 3)
        events = [json.loads(line[6:]) for line in answer.splitlines() if line[:6] == b"data: "]
        deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
        assert ("".join(deltas), events[-1]["type"]) == (TEXT, "response.completed")
        assert len(stub.calls) == 2


@pytest.mark.parametrize(
    ("path", "asks"), [(CHAT_PATH, False), (CHAT_PATH, True), (MESSAGES_PATH, False)]
)
async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(
    path: str, asks: bool, tmp_path: Path
) -> None:
    stub, asked = Stub("OpenAI"), CHAT | {"stream": True}
    if asks:
        asked |= {"stream_options": {"include_usage": True}}
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        _, answer, record = await s.ask(asked, path)
        assert stub.bodies[0]["stream_options"] == {"include_usage": True}
        assert record["outcome"]["completion_tokens"] == 3
        assert (b"prompt_tokens" in answer) is asks


async def test_a_backend_that_refuses_to_report_usage_is_asked_without_and_remembered(
    tmp_path: Path,
) -> None:
    stub, asked = Stub("OpenAI", refuses="stream_options"), CHAT | {"stream": True}
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        status, answer, record = await s.ask(asked)
        assert (status, said(CHAT_PATH, True, answer)) == (200, TEXT)
        (attempt,) = record["attempts"]
        assert attempt["reason"] == "the provider refuses `stream_options`"
        assert attempt["repeat"] == "safe"
        assert [("stream_options" in body) for body in stub.bodies] == [True, False]
        assert (await s.ask(asked))[2]["attempts"] == []
        assert [("stream_options" in body) for body in stub.bodies] == [True, False, False]
        assert (await s.providers())["acme"]["reports_usage"] is False
        own = asked | {"stream_options": {"include_usage": True}}  # the client's own doing
        status, answer, _ = await s.ask(own)
        assert status == 400
        assert "stream_options" in json.loads(answer)["error"]["message"]
        assert len(stub.calls) == 4


async def test_a_client_of_anthropics_says_which_version_of_it_is_meant(tmp_path: Path) -> None:
    stub = Stub("Anthropic")
    async with scene(tmp_path, {"claude": stub}, in_order("claude")) as s:
        named = {"anthropic_version": "2026-10-21", "anthropic_beta": "one,two"}
        await s.ask(MESSAGE, MESSAGES_PATH, **named)
        await s.ask(CHAT, CHAT_PATH, **named)
        said = [
            (c.headers["anthropic-version"], c.headers.get("anthropic-beta")) for c in stub.calls
        ]
        assert said == [("2026-10-21", "one,two"), ("2023-06-01", None)]


async def test_an_engine_that_is_too_old_to_report_usage_serves_all_the_same(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(refuses="stream_options")
    async with scene(tmp_path, {}, in_order("nobody"), engine) as s:
        for tries in (1, 0):
            status, answer, record = await s.ask(CHAT | {"stream": True})
            assert (status, said(CHAT_PATH, True, answer)) == (200, "w0w1w2w3w4")
            assert len(record["attempts"]) == tries
        assert [("stream_options" in body) for body in engine.bodies] == [True, False, False]
        assert await s.running.inflight() == [0]


async def test_a_deployment_of_azure_is_in_the_path(tmp_path: Path) -> None:
    stub = Stub("AzureOpenAI")
    more = '  apiVersion: "2024-10-21"'
    async with scene(tmp_path, {"azure": stub}, in_order("azure"), more=more) as s:
        assert (await s.ask(CHAT))[0] == 200
        (call,) = stub.calls
        where = f"/openai/deployments/{QUOTED}/chat/completions?api-version=2024-10-21"
        assert call.path == where


async def test_a_refusal_of_something_else_is_passed_on_whole(tmp_path: Path) -> None:
    stub = Stub("OpenAI", refuses="top_k")
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        status, answer, record = await s.ask(CHAT | {"stream": True, "top_k": 1})
        assert (status, record["attempts"], len(stub.calls)) == (400, [], 1)
        assert json.loads(answer)["error"]["message"] == "Unknown parameter: 'top_k'."


@pytest.mark.parametrize("size", [0, 100_000, 1_000_000], ids=["small", "large", "larger"])
async def test_what_cannot_be_translated_is_passed_over(tmp_path: Path, size: int) -> None:
    stubs = {"claude": Stub("Anthropic"), "gpt": Stub("OpenAI")}
    async with scene(tmp_path, stubs, in_order("claude", "gpt")) as s:
        status, _, record = await s.ask(CHAT | {"n": 2, "user": "x" * size})
        assert (status, record["decision"]["id"]) == (200, "gpt")
        assert list(record["passed_over"]) == ["claude"]
        assert "`n`" in record["passed_over"]["claude"]
        assert [len(stub.calls) for stub in stubs.values()] == [0, 1]


ONLY = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: only }
spec: { rules: [ { name: only, route: { select: [ { type: Provider } ] } } ] }
"""


@pytest.mark.parametrize("size", [0, 100_000], ids=["small", "large"])
async def test_a_body_that_no_backend_can_take_is_the_clients_to_change(
    tmp_path: Path, size: int
) -> None:
    stub = Stub("Bedrock")
    async with scene(tmp_path, {"bedrock": stub}, {"only": ONLY}) as s:
        status, answer, record = await s.ask(CHAT | {"n": 2, "user": "x" * size})
        assert (status, stub.calls) == (400, [])
        assert json.loads(answer)["error"]["param"] == "n"
        assert record["outcome"]["end"] == "refused"
        assert await s.running.inflight() == [0]


async def test_a_provider_that_cannot_be_asked_in_an_api_is_dropped_with_the_reason(
    tmp_path: Path,
) -> None:
    stub = Stub("Anthropic")
    async with scene(tmp_path, {"claude": stub}, in_order("claude")) as s:
        body = {"model": MODEL, "prompt": "x"}
        status, _, record = await s.ask(body, "/v1/completions")
        assert (status, record["decision"]["type"]) == (200, "engine")
        (dropped,) = [each for each in record["candidates"] if each["dropped_by"]]
        assert (dropped["id"], dropped["dropped_by"]) == ("claude", "api")
        assert dropped["reason"] == (
            "a provider of type Anthropic cannot be asked in `openai-completions`"
        )
        (tmp_path / "policy-first.yaml").write_text(ONLY)

        async def refused() -> bool:
            return (await s.ask(body, "/v1/completions"))[0] == 404

        await until(refused)
        assert stub.calls == []


async def test_latencies_are_shown_and_rank_a_provider_among_engines(tmp_path: Path) -> None:
    stub = Stub("OpenAI")
    policy = ONLY.replace("[ { type: Provider } ]", "[ { minimize: PredictedTTFT } ]")
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        for _ in range(3):
            await s.ask(CHAT | {"stream": True})
        latency = (await s.providers())["acme"]["latency"][MODEL]
        assert 0 < latency["ttft_p50_s"] <= latency["ttft_p95_s"] <= latency["e2e_p95_s"] < 1
        assert await s.metric(f'lineside_provider_ttft_seconds{{model="{MODEL}"') > 0
        (tmp_path / "policy-first.yaml").write_text(policy)

        async def swapped() -> bool:
            return bool((await s.ask(CHAT))[2]["policy"] == "default/only")

        await until(swapped)
        shown = {each["id"]: each for each in (await s.ask(CHAT))[2]["candidates"]}
        assert shown["acme"]["predicted_ttft_s"] == latency["ttft_p50_s"]
        assert shown["acme"]["stage"] == "select[0]"


async def test_a_key_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    stub = Stub("OpenAI")
    async with scene(tmp_path, {"acme": stub}, in_order("acme")) as s:
        await s.ask(CHAT)
        shown = [await s.running.debug(p) for p in ("/debug/pools", "/debug/decisions")]
        assert KEY not in json.dumps(shown)


async def test_a_provider_whose_key_cannot_be_read_is_sent_nothing_until_it_can(
    tmp_path: Path,
) -> None:
    stub, policy = Stub("OpenAI"), tmp_path / "policy-first.yaml"
    async with scene(tmp_path, {"acme": stub}, in_order("acme"), key="other") as s:
        status, _, record = await s.ask(CHAT)
        assert (status, record["decision"]["type"]) == (200, "engine")
        (dropped,) = [each for each in record["candidates"] if each["dropped_by"]]
        why = "`credentials.file` cannot be read: No such file or directory"
        assert (dropped["id"], dropped["dropped_by"]) == ("acme", "key")
        assert dropped["reason"] == f"its key cannot be read: {why}"
        assert (await s.providers())["acme"]["key_missing"] == why
        assert await s.metric('lineside_degraded{reason="provider_key_missing"') == 1
        policy.write_text(ONLY)

        async def refused() -> bool:
            status, answer, _ = await s.ask(CHAT)
            return status == 503 and b"take no requests now" in answer

        await until(refused)
        assert stub.calls == []
        (tmp_path / "other").write_text(KEY)

        async def served() -> bool:
            return (await s.ask(CHAT))[0] == 200

        await until(served)
        assert stub.calls[-1].headers["authorization"] == f"Bearer {KEY}"
        assert await s.metric('lineside_degraded{reason="provider_key_missing"') == 0
