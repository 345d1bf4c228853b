"""The simulated engine as a process: its HTTP answers and metrics, held against the captures."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.captures import ids
from tests.exchanges import again, recorded, shape
from tests.simulated import LIMIT_S, MODEL, complete, engine, post

pytestmark = pytest.mark.flow

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, str]]:
    with engine() as listening:
        yield listening


@pytest.fixture
async def client(shared: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    url = f"http://{shared['http']}"
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        yield session


async def metrics(client: aiohttp.ClientSession) -> dict[str, float]:
    """Return the series without histograms' buckets, by name and last distinguishing label."""
    async with client.get("/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    special = ("finished_reason", "sleep_state", "reason")
    return {
        " ".join([s.name, *(s.labels[label] for label in special if label in s.labels)]): s.value
        for family in families
        for s in family.samples
        if not s.name.endswith("_bucket")
    }


def chunks(stream: str) -> list[Any]:
    lines = [line[6:] for line in stream.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    "name",
    [
        "get_health",
        "get_ping",
        "get_version",
        "get_load_idle",
        "error_no_route",
        "error_wrong_method",
        "error_bad_json",
        "error_unknown_model_stream",
        "tokenize_prompt",
        "tokenize_messages",
        "detokenize",
    ],
)
async def test_answers_equal_the_recorded_ones(client: aiohttp.ClientSession, name: str) -> None:
    expected = recorded(name)
    response, text = await again(client, name)
    headers = {"content-type", "server", "vary", "allow", "content-length"}
    assert response.status == expected["status"]
    assert {k.lower(): v for k, v in response.headers.items() if k.lower() in headers} == {
        k: v for k, v in expected["headers"] if k in headers
    }
    assert (json.loads(text) if text else "") == expected.get("body", "")


@pytest.mark.parametrize(
    "name",
    [
        "get_models",
        "get_kv_event_sources",
        "chat_first",
        "chat_return_token_ids",
        "completion",
        "completion_token_ids",
        "completion_two_prompts",
    ],
)
async def test_answers_have_the_recorded_shape(client: aiohttp.ClientSession, name: str) -> None:
    response, text = await again(client, name)
    assert response.status == 200
    assert shape(json.loads(text)) == shape(recorded(name)["body"])


@pytest.mark.parametrize(
    "name",
    [
        "chat_stream_usage",
        "chat_stream_continuous_usage",
        "chat_stream_plain",
        "completion_stream_usage",
    ],
)
async def test_streams_have_the_recorded_chunks(client: aiohttp.ClientSession, name: str) -> None:
    expected = recorded(name)
    response, text = await again(client, name)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert shape(chunks(text)) == shape(chunks(expected["sse_raw"]))


async def test_usage_equals_the_recorded_one_before_and_after_caching(
    client: aiohttp.ClientSession,
) -> None:
    await post(client, "/reset_prefix_cache")
    for name in ("chat_first", "chat_again_cached", "completion", "completion_stream_usage"):
        _, text = await again(client, name)
        expected = recorded(name)
        if "sse_raw" in expected:
            mine, theirs = (chunks(t)[-1]["usage"] for t in (text, expected["sse_raw"]))
        else:
            mine, theirs = json.loads(text)["usage"], expected["body"]["usage"]
        assert mine == theirs, name


async def test_the_request_id_goes_into_the_answers_id(client: aiohttp.ClientSession) -> None:
    _, text = await again(client, "chat_first")
    assert json.loads(text)["id"] == "chatcmpl-req-abc"


async def test_a_stream_and_a_whole_answer_say_the_same(client: aiohttp.ClientSession) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "model": MODEL}
    whole = await post(client, "/v1/chat/completions", **body)
    async with client.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        streamed = chunks(await response.text())
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in streamed)
    (choice,) = whole["choices"]
    assert text == choice["message"]["content"]
    assert choice["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_chats_next_turn_finds_its_last_answer_cached(
    client: aiohttp.ClientSession,
) -> None:
    messages = [{"role": "user", "content": "tell me about generators and iterators"}]
    chat = {"model": MODEL, "max_tokens": 100, "ignore_eos": True}
    first = await post(client, "/v1/chat/completions", **chat, messages=messages)
    messages.append(first["choices"][0]["message"])
    messages.append({"role": "user", "content": "and?"})
    second = await post(client, "/v1/chat/completions", **chat, messages=messages)
    known = first["usage"]["total_tokens"] - 1  # the last token's keys were never computed
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 32 * 32


async def test_metrics_have_the_recorded_names_types_and_labels(
    client: aiohttp.ClientSession,
) -> None:
    async with client.get("/metrics") as response:
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        mine = list(text_string_to_metric_families(await response.text()))
    text = (CASES / "metrics" / "after_preemption.txt").read_text()
    theirs = {family.name: family for family in text_string_to_metric_families(text)}
    for family in mine:
        expected = theirs[family.name]
        assert family.type == expected.type
        known = {(sample.name, *sorted(sample.labels)) for sample in expected.samples}
        if family.name == "vllm:cache_config_info":  # ours says less
            assert set(family.samples[0].labels) <= set(expected.samples[0].labels)
        else:
            assert {(sample.name, *sorted(sample.labels)) for sample in family.samples} <= known
        assert {s.labels["le"] for s in family.samples if "le" in s.labels} == {
            s.labels["le"] for s in expected.samples if "le" in s.labels
        }


