"""An engine whose past nobody can tell any more: known again by being used, and called so."""

import asyncio
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


async def state(gateway: Running) -> str:
    (shown,) = await gateway.debug("/debug/engines")
    return str(shown["cache_state"])


async def until_state(gateway: Running, wanted: str) -> None:
    async def reached() -> bool:
        return await state(gateway) == wanted

    await until(reached)


async def ask(gateway: Running, seed: int) -> tuple[int, int]:
    """Return the cached tokens that were predicted, and that were reported."""
    body: dict[str, Any] = {"model": MODEL, "prompt": list(ids(seed, 200)), "max_tokens": 1}
    status, headers, _ = await gateway.post("/v1/completions", body)
    assert status == 200
    outcome = (await gateway.record(headers))["outcome"]
    return outcome["predicted_cached_tokens"], outcome["cached_tokens"]


async def test_a_lost_start_heals_by_use() -> None:
    stop = asyncio.Event()
    with engine("--faults") as listening:
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            for seed in (1, 2, 3):
                await complete(client, ids(seed, 200))
            await post(client, "/sim/faults", fault="shrink_replay_buffer", steps=1)
        spec = EngineSpec(
            url=f"http://{listening['http']}",
            kv=listening["events"],
            replay=listening["replay"],
            tokenizer=TOKENIZER,
        )
        async with coordinator(spec, announce_share=0.5) as gateway:
            config = AgentConfig(coordinators=(gateway.grpc,), transport="plaintext")
            reading = asyncio.create_task(run(config, stop, lambda _: None))
            try:
                await until_state(gateway, "unsure")
                first = await ask(gateway, 1)
                assert first == (0, 192)
                for _ in range(20):
                    predicted, reported = await ask(gateway, 1)
                    assert predicted <= reported  # it may say too little, never too much
                    await asyncio.sleep(0.03)
                await until_state(gateway, "live")
                assert await ask(gateway, 1) == (192, 192)
            finally:
                stop.set()
                await reading
