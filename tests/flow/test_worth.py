"""What caches are worth, of engines that requests really read."""

from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from cli.children import child
from tests.flow.test_up import up
from tests.waiting import until

pytestmark = pytest.mark.flow

PREFIX = "You answer questions about the Python language. " * 60


async def test_a_cache_is_worth_what_requests_read_of_it() -> None:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                child(f"engine {n}", "simulate.main", ["--port", "0", "--model-name", "m"])
            )
            for n in range(2)
        ]
        options = [f"--engine=http://{engine.listening['http']}" for engine in engines]
        where, _ = await stack.enter_async_context(up(*options))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def known() -> dict[str, Any]:
            async with session.get(f"http://{where['admin']}/debug/engines") as answer:
                return {each["id"]: each for each in await answer.json()}

        async def asked(question: str) -> str:
            messages = [
                {"role": "system", "content": PREFIX},
                {"role": "user", "content": question},
            ]
            body = {"model": "m", "messages": messages, "max_tokens": 4}
            async with session.post(
                f"http://{where['http']}/v1/chat/completions", json=body
            ) as answer:
                assert answer.status == 200
                await answer.read()
                return answer.headers["x-lineside-engine"]

        async def is_live() -> bool:
            return all(each["cache_state"] == "live" for each in (await known()).values())

        await until(is_live)
        first = await asked("first?")
        assert {each["cache_worth_tokens"] for each in (await known()).values()} == {0}

        async def holds_blocks() -> bool:
            return bool((await known())[first]["blocks"])

        await until(holds_blocks)
        assert await asked("second?") == first
        worth = {name: each["cache_worth_tokens"] for name, each in (await known()).items()}
        assert worth.pop(first) > 300
        assert list(worth.values()) == [0]  # nobody reads the other one's
