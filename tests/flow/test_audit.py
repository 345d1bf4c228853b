"""An engine whose events say too little, or too much: noticed, named and healed by its answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from agent.config import AgentConfig
from agent.main import run
from coordinator.config import EngineSpec
from coordinator.holdings.audit import WRONG
from tests.captures import ids
from tests.gateways import Running, coordinator
from tests.simulated import MODEL, complete, engine, post
from tests.waiting import until

pytestmark = pytest.mark.flow

LOST = range(1, 1 + WRONG)
"""Prompts that the engine computes while its events are mute."""


@asynccontextmanager
async def reading(gateway: Running) -> AsyncIterator[None]:
    """Run an agent beside a coordinator."""
    stop = asyncio.Event()
    config = AgentConfig(coordinators=(gateway.grpc,), transport="plaintext")
    agent = asyncio.create_task(run(config, stop, lambda _: None))
    try:
        yield
    finally:
        stop.set()
        await agent


async def shown(gateway: Running) -> dict[str, Any]:
    (one,) = await gateway.debug("/debug/engines")
    return dict(one)


async def until_state(gateway: Running, wanted: str) -> dict[str, Any]:
    async def reached() -> bool:
        return bool((await shown(gateway))["cache_state"] == wanted)

    await until(reached)
    return await shown(gateway)


async def ask(gateway: Running, seed: int) -> tuple[int, int]:
    """Return the cached tokens that were predicted, and that were reported."""
    body: dict[str, Any] = {"model": MODEL, "prompt": list(ids(seed, 200)), "max_tokens": 1}
    status, headers, _ = await gateway.post("/v1/completions", body)
    assert status == 200
    outcome = (await gateway.record(headers))["outcome"]
    return outcome["predicted_cached_tokens"], outcome["cached_tokens"]


async def until_healed(gateway: Running) -> dict[str, Any]:
    """Ask for one prompt again and again until the engine is live."""
    for _ in range(60):
        predicted, reported = await ask(gateway, LOST[0])
        assert predicted <= reported
        if (await shown(gateway))["cache_state"] == "live":
            break
        await asyncio.sleep(0.03)
    return await until_state(gateway, "live")


async def metric(gateway: Running, name: str) -> float:
    async with gateway.session.get(f"{gateway.admin}/metrics") as answer:
        page = await answer.text()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


async def test_events_lost_without_a_trace_are_an_alarm_until_requests_agree_again() -> None:
    with engine("--faults") as listening:
        spec = EngineSpec(url=f"http://{listening['http']}")
        async with coordinator(spec, announce_share=0.5) as gateway, reading(gateway):
            await until_state(gateway, "live")
            async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
                await complete(client, ids(9, 200))
                await post(client, "/sim/faults", fault="mute_events")
                for seed in LOST:
                    await complete(client, ids(seed, 200))
                async with client.delete("/sim/faults") as answer:
                    assert answer.status == 200
            assert [await ask(gateway, seed) for seed in LOST] == [(0, 192)] * WRONG
            alarm = await until_state(gateway, "unsure")
            assert alarm["audit"]["mispredicted"] is True
            assert "hit more cached tokens than its events say" in alarm["reason"]
            assert await metric(gateway, "lineside_engine_mispredicted{") == 1
            healed = await until_healed(gateway)
            assert healed["audit"]["mispredicted"] is False
            assert await metric(gateway, "lineside_engine_mispredicted{") == 0
            assert await ask(gateway, LOST[0]) == (192, 192)


async def test_a_reset_that_no_event_tells_of_is_an_alarm_and_nothing_stays_promised() -> None:
    with engine("--faults") as listening:
        spec = EngineSpec(url=f"http://{listening['http']}")
        async with coordinator(spec, announce_share=0.5) as gateway, reading(gateway):
            await until_state(gateway, "live")
            async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
                for seed in LOST:
                    await complete(client, ids(seed, 200))
                await post(client, "/sim/faults", fault="mute_events", count=1)
                assert await post(client, "/reset_prefix_cache") == {"success": True}
                await complete(client, ids(50, 200))  # its step carries the clear event

            async def heard() -> bool:
                return bool((await shown(gateway))["blocks"] == 6 * WRONG)

            await until(heard)
            predictions = [await ask(gateway, seed) for seed in LOST]
            assert predictions == [(192, 0)] * WRONG
            alarm = await until_state(gateway, "unsure")
            assert "hit fewer cached tokens than its events say" in alarm["audit"]["reason"]
            await until_healed(gateway)
            assert await ask(gateway, LOST[0]) == (192, 192)
