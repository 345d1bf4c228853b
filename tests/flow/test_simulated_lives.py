"""The simulated engine across kills, and with ranks, a connecting publisher or a CPU tier."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families

from simulate.publisher import END_MARKER
from tests.captures import ids
from tests.killable import free_ports
from tests.simulated import (
    LIMIT_S,
    TOPIC,
    Events,
    complete,
    engine,
    launch,
    next_frames,
    opened,
    post,
)

pytestmark = pytest.mark.flow


def session(listening: dict[str, Any]) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    return aiohttp.ClientSession(f"http://{listening['http']}", timeout=timeout)


def batch(frames: list[bytes]) -> list[Any]:
    decoded: list[Any] = msgspec.msgpack.decode(frames[2])
    return decoded


@contextmanager
def killed(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run an engine that is killed on the way out."""
    process, listening = launch(*arguments)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield listening
        finally:
            process.kill()
            assert process.wait(LIMIT_S) == -signal.SIGKILL


async def test_a_killed_engine_comes_back_at_once_on_the_same_ports() -> None:
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
    lives = []
    ports: list[str] = []
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as live:
        live.linger = 0
        live.subscribe("")
        for _ in range(3):
            with killed(*ports) as listening:
                http, events, replay = (
                    listening[name].rpartition(":")[2] for name in ("http", "events", "replay")
                )
                ports = ["--port", http, "--kv-port", events, "--replay-port", replay]
                if not lives:
                    live.connect(listening["events"])
                client = session(listening)
                while not await live.poll(50):
                    await post(client, "/reset_prefix_cache")
                    await complete(client, ids(80, 100))
                lives.append(await replayed(listening["replay"]))
                open_stream = await client.post("/v1/completions", json=body)
                await open_stream.content.readany()
            with pytest.raises(aiohttp.ClientPayloadError):
                await open_stream.content.read()
            open_stream.close()
            await client.close()
            while await live.poll(100):
                await live.recv_multipart()
    assert {number for number, _ in lives} == {0}
    assert len({ts for _, ts in lives}) == 3


async def replayed(address: str) -> tuple[int, float]:
    """Return the first replayed batch's number and time."""
    with opened(zmq.DEALER, address) as reader:
        await reader.send_multipart([b"", bytes(8)])
        first = (await next_frames(reader))[1:]
        while (await next_frames(reader))[2] != END_MARKER:
            pass
    return int.from_bytes(first[1], "big"), batch(first)[0]


@pytest.fixture(scope="module")
def two() -> Iterator[dict[str, Any]]:
    with engine("--data-parallel-size", "2", "--faults") as listening:
        yield listening


async def test_a_header_names_the_rank_and_each_publishes_for_itself(two: dict[str, Any]) -> None:
    ranks = two["ranks"]
    async with session(two) as client:
        for rank in (0, 1):
            header = {"X-data-parallel-rank": str(rank)}
            with opened(zmq.SUB, ranks[rank]["events"]) as live:
                events = Events(live, client)
                await events.begin(header)
                other = {"X-data-parallel-rank": str(1 - rank)}
                await events.cause(headers=other)
                await events.cause(headers=header)
                (only,) = await events.messages()
            assert (only[0], batch(only)[2]) == (TOPIC.encode(), rank)
            assert int.from_bytes(only[1], "big") == events.last + 1
        async with client.post(
            "/v1/completions", json={"prompt": "x"}, headers={"X-data-parallel-rank": "2"}
        ) as response:
            assert response.status == 400


async def test_requests_without_a_header_take_turns_and_metrics_tell_ranks_apart(
    two: dict[str, Any],
) -> None:
    async def queries() -> dict[str, float]:
        async with client.get("/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        return {
            s.labels["engine"]: s.value
            for family in families
            for s in family.samples
            if s.name == "vllm:prefix_cache_queries_total"
        }

    async with session(two) as client:
        before = await queries()
        for _ in range(4):
            await complete(client, ids(90, 100))
        after = await queries()
        assert {rank: after[rank] - before[rank] for rank in after} == {"0": 200, "1": 200}
        async with client.get("/kv_event_sources") as response:
            sources = await response.json()
    assert {rank: (s["endpoint"], s["replay_endpoint"]) for rank, s in sources.items()} == {
        str(rank): (sockets["events"], sockets["replay"])
        for rank, sockets in enumerate(two["ranks"])
    }


