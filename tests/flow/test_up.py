"""`lineside up` before engines that it did not start: a prefix group stays on its engine."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cli.children import child

pytestmark = pytest.mark.flow

PREFIX = "You answer questions about the Python language. " * 60


@asynccontextmanager
async def up(*options: str) -> AsyncIterator[tuple[dict[str, str], asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "up", "--json", *options,
        *("--http", ":0", "--grpc", ":0", "--admin", ":0"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = await process.stdout.readline()
        yield json.loads(line)["listening"], process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(15):
                await process.wait()


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers.get("x-lineside-engine"), await answer.json()


def _chat(question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": PREFIX}, {"role": "user", "content": question}]
    return {"model": "m", "messages": messages, "max_tokens": 4}


async def test_a_prefix_group_stays_on_its_engine_and_the_dry_run_shows_the_overlap() -> None:
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
        url = f"http://{where['http']}/v1/chat/completions"
        first, _ = await _post(session, url, _chat("first?"))
        await asyncio.sleep(0.3)
        for n in range(6):
            engine, answer = await _post(session, url, _chat(f"question {n}?"))
            assert engine == first
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
        request = {"path": "/v1/chat/completions", "headers": {}, "body": _chat("dry?")}
        _, record = await _post(session, f"http://{where['admin']}/debug/route", request)
        overlap = {c["id"]: c["overlap_tokens"] for c in record["candidates"]}
        assert overlap.pop(first) > 300
        assert list(overlap.values()) == [0]


async def test_ending_up_ends_its_children_also_when_it_is_killed() -> None:
    async with (
        child("engine", "simulate.main", ["--port", "0", "--model-name", "m"]) as engine,
        up(f"--engine=http://{engine.listening['http']}") as (where, process),
        aiohttp.ClientSession() as session,
    ):
        process.send_signal(signal.SIGKILL)
        await process.wait()
        for listener in (where["admin"], where["agent"]):
            async with asyncio.timeout(15):
                while True:
                    try:
                        async with session.get(f"http://{listener}/healthz"):
                            await asyncio.sleep(0.1)
                    except aiohttp.ClientError:
                        break


@pytest.mark.parametrize("port", ["http", "admin"])
async def test_a_taken_port_is_said_plainly(port: str) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]
    options = {"http": ":0", "grpc": ":0", "admin": ":0", port: f":{taken}"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "up", "--engine", "http://127.0.0.1:9",
        *(word for name, value in options.items() for word in (f"--{name}", value)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    server.close()
    assert process.returncode == 3
    assert f"127.0.0.1:{taken}" in errors.decode()
