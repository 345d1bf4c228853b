"""A gateway that has just opened: its engines are not unknown, they are not reached yet."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from coordinator.config import Config, EngineSpec
from coordinator.doors import door_http
from coordinator.doors.door_http import FIRST_LOOK_S
from coordinator.main import run
from tests import simulated

pytestmark = pytest.mark.flow

Answer = tuple[int, Mapping[str, str], Any]


@asynccontextmanager
async def opened(*engines: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a coordinator; give a client of it as soon as it listens."""
    config = Config(
        transport="plaintext",
        engines=tuple(EngineSpec(url=f"http://{address}") for address in engines),
        http="127.0.0.1:0",
        grpc="127.0.0.1:0",
        admin="127.0.0.1:0",
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        listening: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        tasks.create_task(run(config, stop, listening.set_result))
        async with aiohttp.ClientSession(f"http://{(await listening)['http']}") as session:
            yield session
        stop.set()


async def complete(session: aiohttp.ClientSession) -> Answer:
    body = {"model": simulated.MODEL, "prompt": "x", "max_tokens": 1}
    async with session.post("/v1/completions", json=body) as answer:
        return answer.status, answer.headers, await answer.json()


async def timed(session: aiohttp.ClientSession) -> tuple[int, float]:
    begun_at = time.monotonic()
    status, _, _ = await complete(session)
    return status, time.monotonic() - begun_at


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, the first look comes in time."""
    monkeypatch.setattr(door_http, "FIRST_LOOK_S", 10.0)


async def test_the_first_requests_of_all_wait_for_the_first_look(patient: None) -> None:
    """Sent before discovery's task has run once."""
    with simulated.engine() as listening:
        async with opened(listening["http"]) as session, session.get("/v1/models") as answer:
            models = [card["id"] for card in (await answer.json())["data"]]
        async with opened(listening["http"]) as session:
            status, _, _ = await complete(session)
    assert (status, models) == (200, [simulated.MODEL])


async def test_a_request_is_told_to_come_again_when_no_engine_can_be_reached() -> None:
    """A 404 would be taken for good by a client."""
    async with opened("127.0.0.1:9") as session:
        status, headers, _ = await complete(session)
    assert status == 503
    assert headers["retry-after"]


async def test_an_engine_that_never_says_what_it_serves_is_waited_for_a_second_and_no_more() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with opened(f"127.0.0.1:{mute.getsockname()[1]}") as session:
            first, waited_s = await timed(session)
            second, at_once_s = await timed(session)
    assert (first, second) == (503, 503)
    assert waited_s >= FIRST_LOOK_S
    assert at_once_s < FIRST_LOOK_S


async def test_such_an_engine_holds_up_nobody_whose_model_another_serves(patient: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, simulated.engine() as listening:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        async with opened(address, listening["http"]) as session:
            status, took_s = await timed(session)
    assert status == 200
    assert took_s < door_http.FIRST_LOOK_S / 2
