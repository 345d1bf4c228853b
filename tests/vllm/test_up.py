"""`lineside up` before real engines, as a person starts it: told where they are, no more."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.flow.test_up import up
from tests.vllm.asks import BOUND, chat
from tests.vllm.model import NAME
from tests.vllm.product import STRIDE_TOKENS
from tests.vllm.servers import Server

pytestmark = pytest.mark.vllm


async def test_it_finds_all_that_it_needs_and_keeps_a_chat_where_it_is(
    pair: tuple[Server, Server],
) -> None:
    for server in pair:
        await asyncio.to_thread(server.empty)
    async with (
        up(*(f"--engine={server.url}" for server in pair)) as (where, _),
        aiohttp.ClientSession() as session,
    ):

        async def get(path: str) -> Any:
            async with session.get(f"http://{where['admin']}{path}") as answer:
                return await answer.json()

        shown = {engine["id"]: engine for engine in await get("/debug/engines")}
        for server in pair:
            engine = shown[server.id]
            assert (engine["cache_state"], engine["reason"]) == ("live", "")
            assert (engine["version"], engine["block_size"]) == ("0.32.0", 32)
            assert NAME in engine["models"]
            source = server.get("/kv_event_sources")["0"]
            assert engine["events"] == source["endpoint"]
            assert engine["replay"] == source["replay_endpoint"]
        path, body = chat()
        engines = []
        for n in range(4):
            body["messages"][-1]["content"] = f"Question {n}?"
            async with session.post(f"http://{where['http']}{path}", json=body) as answer:
                assert answer.status == 200
                engines.append(answer.headers["x-lineside-engine"])
                decision = answer.headers["x-lineside-decision"]
                usage = (await answer.json())["usage"]
            await asyncio.sleep(1)
        assert len(set(engines)) == 1
        outcome = (await get(f"/debug/decisions/{decision}"))["outcome"]
        reported = usage["prompt_tokens_details"]["cached_tokens"]
        assert reported >= STRIDE_TOKENS
        assert 0 <= reported - outcome["predicted_cached_tokens"] < BOUND
