"""A coordinator's process that is told to stop, with requests in flight."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests import processes, simulated
from tests.waiting import until

pytestmark = pytest.mark.flow

CHAT = {
    "model": simulated.MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "ignore_eos": True,
}


@dataclass
class Process:
    """A running coordinator."""

    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession
    http: str
    admin: str

    async def why_not_ready(self) -> list[str]:
        """Return the reasons; there is no agent, which is one."""
        async with self.session.get(f"{self.admin}/readyz") as answer:
            assert answer.status == 503
            reasons: list[str] = (await answer.json())["reasons"]
            return reasons

    async def begin(self, max_tokens: int) -> aiohttp.ClientResponse:
        """Open a stream that has begun."""
        body = CHAT | {"stream": True, "max_tokens": max_tokens}
        answer = await self.session.post(f"{self.http}/v1/chat/completions", json=body)
        await answer.content.readany()
        return answer


@asynccontextmanager
async def coordinator_of(engine: str, drain_s: float) -> AsyncIterator[Process]:
    listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    config: dict[str, Any] = listen | {
        "transport": "plaintext",
        "engines": [{"url": f"http://{engine}"}],
        "drain_s": drain_s,
    }
    process = await processes.running("coordinator.main", config)
    assert process.stdout is not None
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        where = json.loads(await process.stdout.readline())["listening"]
        running = Process(process, session, f"http://{where['http']}", f"http://{where['admin']}")
        while "no engine can be reached" in await running.why_not_ready():  # noqa: ASYNC110  another process sets no event
            await asyncio.sleep(0.02)
        try:
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def test_new_requests_are_refused_and_open_streams_finish() -> None:
    with simulated.engine() as engine:
        async with coordinator_of(engine["http"], drain_s=10) as running:
            running_stream = await running.begin(max_tokens=300)
            await _until_unready(running)
            url = f"{running.http}/v1/chat/completions"
            for _ in range(2):  # also on connections that are new
                async with running.session.post(url, json=CHAT) as answer:
                    assert answer.status == 503
                    assert answer.headers["retry-after"] == "1"
                    assert (await answer.json())["error"]["code"] == 503
            async with running.session.get(f"{running.admin}/healthz") as answer:
                assert answer.status == 200
            rest = await running_stream.content.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert await running.process.wait() == 0


async def test_what_is_open_at_the_deadline_ends_with_an_error() -> None:
    with simulated.engine() as engine:
        async with coordinator_of(engine["http"], drain_s=0.3) as running:
            streams = [await running.begin(max_tokens=900) for _ in range(3)]
            whole = asyncio.create_task(
                running.session.post(
                    f"{running.http}/v1/chat/completions", json=CHAT | {"max_tokens": 900}
                )
            )
            load = f"http://{engine['http']}/load"

            async def all_run() -> bool:
                async with running.session.get(load) as answer:
                    return bool((await answer.json())["server_load"] == 4)

            await until(all_run)
            running.process.send_signal(signal.SIGTERM)
            for received in await asyncio.gather(*map(_cut_off, streams)):
                assert b"[DONE]" not in received
                last = received.split(b"\n\n")[-2].removeprefix(b"data: ")
                assert json.loads(last)["error"]["code"] == 503
            async with await whole as answer:
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            async with asyncio.timeout(3):
                assert await running.process.wait() == 0
            async with running.session.get(load) as answer:
                assert (await answer.json())["server_load"] == 0


async def _cut_off(stream: aiohttp.ClientResponse) -> bytes:
    received = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async for chunk in stream.content.iter_any():
            received += chunk
    stream.close()
    return received


async def _until_unready(running: Process) -> None:
    running.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(2):
        while "shutting down" not in await running.why_not_ready():  # noqa: ASYNC110  another process sets no event
            await asyncio.sleep(0.01)
