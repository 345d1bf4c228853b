"""The admin listener, asked wrongly."""

import asyncio

import aiohttp
import pytest

from coordinator.config import Config
from coordinator.doors.admin import LISTED
from coordinator.main import run
from tests.gateways import coordinator

pytestmark = pytest.mark.flow


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("x", id="a word"),
        pytest.param("-1", id="below zero"),
        pytest.param("0", id="zero"),
        pytest.param("\u00b2", id="a digit that is no number"),
        pytest.param("9" * 5000, id="more digits than Python converts"),
    ],
)
async def test_a_limit_that_is_no_number_is_refused(limit: str) -> None:
    async with coordinator() as running:
        url = f"{running.admin}/debug/decisions"
        async with running.session.get(url, params={"limit": limit}) as answer:
            assert answer.status == 400
            assert "`limit` must be a number" in await answer.text()


async def test_a_token_that_is_not_utf_8_is_wrong_and_no_fault() -> None:
    any_port = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    config = Config(transport="plaintext", admin_token="t" * 20, **any_port)
    stop = asyncio.Event()
    listening: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        tasks.create_task(run(config, stop, listening.set_result))
        url = f"http://{(await listening)['admin']}/debug/engines"
        async with session.get(url, headers={"authorization": "Bearer \udcff"}) as answer:
            stop.set()
            assert answer.status == 401


async def test_the_root_lists_what_there_is_and_what_is_not_there_says_so() -> None:
    async with coordinator() as running:
        async with running.session.get(f"{running.admin}/") as answer:
            assert (answer.status, await answer.text()) == (200, LISTED)
        async with running.session.get(f"{running.admin}/debug/nothing") as answer:
            message = "there is no such path here: `/` lists those that there are"
            assert answer.status == 404
            assert await answer.json() == {"error": {"message": message, "code": 404}}
        async with running.session.get(f"{running.admin}/debug/route") as answer:
            assert answer.status == 405
            assert "this path takes POST only" in await answer.text()
