"""A gateway that has just opened: its engines are not unknown, they are not reached yet."""

import asyncio

import aiohttp
import pytest

from coordinator.config import Config, EngineSpec
from coordinator.main import run

pytestmark = pytest.mark.flow


async def test_the_first_request_of_all_is_told_to_come_again() -> None:
    """Sent before discovery's task has run once; a 404 would be taken for good by a client."""
    any_port = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    engines = (EngineSpec(url="http://127.0.0.1:9"),)
    config = Config(transport="plaintext", engines=engines, **any_port)
    stop = asyncio.Event()
    answers: list[tuple[int, str | None]] = []

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        listening: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        tasks.create_task(run(config, stop, listening.set_result))
        url = f"http://{(await listening)['http']}/v1/completions"
        async with session.post(url, json={"model": "m", "prompt": "x"}) as answer:
            answers.append((answer.status, answer.headers.get("retry-after")))
        stop.set()
    ((status, retry_after),) = answers
    assert status == 503
    assert retry_after is not None