async def test_a_fault_strikes_one_rank_alone(two: dict[str, Any]) -> None:
    async with session(two) as client:
        await post(client, "/sim/faults", fault="freeze", rank=1)
        state = await post(client, "/sim/faults", fault="reset_sequence", rank=0)
        assert state["active"] == [{"fault": "freeze", "rank": 1}]
        timeout = aiohttp.ClientTimeout(total=0.3)
        answered = []
        for rank in (0, 1):
            header = {"X-data-parallel-rank": str(rank)}
            with suppress(TimeoutError):
                async with client.post(
                    "/v1/completions",
                    json={"prompt": "x", "max_tokens": 1},
                    headers=header,
                    timeout=timeout,
                ):
                    answered.append(rank)
        assert answered == [0]
        async with client.delete("/sim/faults"):
            pass


async def test_ranks_take_the_ports_that_follow() -> None:
    port = free_ports(2)[0]
    with engine("--data-parallel-size", "2", "--kv-port", str(port)) as listening:
        assert [r["events"] for r in listening["ranks"]] == [
            f"tcp://127.0.0.1:{port}",
            f"tcp://127.0.0.1:{port + 1}",
        ]


async def test_a_publisher_connects_to_a_subscriber_that_listens() -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as live:
        live.linger = 0
        live.subscribe("")
        port = live.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://127.0.0.1:{port}"
        with engine("--kv-connect", endpoint) as listening:
            assert listening["events"] == endpoint
            async with session(listening) as client:
                async with client.get("/kv_event_sources") as response:
                    assert (await response.json())["0"]["endpoint"] == endpoint
                events = Events(live, client)
                await events.begin()
                await events.cause(2)
                due = events.last + 1
                assert await events.numbers() == [due, due + 1]


async def test_evicted_blocks_stay_on_the_cpu_and_come_back() -> None:
    prompt = list(ids(1, 320))
    with (
        engine("--offload-blocks", "20") as listening,
        opened(zmq.SUB, listening["events"]) as live,
    ):
        async with session(listening) as client:
            events = Events(live, client)
            await events.begin()
            await post(client, "/reset_prefix_cache")
            for seed in range(1, 6):  # 47 blocks hold four such prompts and a part of a fifth
                await complete(client, ids(seed, 320))
            first, *_, last = map(batch, await events.messages())
            answer = await complete(client, prompt)
            (back,) = map(batch, await events.messages())
    hashes = first[1][1]["block_hashes"]
    gone = hashes[:6:-1]
    assert [(e["type"], e["medium"], e["block_hashes"]) for e in last[1][:-1]] == [
        (kind, medium, [block_hash])
        for block_hash in gone
        for kind, medium in (("BlockStored", "CPU"), ("BlockRemoved", "GPU"))
    ]
    assert last[1][0] == {
        "type": "BlockStored",
        "block_hashes": [hashes[9]],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 32,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
    }
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 9 * 32
    assert back[1][-1]["block_hashes"] == hashes[7:]


async def test_blocks_that_leave_the_cpu_are_removed_there() -> None:
    with engine("--offload-blocks", "2") as listening, opened(zmq.SUB, listening["events"]) as live:
        async with session(listening) as client:
            events = Events(live, client)
            await events.begin()
            await post(client, "/reset_prefix_cache")
            for seed in range(1, 6):
                await complete(client, ids(seed, 320))
            *_, last = map(batch, await events.messages())
    assert [(e["type"], e["medium"]) for e in last[1]] == [
        *[("BlockStored", "CPU"), ("BlockRemoved", "GPU")] * 2,
        *[("BlockRemoved", "CPU"), ("BlockStored", "CPU"), ("BlockRemoved", "GPU")],
        ("BlockStored", "GPU"),
    ]
    assert last[1][4]["block_hashes"] == last[1][0]["block_hashes"]


async def test_a_model_with_a_window_tells_of_two_groups() -> None:
    arguments = ("--sliding-window", "64", "--blocks", "96")
    with engine(*arguments) as listening, opened(zmq.SUB, listening["events"]) as live:
        async with session(listening) as client:
            events = Events(live, client)
            await events.begin()
            await complete(client, ids(1, 320))
            (message,) = map(batch, await events.messages())
    kinds = ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")
    window, full = message[1]
    assert [[e.get(kind) for kind in kinds] for e in (window, full)] == [
        [0, "sliding_window", 64],
        [1, "full_attention", None],
    ]
    assert window["block_hashes"] == full["block_hashes"][7:9]
    assert window["token_ids"] == full["token_ids"] == list(ids(1, 320))
