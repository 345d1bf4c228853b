"""A simulated engine with a sliding window behind the whole path: predicted is what it reports."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cli.stack import Stack, running
from tests.captures import ids
from tests.simulated import MODEL, engine

pytestmark = pytest.mark.flow

REQUESTS = 60
BLOCK = 32
BLOCKS = 64


@asynccontextmanager
async def stack(*options: str) -> AsyncIterator[tuple[Stack, aiohttp.ClientSession]]:
    with engine(*options) as listening:
        async with (
            running([{"url": f"http://{listening['http']}"}]) as started,
            aiohttp.ClientSession() as session,
        ):
            await started.wait_fresh(session, 1, 10.0)
            yield started, session


def prompts() -> list[list[int]]:
    """Return prompts that share beginnings, come back, grow, and end at or beside a block's end."""
    rng, made = random.Random(3), []
    for _ in range(REQUESTS):
        prompt = list(ids(200 + rng.randrange(10), BLOCK * rng.randint(2, 9)))
        if rng.random() < 0.5:
            prompt = prompt[: len(prompt) + rng.choice([-31, -1, 0])]
        if rng.random() < 0.5:
            prompt += ids(300 + rng.randrange(4), rng.choice([1, 31, 32, 33, 96]))
        made.append(prompt)
    return made


async def caught_up(stack: Stack, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Wait until the index has not changed for some flushes; return what it says of the engine."""
    last: dict[str, Any] = {}
    same = 0
    while same < 3:
        await asyncio.sleep(0.02)
        async with session.get(f"{stack.admin}/debug/index") as answer:
            (now,) = (await answer.json())["engines"].values()
        same, last = same + 1 if now == last else 0, now
    return last


async def test_the_cached_tokens_are_predicted_over_evictions() -> None:
    limits = ("--blocks", str(BLOCKS), "--max-model-len", "512")
    async with stack("--sliding-window", "64", *limits) as (started, session):
        sent = prompts()
        blocks = {tuple(p[:end]) for p in sent for end in range(BLOCK, len(p) + 1, BLOCK)}
        assert len(blocks) > 1.5 * BLOCKS  # so that much is evicted, its windows not counted
        for prompt in sent:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 8}
            async with session.post(f"{started.http}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
            index = await caught_up(started, session)
        assert (index["hit_points"], index["stride"], index["resyncs"]) == (True, 2, {})
        outcomes = [record["outcome"] for record in await started.decisions(session)]
        engines = await started.engines(session)
    pairs = [(of["predicted_cached_tokens"], of["cached_tokens"]) for of in outcomes]
    assert len(pairs) == REQUESTS
    assert [predicted for predicted, _ in pairs] == [reported for _, reported in pairs]
    reported = [reported for _, reported in pairs]
    assert len(set(reported)) >= 5  # hits of many depths, and misses
    assert reported.count(0) >= 10
    assert engines[0]["cache_state"] == "live"
