"""Engines that are not as one expects: each ends in the right state, with the right words.

Their counterparts on real engines are in tests/vllm/test_bad_engines.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import simulate
from agent.config import AgentConfig
from agent.main import run
from coordinator.config import EngineSpec
from tests.captures import ids
from tests.gateways import Running, coordinator
from tests.simulated import MODEL, complete, engine, post
from tests.waiting import until

pytestmark = pytest.mark.flow

TOKENIZER = str(Path(simulate.__file__).parent / "model")
SEEDS = range(1, 9)


@asynccontextmanager
async def front(listening: dict[str, Any]) -> AsyncIterator[Running]:
    """Run the product before one engine."""
    spec = EngineSpec(
        url=f"http://{listening['http']}",
        kv=listening.get("events"),
        replay=listening.get("replay"),
        tokenizer=TOKENIZER,
    )
    stop = asyncio.Event()
    async with coordinator(spec) as gateway:
        config = AgentConfig(coordinators=(gateway.grpc,), transport="plaintext")
        reading = asyncio.create_task(run(config, stop, lambda _: None))
        try:
            yield gateway
        finally:
            stop.set()
            await reading


async def in_the_end(gateway: Running, state: str, reason: str) -> None:
    """Wait until the engine's cache is in a state, and say what it is instead."""
    seen: list[str] = []

    async def so() -> bool:
        (shown,) = await gateway.debug("/debug/engines")
        seen[:] = [shown["cache_state"], shown["reason"]]
        return seen == [state, reason]

    try:
        await until(so, 8)
    except TimeoutError:
        assert seen == [state, reason]


async def ask(gateway: Running, seed: int, length: int = 200) -> tuple[int | None, int]:
    """Return the cached tokens that were predicted, and that were reported."""
    body = {"model": MODEL, "prompt": list(ids(seed, length)), "max_tokens": 1}
    status, headers, _ = await gateway.post("/v1/completions", body)
    assert status == 200
    outcome = (await gateway.record(headers))["outcome"]
    return outcome["predicted_cached_tokens"], outcome["cached_tokens"]


async def warm(listening: dict[str, Any]) -> None:
    """Let an engine compute some prompts before anybody reads its events."""
    async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
        for seed in SEEDS:
            await complete(client, ids(seed, 200))


async def misbehave(listening: dict[str, Any], **fault: Any) -> None:
    async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
        await post(client, "/sim/faults", **fault)


async def test_hashes_of_32_bytes_are_matched_as_integers_are() -> None:
    with engine("--byte-hashes") as listening:
        await warm(listening)
        async with front(listening) as gateway:
            await in_the_end(gateway, "live", "")
            assert await ask(gateway, SEEDS[-1]) == (192, 192)


async def test_an_engine_without_events_is_used_by_load_and_said_to_have_none() -> None:
    with engine("--no-kv-events") as listening:
        await warm(listening)
        async with front(listening) as gateway:
            await in_the_end(gateway, "none", "the engine publishes no KV events")
            assert await ask(gateway, SEEDS[-1]) == (None, 192)


async def test_blocks_that_no_unit_fits_into_are_unusable_and_said_to_be() -> None:
    with engine("--block-size", "24") as listening:
        await warm(listening)
        async with front(listening) as gateway:
            await in_the_end(gateway, "unusable", "block size 24 is not a multiple of 16")
            assert await ask(gateway, SEEDS[-1]) == (None, 192)  # served all the same


LONG = 700
"""Batches; of a shorter replay vLLM's send queue drops nothing."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"after": 300, "replies": 100}, id="a hole"),
        pytest.param({"after": 300, "end_marker": False}, id="an end without a word"),
        pytest.param({"after": 600}, id="an end too early"),
    ],
)
async def test_a_long_replay_that_loses_replies_is_read_whole(fault: dict[str, Any]) -> None:
    roomy = ("--max-num-seqs", "1", "--base-step-s", "0", "--blocks", str(2 * LONG + 8))
    with engine("--faults", *roomy) as listening:
        await fill(listening)
        await misbehave(listening, fault="lose_replies", count=1, **fault)
        async with front(listening) as gateway:
            await in_the_end(gateway, "live", "")
            (shown,) = await gateway.debug("/debug/engines")
            assert (shown["blocks"], shown["gaps"]) == (2 * LONG, 0)
            for seed in (0, 350, LONG - 1):  # the agent's word may be there before its digest

                async def is_known(seed: int = seed) -> bool:
                    return await ask(gateway, seed, 65) == (64, 64)

                await until(is_known)


async def fill(listening: dict[str, Any]) -> None:
    """Let an engine publish many batches before anybody reads them."""
    async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
        await complete(client, [list(ids(seed, 65)) for seed in range(LONG)])


async def test_a_replay_that_never_brings_a_batch_is_unsure_and_promises_no_more() -> None:
    with engine("--faults") as listening:
        await warm(listening)
        await misbehave(listening, fault="lose_replies", after=1)
        async with front(listening) as gateway:
            await in_the_end(gateway, "live", "")  # nothing says yet that there was more
            await ask(gateway, 100)
            await in_the_end(
                gateway, "unsure", "events were lost: the engine's replay does not bring it"
            )
            for seed in SEEDS:
                predicted, reported = await ask(gateway, seed)
                assert predicted is not None and predicted <= reported