async def test_metrics_count_tokens_as_usage_does(client: aiohttp.ClientSession) -> None:
    await post(client, "/reset_prefix_cache")
    before = await metrics(client)
    for _ in range(2):
        await complete(client, ids(60, 100), max_tokens=5)
    after = await metrics(client)
    changes = {name: after[name] - before[name] for name in after}
    expected = {
        "vllm:prefix_cache_queries_total": 200,
        "vllm:prefix_cache_hits_total": 96,
        "vllm:prompt_tokens_total": 200,
        "vllm:generation_tokens_total": 10,
        "vllm:request_success_total length": 2,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:inter_token_latency_seconds_count": 8,
        "vllm:e2e_request_latency_seconds_count": 2,
        "vllm:iteration_tokens_total_count": 10,
        "vllm:iteration_tokens_total_sum": 100 + 4 + 4 + 4,
    }
    assert {name: changes[name] for name in expected} == expected
    assert (after["vllm:kv_cache_usage_perc"], after["vllm:num_requests_running"]) == (0, 0)
    assert after["vllm:engine_sleep_state awake"] == 1


async def until(client: aiohttp.ClientSession, name: str, value: float) -> dict[str, float]:
    for _ in range(200):
        if (found := await metrics(client))[name] == value:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} never was {value}")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "no stream"])
async def test_a_client_that_hangs_up_frees_its_blocks_and_is_counted_nowhere(
    client: aiohttp.ClientSession, stream: bool
) -> None:
    before = await metrics(client)
    body = {"model": MODEL, "prompt": list(ids(61, 100)), "max_tokens": 900, "ignore_eos": True}
    sending = asyncio.create_task(client.post("/v1/completions", json={**body, "stream": stream}))
    busy = await until(client, "vllm:num_requests_running", 1)
    assert busy["vllm:kv_cache_usage_perc"] > 0
    async with client.get("/load") as response:
        assert await response.json() == {"server_load": 1}
    sending.cancel()
    if stream:
        (answer,) = await asyncio.gather(sending, return_exceptions=True)
        if isinstance(answer, aiohttp.ClientResponse):
            answer.close()
    after = await until(client, "vllm:num_requests_running", 0)
    assert after["vllm:kv_cache_usage_perc"] == 0
    for reason in ("stop", "length", "abort", "error"):
        name = f"vllm:request_success_total {reason}"
        assert after[name] == before[name]
    async with client.get("/load") as response:
        assert await response.json() == {"server_load": 0}


async def test_a_reset_is_refused_while_a_request_runs_unless_it_may_be_preempted(
    client: aiohttp.ClientSession,
) -> None:
    running = asyncio.create_task(complete(client, ids(62, 100), max_tokens=150))
    before = await until(client, "vllm:num_requests_running", 1)
    assert await post(client, "/reset_prefix_cache") == {"success": False}
    path = "/reset_prefix_cache?reset_running_requests=true"
    assert await post(client, path) == {"success": True}
    assert (await running)["usage"]["completion_tokens"] == 150
    after = await metrics(client)
    assert after["vllm:num_preemptions_total"] == before["vllm:num_preemptions_total"] + 1


async def test_an_adapter_is_a_model_of_its_own_and_adapters_and_salts_share_no_blocks() -> None:
    prompt = list(ids(63, 100))
    kinds: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}]
    kinds.append({"model": "sql-adapter"})
    with engine("--lora", "sql-adapter") as listening:
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            _, models = await again(client, "get_models_with_lora")
            answers = [await complete(client, prompt, **kind) for kind in kinds * 2]
    assert shape(json.loads(models)) == shape(recorded("get_models_with_lora")["body"])
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, 0, 0, 0, 96, 96, 96, 96]


def test_a_taken_port_is_could_not_run() -> None:
    with engine() as listening:
        port = listening["http"].rpartition(":")[2]
        other = subprocess.run(
            [sys.executable, "-m", "simulate.main", "--port", port],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (other.returncode, other.stdout) == (3, "")
    assert "another process listens there; name another --port" in other.stderr


async def test_an_engine_with_an_open_stream_ends_on_a_signal() -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True})
    with engine() as listening:
        host, _, port = listening["http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(LIMIT_S):
            await reader.readuntil(b"data: {")
    async with asyncio.timeout(LIMIT_S):
        assert b"[DONE]" not in await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_rendering_a_chat_gives_the_ids_that_tokenizing_it_gives(
    client: aiohttp.ClientSession,
) -> None:
    asked = {"messages": [{"role": "user", "content": "Say less."}]}
    async with client.post("/tokenize", json=asked) as answer:
        ids_of_it = (await answer.json())["tokens"]
    async with client.post(
        "/v1/chat/completions/render", json={**asked, "max_tokens": 3}
    ) as answer:
        rendered = await answer.json()
    assert rendered["token_ids"] == ids_of_it
    assert rendered["sampling_params"] == {"max_tokens": 3, "n": 1}
