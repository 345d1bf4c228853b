"""Faults of the simulated engine's HTTP side and of its steps, each seen by a client."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.captures import ids
from tests.simulated import LIMIT_S, MODEL, complete, engine, post

pytestmark = pytest.mark.flow

PATH = "/sim/faults"
SOON_S = 0.3
STREAM = {"model": MODEL, "prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Any]]:
    with engine("--faults") as listening:
        yield listening


@pytest.fixture
async def client(shared: dict[str, Any]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(f"http://{shared['http']}", timeout=timeout) as session:
        yield session
        await clear(session)


async def clear(client: aiohttp.ClientSession) -> None:
    async with client.delete(PATH) as response:
        assert (await response.json())["active"] == []


async def get(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()


async def sample(client: aiohttp.ClientSession, name: str, **labels: str) -> float:
    _, text = await get(client, "/metrics")
    (value,) = (
        s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    )
    return value


async def waits(task: asyncio.Task[Any]) -> bool:
    """Return whether a task still waits after a while."""
    done, _ = await asyncio.wait([task], timeout=SOON_S)
    return not done


async def test_there_is_no_such_surface_unless_asked_for() -> None:
    with engine() as listening:
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            assert [(await get(client, PATH))[0]] == [404]
            async with client.post(PATH, json={"fault": "freeze"}) as response:
                assert response.status == 404


@pytest.mark.parametrize(
    "body",
    ['{"fault": "freeze", "secnds": 1}', '{"fault": "melt"}', "[]", "{", '{"fault":"slow"}'],
)
async def test_what_is_not_a_fault_is_refused(client: aiohttp.ClientSession, body: str) -> None:
    async with client.post(PATH, data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == 400
    async with client.delete(f"{PATH}?fault=melt") as response:
        assert response.status == 400


async def test_a_fault_of_a_rank_that_is_not_there_is_refused(
    client: aiohttp.ClientSession,
) -> None:
    async with client.post(PATH, json={"fault": "freeze", "rank": 1}) as response:
        assert response.status == 400


async def test_a_hung_engine_accepts_and_answers_when_it_is_over(
    client: aiohttp.ClientSession,
) -> None:
    await post(client, PATH, fault="hang")
    asked = [
        asyncio.create_task(get(client, "/health")),
        asyncio.create_task(get(client, "/metrics")),
        asyncio.create_task(complete(client, "x")),
    ]
    assert [await waits(task) for task in asked] == [True] * 3
    await clear(client)
    health, metrics, completion = await asyncio.gather(*asked)
    assert (health[0], metrics[0], completion["object"]) == (200, 200, "text_completion")


async def test_one_request_hangs_and_the_next_does_not(client: aiohttp.ClientSession) -> None:
    await post(client, PATH, fault="hang", where="generation", count=1)
    first = asyncio.create_task(complete(client, "x"))
    assert await waits(first)
    assert (await complete(client, "x"))["object"] == "text_completion"
    assert not first.done()
    first.cancel()


async def test_metrics_hang_or_fail_alone(client: aiohttp.ClientSession) -> None:
    await post(client, PATH, fault="hang", where="metrics")
    page = asyncio.create_task(get(client, "/metrics"))
    assert await waits(page)
    assert (await get(client, "/health"))[0] == 200
    await clear(client)
    assert (await page)[0] == 200
    await post(client, PATH, fault="fail_requests", where="metrics", status=503)
    assert [(await get(client, path))[0] for path in ("/metrics", "/health")] == [503, 200]


async def test_a_request_fails_in_the_engines_error_shape(client: aiohttp.ClientSession) -> None:
    state = await post(client, PATH, fault="fail_requests", count=1)
    assert state["active"] == [{"fault": "fail_requests", "count": 1, "left": 1}]
    async with client.post("/v1/completions", json=STREAM) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["type"]) == (500, 500, "InternalServerError")
    assert (await complete(client, "x"))["object"] == "text_completion"


async def test_a_frozen_engine_is_healthy_and_takes_no_step(client: aiohttp.ClientSession) -> None:
    await post(client, PATH, fault="freeze")
    steps = await sample(client, "vllm:iteration_tokens_total_count")
    asked = asyncio.create_task(complete(client, "x", max_tokens=3))
    assert await waits(asked)
    assert (await get(client, "/health"))[0] == 200
    assert await sample(client, "vllm:num_requests_waiting") == 1
    assert await sample(client, "vllm:iteration_tokens_total_count") == steps
    await clear(client)
    assert (await asked)["usage"]["completion_tokens"] == 3


async def test_slow_steps_take_longer(client: aiohttp.ClientSession) -> None:
    before = time.monotonic()
    await post(client, PATH, fault="slow", factor=50.0, count=6)
    await complete(client, "x", max_tokens=10)
    assert 0.6 < time.monotonic() - before < 3.0  # 6 steps of 2.15 ms, fifty times


@pytest.mark.parametrize("after", [1, 7])
async def test_a_stream_dies_after_some_chunks_and_never_ends_cleanly(
    client: aiohttp.ClientSession, after: int
) -> None:
    await post(client, PATH, fault="die_in_answer", after_chunks=after, count=1)
    received = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with client.post("/v1/completions", json=STREAM) as response:
            assert response.status == 200
            async for data in response.content.iter_any():
                received += data
    chunks = [json.loads(line[6:]) for line in received.decode().split("\n\n") if line]
    assert len(chunks) == after
    assert await sample(client, "vllm:num_requests_running") == 0
    async with client.post("/v1/completions", json=STREAM) as response:
        assert (await response.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_dies_before_its_answer(
    client: aiohttp.ClientSession, stream: bool
) -> None:
    await post(client, PATH, fault="die_in_answer", count=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        async with client.post("/v1/completions", json={**STREAM, "stream": stream}):
            pass


async def test_a_short_stream_dies_instead_of_ending(client: aiohttp.ClientSession) -> None:
    await post(client, PATH, fault="die_in_answer", after_chunks=500, count=1)
    with pytest.raises(aiohttp.ClientPayloadError):
        async with client.post("/v1/completions", json=STREAM) as response:
            await response.read()


async def test_connections_are_refused_for_a_while_and_streams_go_on(
    shared: dict[str, Any], client: aiohttp.ClientSession
) -> None:
    host, _, port = shared["http"].rpartition(":")
    stream = {**STREAM, "max_tokens": 200}  # half a second
    async with client.post("/v1/completions", json=stream) as running:
        await post(client, PATH, fault="refuse_connections", for_s=0.5)
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        assert (await running.text()).endswith("data: [DONE]\n\n")
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                assert (await get(client, "/health"))[0] == 200
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)
    assert json.loads((await get(client, PATH))[1])["active"] == []


async def state(client: aiohttp.ClientSession) -> tuple[bool, dict[str, float]]:
    _, text = await get(client, "/is_sleeping")
    states = ("awake", "weights_offloaded", "discard_all")
    name = "vllm:engine_sleep_state"
    return json.loads(text)["is_sleeping"], {
        one: await sample(client, name, sleep_state=one) for one in states
    }


@pytest.mark.parametrize(("level", "what"), [(1, "weights_offloaded"), (2, "discard_all"), (0, "")])
async def test_a_sleeping_engine_says_so_and_answers_when_it_wakes(
    client: aiohttp.ClientSession, level: int, what: str
) -> None:
    prompt = list(ids(500, 100))
    await complete(client, prompt)
    awake = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
    assert await state(client) == (False, awake)
    async with client.post(f"/sleep?level={level}") as response:
        assert (response.status, await response.text()) == (200, "")
    asleep = {**awake, "awake": 0.0} | ({what: 1.0} if what else {})
    assert await state(client) == (True, asleep)
    asked = asyncio.create_task(complete(client, prompt))
    assert await waits(asked)
    async with client.post("/wake_up") as response:
        assert (response.status, await response.text()) == (200, "")
    usage = (await asked)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (0 if level else 96)
    assert await state(client) == (False, awake)
