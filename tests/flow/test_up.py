"""`lineside up` before engines that it did not start: a prefix group stays on its engine."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from cli import children
from cli.children import Child, CouldNotRun, child, keep
from tests.waiting import until

pytestmark = pytest.mark.flow

PREFIX = "You answer questions about the Python language. " * 60


@asynccontextmanager
async def up(
    *options: str, errors: int | None = None
) -> AsyncIterator[tuple[dict[str, str], asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "up", "--json", *options,
        *("--http", ":0", "--grpc", ":0", "--admin", ":0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
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
        request = {"path": "/v1/chat/completions", "headers": {}, "body": _chat("dry?")}
        route = f"http://{where['admin']}/debug/route"

        async def is_announced() -> bool:
            _, record = await _post(session, route, request)
            return any(c["overlap_tokens"] > 300 for c in record["candidates"])

        await until(is_announced)
        for n in range(6):
            engine, answer = await _post(session, url, _chat(f"question {n}?"))
            assert engine == first
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
        _, record = await _post(session, route, request)
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


async def test_a_part_that_is_killed_is_started_again_and_the_gateway_is_exact_again(
    tmp_path: Path,
) -> None:
    async with (
        child("engine", "simulate.main", ["--port", "0", "--model-name", "m"]) as engine,
        up(
            f"--engine=http://{engine.listening['http']}",
            f"--logs={tmp_path}",
            errors=asyncio.subprocess.PIPE,
        ) as (where, process),
        aiohttp.ClientSession() as session,
    ):
        seen = set(parts_of(process.pid).values())
        for killed in ("agent", "coordinator"):
            parts_of(process.pid)[killed].kill()
            if killed == "agent":  # the gateway goes on meanwhile
                await _post(session, f"http://{where['http']}/v1/chat/completions", _chat("now?"))
            await until(partial(exact, session, where, engine.listening["http"], killed), 20)
            seen |= set(parts_of(process.pid).values())
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            _, said = await process.communicate()
        assert process.returncode == 0
        assert [part for part in seen if part.is_running()] == []
        assert len(seen) == 4
        assert re.findall(r"the (\w+) (was ended by \w+|runs again)", said.decode()) == [
            (name, what)
            for name in ("agent", "coordinator")
            for what in ("was ended by SIGKILL", "runs again")
        ]


def parts_of(up: int) -> dict[str, psutil.Process]:
    """Return the children of a running `up` by what they are."""
    return {
        module.removesuffix(".main"): part
        for part in psutil.Process(up).children()
        for module in part.cmdline()[2:3]
    }


async def exact(
    session: aiohttp.ClientSession, where: dict[str, str], engine: str, killed: str
) -> bool:
    """Say whether what the engine alone was just asked is known to be in its cache."""
    prompt = {"model": "m", "prompt": f"After the end of the {killed}. " * 40, "max_tokens": 1}
    await _post(session, f"http://{engine}/v1/completions", prompt)
    request = {"path": "/v1/completions", "headers": {}, "body": prompt}
    try:
        async with session.post(f"http://{where['admin']}/debug/route", json=request) as answer:
            record = await answer.json()
    except aiohttp.ClientError:
        return False
    overlaps = [each["overlap_tokens"] for each in record["candidates"]]
    states = [each["cache_state"] for each in record["candidates"]]
    return states == ["live"] and overlaps[0] > 300


async def test_an_engine_that_is_not_there_is_said_before_it_is_waited_for() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "up", "--json", "--engine=http://127.0.0.1:9",
        *("--http", ":0", "--grpc", ":0", "--admin", ":0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    printed = asyncio.create_task(process.stdout.read())
    said = b"lineside: http://127.0.0.1:9 does not answer yet: waiting up to 10 s for it\n"
    async with asyncio.timeout(30):
        while (line := await process.stderr.readline()) != said:
            assert line, "it ended without a word"
        assert not printed.done()
        process.send_signal(signal.SIGINT)
        await process.wait()
        assert await printed == b""  # it was still waiting


async def test_a_part_that_keeps_dying_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PAUSES_S", (0.01,) * 4)
    (tmp_path / "line").write_text('{"listening": {}}')
    said: list[str] = []
    each = Child("the agent", ["json.tool", "--no-indent", f"{tmp_path / 'line'}"], None, None)
    await each.start()
    with pytest.raises(CouldNotRun, match="exit code 0, for the 5th time within a minute"):
        await keep(each, "nothing is read", said.append)
    again = "the agent ended with exit code 0; it is started again in 0.01 s, nothing is read"
    assert said == [again, "the agent runs again"] * 4
