"""Agent and coordinator one release apart, both ways, as processes: `make test-skew`.

Digests, assignments, load, statuses and requests in flight; then each side is upgraded while
requests run. With SKEW_CAPTURE=FILE what the older release says is written there.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.captures import ids
from tests.killable import Process, free_ports
from tests.skew.relay import relay
from tests.skew.trees import ROOT, environ, previous, unpacked
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.skew]

MODEL = "simulated"
PRE_STOP_S = 0.1

BLOCKS = 28
"""Of 16 tokens, that the engine has cached; every 4th is reported."""

PAIRS = [
    pytest.param("old", "new", id="an older agent with today's coordinator"),
    pytest.param("new", "old", id="today's agent with an older coordinator"),
    pytest.param("old", "old", id="both older, to compare with"),
]


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the code of both releases, each proven to be imported from there."""
    revision = previous()
    old = unpacked(revision, tmp_path_factory.mktemp("old"))
    made = {"old": old, "new": ROOT}
    for tree in made.values():
        show = "import agent, coordinator, lineside.ids as i; print(agent.__file__, i.__file__)"
        done = subprocess.run(
            (sys.executable, "-c", show),
            env=environ(tree),
            cwd=tree,
            capture_output=True,
            text=True,
        )
        assert all(path.startswith(str(tree)) for path in done.stdout.split()), done
    print(f"\nthe release before: {revision}")
    return made


@dataclass
class Bench:
    """An engine, a coordinator, an agent, and a client."""

    session: aiohttp.ClientSession
    engine: str
    http: str
    admin: str
    processes: dict[str, Process]

    async def page(self, path: str) -> Any:
        async with self.session.get(f"http://{self.admin}{path}") as answer:
            return await answer.json()

    async def one(self) -> dict[str, Any]:
        (engine,) = await self.page("/debug/engines")
        found: dict[str, Any] = engine
        return found

    def prompt(self, tail: int) -> list[int]:
        return [*ids(7, 16 * BLOCKS), *ids(tail, 5)]

    async def complete(
        self, tail: int, tokens: int = 1, prompt: Sequence[int] | None = None
    ) -> int:
        body = {"model": MODEL, "prompt": prompt or self.prompt(tail), "max_tokens": tokens}
        body["ignore_eos"] = True
        url = f"http://{self.http}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            await answer.read()
            return answer.status

    async def overlap(self) -> int | str:
        body = {"model": MODEL, "prompt": self.prompt(99), "max_tokens": 1}
        asked = {"path": "/v1/completions", "body": body}
        async with self.session.post(f"http://{self.admin}/debug/route", json=asked) as answer:
            candidates = (await answer.json()).get("candidates") or []
        if [each["cache_state"] for each in candidates] != ["live"]:
            return "not live"
        found: int = candidates[0]["overlap_tokens"]
        return found

    async def knows(self) -> bool:
        return await self.overlap() == 16 * BLOCKS

    async def is_fresh(self) -> bool:
        engine = await self.one()
        return bool(engine["fresh"]) and engine["running"] is not None

    async def has_inflight(self, count: int) -> bool:
        return bool((await self.one())["inflight"] == count)


@asynccontextmanager
async def bench(
    folder: Path, trees: dict[str, Path], agent: str, coordinator: str, through: str = ""
) -> AsyncIterator[Bench]:
    """Run an engine, a coordinator of one release and an agent of one."""
    engine, kv, replay, grpc, admin, http = (f"127.0.0.1:{port}" for port in free_ports(6))
    words = [
        *("simulate.main", "--port", engine.rpartition(":")[2], "--max-model-len", "2048"),
        *("--kv-port", kv.rpartition(":")[2], "--replay-port", replay.rpartition(":")[2]),
        *("--model-name", MODEL, "--base-step-s", "0.01"),
    ]
    engines = [{"url": f"http://{engine}", "kv": f"tcp://{kv}", "replay": f"tcp://{replay}"}]
    config = {
        "transport": "plaintext",
        "engines": engines,
        "http": http,
        "grpc": grpc,
        "admin": admin,
        "agent_token": "t0ken",
        "store": f"sqlite:{folder / 'state.db'}",
    }
    processes = {
        "engine": Process("engine", words, None, folder / "engine.log"),
        "coordinator": of("coordinator", trees[coordinator], config, folder),
        "agent": of("agent", trees[agent], agent_of(folder, through or grpc), folder),
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_closed, processes)
        for name in ("engine", "coordinator"):
            await processes[name].start()
        if through != "later":
            await processes["agent"].start()
        async with aiohttp.ClientSession() as session:
            yield Bench(session, engine, http, admin, processes)


async def _closed(processes: dict[str, Process]) -> None:
    for process in processes.values():
        await process.close()


