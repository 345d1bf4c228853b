"""A real Envoy before a coordinator that is killed, started again, or told to stop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests import simulated
from tests.doors import CHAT, LONG
from tests.envoy_rig import CHAT as CHAT_PATH
from tests.envoy_rig import post
from tests.envoys import (
    BUFFERED,
    NONE,
    STREAMED,
    checked,
    cluster,
    envoy,
    ext_proc,
    listener,
    needs_envoy,
    picking,
)
from tests.killable import Process, free_ports
from tests.waiting import until

pytestmark = [pytest.mark.flow, needs_envoy, pytest.mark.asyncio(loop_scope="module")]

MODES = {
    "duplex": ("FULL_DUPLEX_STREAMED",) * 2,
    "streamed": (BUFFERED, STREAMED),
    "none": (BUFFERED, NONE),
}


@dataclass
class Rig:
    """What is running; the coordinator is started by the tests."""

    urls: dict[str, str]
    coordinator: Process
    admin: str

    async def begin(self, gateway: str) -> "Begun":
        """Open a stream that has begun."""
        client = aiohttp.ClientSession()
        answer = await client.post(self.urls[gateway] + CHAT_PATH, json=LONG)
        assert answer.status == 200
        first = await answer.content.readuntil(b"\n\n")
        return Begun(client, answer, first)

    async def lets_one_go(self) -> bool:
        """Whether the coordinator follows all but the stream whose answer does not come by."""
        async with aiohttp.ClientSession() as client, client.get(self.admin + "/metrics") as said:
            return f"lineside_envoy_streams {len(MODES) - 1}.0\n" in await said.text()

    async def serves(self) -> bool:
        return (await post(self.urls["none"], CHAT)).status == 200


@dataclass
class Begun:
    """A stream that a client is reading."""

    client: aiohttp.ClientSession
    answer: aiohttp.ClientResponse
    text: bytes

    async def is_whole(self) -> bool:
        """Read it to its end, and say whether that is a proper one."""
        async with self.client:
            try:
                self.text += await self.answer.content.read()
            except aiohttp.ClientError:
                return False
            finally:
                self.answer.close()
        return self.text.endswith(b"data: [DONE]\n\n")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("envoy")
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(simulated.engine("--blocks", "2000", "--no-kv-events"))["http"]
        http, grpc, admin, route = (f"127.0.0.1:{port}" for port in free_ports(4))
        config = {
            "transport": "plaintext",
            "engines": [{"url": f"http://{engine}"}],
            "http": http,
            "grpc": grpc,
            "admin": admin,
            "route": route,
            "gateways": {"transport": "plaintext", "anonymous": True, "leave_s": 0.4},
            "envoy": {"answers": "usage"},
            "drain_s": 5.0,
        }
        words = ["coordinator.main", "--config", "-"]
        coordinator = Process("coordinator", words, config, folder / "coordinator.log")
        listeners = [
            listener(name, ext_proc(request=request, response=response))
            for name, (request, response) in MODES.items()
        ]
        listeners.append(listener("checked", ext_proc("checked", failure_mode_allow=True)))
        clusters = [
            picking("pool", [engine]),
            cluster("picker", [route], http2=True),
            cluster("checked", [route], http2=True, **checked()),
        ]
        urls = stack.enter_context(envoy(listeners, clusters))
        stack.callback(coordinator.kill_if_running)
        yield Rig(urls, coordinator, f"http://{admin}")


async def test_a_coordinator_that_is_killed_takes_with_it_only_what_comes_by(rig: Rig) -> None:
    await rig.coordinator.start()
    await until(rig.serves)
    streams = {name: await rig.begin(name) for name in MODES}
    await until(rig.lets_one_go)
    await rig.coordinator.kill()
    whole = {name: await stream.is_whole() for name, stream in streams.items()}
    assert whole == {"duplex": False, "streamed": False, "none": True}
    assert (await post(rig.urls["duplex"], CHAT)).status == 500  # the gateway fails closed


async def test_one_that_is_started_again_is_asked_again(rig: Rig) -> None:
    await rig.coordinator.start()
    await until(rig.serves)
    for name in MODES:
        assert (await post(rig.urls[name], CHAT)).status == 200


async def test_one_that_is_told_to_stop_is_left_before_it_stops(rig: Rig) -> None:
    """Health says so first, streams are let finish, and nobody is left without an answer."""

    async def is_asked() -> bool:
        got = await post(rig.urls["checked"], CHAT)
        return "x-lineside-decision" in got.headers

    await until(is_asked)
    streams = {name: await rig.begin(name) for name in MODES}
    ending = asyncio.create_task(rig.coordinator.end())
    asked = [await post(rig.urls["duplex"], CHAT)]  # still answered
    began = time.monotonic()
    while asked[-1].status == 200 and time.monotonic() < began + 5:
        asked.append(await post(rig.urls["duplex"], CHAT))
    whole = {name: await stream.is_whole() for name, stream in streams.items()}
    assert whole == dict.fromkeys(MODES, True)
    assert {got.status for got in asked[:-1]} == {200}
    assert (asked[-1].status, asked[-1].headers.get("retry-after")) == (503, "1")
    assert await ending == 0


async def test_a_gateway_that_checks_health_goes_on_without_it(rig: Rig) -> None:
    """Fails open, as it is told to: a body that is not sent to a picker is not lost."""

    async def goes_on() -> bool:  # once the check, ten times a second, has noticed
        got = await post(rig.urls["checked"], CHAT)
        return (got.status, "x-lineside-decision" in got.headers) == (200, False)

    await until(goes_on)
