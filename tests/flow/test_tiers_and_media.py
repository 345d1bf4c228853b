"""What is in CPU memory counts for less and is predicted all the same; a picture ends the match."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import simulate
from coordinator.config import EngineSpec
from tests.captures import ids
from tests.flow.test_audit import ask, reading, shown
from tests.gateways import Running, coordinator
from tests.simulated import MODEL, complete, engine
from tests.waiting import until

pytestmark = pytest.mark.flow

TOKENIZER = str(Path(simulate.__file__).parent / "model")


@asynccontextmanager
async def gateway_before(
    *options: str,
) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    """Run an engine, a gateway before it, and an agent that has read it."""
    with engine(*options) as listening:
        url = f"http://{listening['http']}"
        spec = EngineSpec(url=url, tokenizer=TOKENIZER)
        async with (
            coordinator(spec) as gateway,
            reading(gateway),
            aiohttp.ClientSession(url) as client,
        ):
            yield gateway, client


async def until_held(gateway: Running, blocks: int) -> None:
    async def held() -> bool:
        return bool((await shown(gateway))["blocks"] == blocks)

    await until(held)


async def dry(gateway: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a decision that nothing comes of."""
    asked = {"path": path, "headers": {}, "body": {"model": MODEL, **body}}
    async with gateway.session.post(f"{gateway.admin}/debug/route", json=asked) as answer:
        assert answer.status == 200
        record: dict[str, Any] = await answer.json()
    return record


async def test_blocks_in_cpu_memory_are_predicted_and_count_for_less() -> None:
    async with gateway_before("--offload-blocks", "24") as (gateway, client):
        for seed in range(1, 10):  # six blocks each; the GPU has room for 47
            await complete(client, ids(seed, 200))
        await until_held(gateway, 9 * 6)
        records = [
            await dry(gateway, "/v1/completions", {"prompt": list(ids(seed, 200))})
            for seed in (1, 9)
        ]
        in_cpu, in_gpu = (record["candidates"][0] for record in records)
        assert (in_cpu["overlap_tokens"], in_gpu["overlap_tokens"]) == (192, 192)
        assert in_cpu["own_s"] > in_gpu["own_s"]
        assert await ask(gateway, 1) == (192, 192)
        assert await ask(gateway, 9) == (192, 192)


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 1}


def text(words: str, count: int) -> dict[str, Any]:
    return {"type": "text", "text": f"{words} " * count}


def picture(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"http://pictures.invalid/{name}.png"}}


async def test_a_prompt_matches_up_to_its_first_picture_and_says_why_no_further() -> None:
    async with gateway_before() as (gateway, _):
        before, after = text("before", 150), text("after", 150)
        status, _, _ = await gateway.post(
            "/v1/chat/completions", {"model": MODEL, **chat(before, after)}
        )
        assert status == 200

        async def known() -> bool:
            whole = await dry(gateway, "/v1/chat/completions", chat(before, after))
            return bool(whole["candidates"][0]["overlap_tokens"] > 192)

        await until(known)
        records = [
            await dry(gateway, "/v1/chat/completions", chat(before, picture(name), after))
            for name in ("one", "two")
        ]
        for record in records:
            (candidate,) = record["candidates"]
            assert (record["tokens_reason"], record["prompt_tokens"]) == ("media", None)
            assert 0 < candidate["overlap_tokens"] <= 160
        assert len({record["candidates"][0]["overlap_tokens"] for record in records}) == 1