def agent_of(folder: Path, coordinator: str) -> dict[str, Any]:
    return {
        "transport": "plaintext",
        "coordinators": [coordinator],
        "token": "t0ken",
        "checkpoint_dir": str(folder / "checkpoints"),
    }


def of(name: str, tree: Path, config: dict[str, Any], folder: Path) -> Process:
    words = [f"{name}.main", "--config", "-"]
    return Process(name, words, config, folder / f"{name}.log", tree=tree, environ=environ(tree))


@pytest.mark.parametrize(("agent", "coordinator"), PAIRS)
async def test_two_releases_understand_each_other(
    agent: str, coordinator: str, trees: dict[str, Path], tmp_path: Path
) -> None:
    async with bench(tmp_path, trees, agent, coordinator) as running:
        await until(running.is_fresh, 20)  # assignment, status, load
        assert await running.overlap() == 0
        assert await running.complete(1) == 200
        await until(running.knows)  # digests
        streaming = asyncio.create_task(running.complete(2, tokens=600))
        await until(partial(running.has_inflight, 1))
        await until(lambda: reported(running))  # the engine's own word, by the agent
        assert await streaming == 200
        await until(partial(running.has_inflight, 0))
        await running.processes["coordinator"].kill()
        await running.processes["coordinator"].start()
        await until(running.knows, 20)  # by a snapshot
        await running.processes["agent"].kill()
        await running.processes["agent"].start()
        await until(running.is_fresh, 20)
        await until(running.knows, 20)  # by its checkpoint, or the engine's replay
        codes = {name: await each.end() for name, each in running.processes.items()}
        assert codes == dict.fromkeys(running.processes, 0)


async def reported(running: Bench) -> bool:
    return bool((await running.one())["running"] == 1)


@pytest.mark.parametrize("first", ["agent", "coordinator"])
async def test_an_upgrade_fails_no_request(
    first: str, trees: dict[str, Path], tmp_path: Path
) -> None:
    """Both older; one side is replaced by today's, then the other, under requests.

    A pod that is to go leaves its Service, waits (`preStop`), and only then is told to stop. What
    it took by then it finishes; what is new goes to the next one, here once that listens.
    """
    failed: list[Any] = []
    counted = 0
    served = asyncio.Event()
    served.set()
    async with bench(tmp_path, trees, "old", "old") as running:
        await until(running.is_fresh, 20)
        await running.complete(1)
        await until(running.knows)
        stop = asyncio.Event()

        async def client(number: int) -> None:
            nonlocal counted
            while not stop.is_set():
                await served.wait()
                try:
                    status: object = await running.complete(100 + number, 100 + 50 * number)
                except aiohttp.ClientError as error:
                    status = error
                counted += 1
                if status != 200:
                    failed.append(status)

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        for name in (first, "coordinator" if first == "agent" else "agent"):
            old = running.processes[name]
            if name == "coordinator":
                await until(partial(running.has_inflight, 4), 20)
                served.clear()
                await asyncio.sleep(PRE_STOP_S)
                assert (await running.one())["inflight"] > 0  # it is told to stop under them
            assert await old.end() == 0
            new = of(name, trees["new"], old.config, tmp_path)
            running.processes[name] = new
            await new.start()
            served.set()
            await until(running.is_fresh, 20)
            await until(running.knows, 20)
        stop.set()
        await asyncio.gather(*clients)
        for process in running.processes.values():
            await process.end()
    print(f"\n{counted} requests, failed: {failed}")
    assert failed == [] and counted >= 8


async def test_what_the_older_release_says_can_be_kept(
    trees: dict[str, Path], tmp_path: Path
) -> None:
    """Its messages in both directions, of which tests/cases/wire has a copy."""
    async with bench(tmp_path, trees, "old", "old", through="later") as running:
        grpc = running.processes["coordinator"].config["grpc"]
        async with relay(grpc) as (kept, address):
            agent = of("agent", trees["old"], agent_of(tmp_path, address), tmp_path)
            running.processes["agent"] = agent
            await agent.start()
            try:
                await until(running.is_fresh, 20)
                await running.complete(1)
                await until(running.knows)
                for seed in range(20, 40):
                    await running.complete(seed, prompt=ids(seed, 16 * seed))
                kept_until = len(kept.said)
                await until(lambda: more(kept.said, kept_until))
            finally:
                await agent.end()
    assert {way for way, _ in kept.said} == {"up", "down"}
    if file := os.environ.get("SKEW_CAPTURE"):
        lines = [
            json.dumps({"way": way, "b64": base64.b64encode(message).decode()})
            for way, message in kept.said
        ]
        write(Path(file), lines)


def write(file: Path, lines: list[str]) -> None:
    file.write_text("\n".join(lines) + "\n")


async def more(said: list[tuple[str, bytes]], than: int) -> bool:
    return len(said) > than + 5
