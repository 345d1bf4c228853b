"""Engines that do not get on while they answer /health, and busy ones that do not answer it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cli.children import child
from cli.stack import Stack, running

pytestmark = pytest.mark.flow

STALLED_S = 2.0
PATIENCE_S = 10.0
"""For what takes a second or two where nothing else runs."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = CHAT | {"stream": True, "max_tokens": 2000, "ignore_eos": True}


@asynccontextmanager
async def stack_of(
    count: int, **settings: Any
) -> AsyncIterator[tuple[Stack, list[str], aiohttp.ClientSession]]:
    """Run engines, a coordinator and an agent; wait until all reports are fresh."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                child(f"engine {n}", "simulate.main", ["--port=0", "--model-name=m", "--faults"])
            )
            for n in range(count)
        ]
        addresses = [engine.listening["http"] for engine in engines]
        specs = [{"url": f"http://{address}"} for address in addresses]
        whole = await stack.enter_async_context(running(specs, settings=settings))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(10):
            while None in [e["load_age_s"] for e in await whole.engines(session)]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield whole, addresses, session


async def fault(session: aiohttp.ClientSession, address: str, **how: Any) -> None:
    async with session.post(f"http://{address}/sim/faults", json=how) as answer:
        assert answer.status == 200


async def ask(whole: Stack, session: aiohttp.ClientSession) -> str:
    async with session.post(f"{whole.http}/v1/chat/completions", json=CHAT) as answer:
        assert answer.status == 200
        return answer.headers["x-lineside-engine"]


async def failing(whole: Stack, session: aiohttp.ClientSession) -> dict[str, str]:
    return {e["id"]: e["reason"] for e in await whole.engines(session) if e["failing"]}


async def test_a_frozen_engine_is_left_out_and_comes_back_by_itself() -> None:
    async with stack_of(2, stalled_s=STALLED_S) as (whole, (first, second), session):
        streams = await _streams(whole, session, 6)
        assert {stream.headers["x-lineside-engine"] for stream in streams} == {first, second}
        await fault(session, first, fault="freeze")
        frozen_at = time.monotonic()
        while not await failing(whole, session):
            assert time.monotonic() - frozen_at < STALLED_S + PATIENCE_S
            await asyncio.sleep(0.05)
        assert await failing(whole, session) == {
            first: "it makes no progress although requests are pending"
        }
        async with session.get(f"http://{first}/health") as answer:
            assert answer.status == 200
        assert {await ask(whole, session) for _ in range(10)} == {second}
        async with session.delete(f"http://{first}/sim/faults"):
            healed_at = time.monotonic()
        while await failing(whole, session):
            assert time.monotonic() - healed_at < PATIENCE_S
            await asyncio.sleep(0.05)
        for stream in streams:
            stream.close()
        served: set[str] = set()
        while served != {first, second}:
            assert time.monotonic() - healed_at < 2 * PATIENCE_S
            served.add(await ask(whole, session))


async def test_a_busy_engine_with_a_slow_health_page_stays() -> None:
    async with stack_of(1, stalled_s=1.0) as (whole, (engine,), session):
        await fault(session, engine, fault="hang", where="health")
        await fault(session, engine, fault="slow", factor=20)
        streams = await _streams(whole, session, 2)
        for _ in range(30):
            assert not await failing(whole, session)
            await asyncio.sleep(0.1)
        for stream in streams:
            stream.close()


async def test_an_idle_engine_stays() -> None:
    async with stack_of(1, stalled_s=0.5) as (whole, (engine,), session):
        await fault(session, engine, fault="freeze")
        for _ in range(20):
            assert not await failing(whole, session)
            await asyncio.sleep(0.1)


async def test_an_engine_that_gateways_ask_about_and_send_nothing_stays() -> None:
    gateways = {"anonymous": True, "transport": "plaintext"}
    async with stack_of(1, stalled_s=0.5, gateways=gateways) as (whole, _, session):
        for _ in range(25):
            query = {"path": "/v1/chat/completions", "body": CHAT}
            async with session.post(f"{whole.http}/lineside/v1/route", json=query) as answer:
                assert (answer.status, "routed" in await answer.json()) == (200, True)
            assert not await failing(whole, session)
            await asyncio.sleep(0.1)


async def _streams(
    whole: Stack, session: aiohttp.ClientSession, count: int
) -> list[aiohttp.ClientResponse]:
    """Open streams that have begun."""
    url = f"{whole.http}/v1/chat/completions"
    streams = [await session.post(url, json=LONG) for _ in range(count)]
    for stream in streams:
        await stream.content.readany()
    return streams
