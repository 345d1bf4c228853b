"""Two coordinators and one agent that reports to both, as processes; one is killed and comes back.

They share a store and a name, as replicas do, and ask for different strides: which one the agent
follows shows in how much of a prompt they know.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.captures import ids
from tests.killable import Process, free_ports
from tests.waiting import until

pytestmark = pytest.mark.flow

MODEL = "simulated"
STRIDES = {"fine": 4, "coarse": 8}
PREFIX = 28
"""Blocks of 16 tokens that the engine has cached: known whole by every 4th, to 24 by every 8th."""

KNOWN = {4: 16 * 28, 8: 16 * 24}


@dataclass(frozen=True)
class Pair:
    """Both coordinators and what they know, by name."""

    session: aiohttp.ClientSession
    engine: str
    admin: dict[str, str]
    processes: dict[str, Process]

    async def cache(self) -> None:
        """Have the engine alone compute the prefix."""
        body = {"model": MODEL, "prompt": self.prompt(1), "max_tokens": 1}
        async with self.session.post(f"http://{self.engine}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()

    def prompt(self, tail: int) -> list[int]:
        return [*ids(7, 16 * PREFIX), *ids(tail, 5)]

    async def overlap(self, name: str) -> int | str:
        """Return the tokens that a coordinator knows to be cached, or why it does not say."""
        body = {"model": MODEL, "prompt": self.prompt(2), "max_tokens": 1}
        asked = {"path": "/v1/completions", "body": body}
        try:
            async with self.session.post(
                f"http://{self.admin[name]}/debug/route", json=asked
            ) as answer:
                record: dict[str, Any] = await answer.json()
        except aiohttp.ClientError as error:
            return type(error).__name__
        candidates = record.get("candidates") or []
        if [each["cache_state"] for each in candidates] != ["live"]:
            return "not live"
        overlap: int = candidates[0]["overlap_tokens"]
        return overlap

    async def know(self, **expected: int | str) -> bool:
        return {name: await self.overlap(name) for name in expected} == expected


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    """Run an engine, both coordinators and the agent."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(9)]
    engine, kv, replay, *rest = ports
    grpc, admin = (
        dict(zip(STRIDES, rest[:2], strict=True)),
        dict(zip(STRIDES, rest[2:4], strict=True)),
    )
    gateway = dict(zip(STRIDES, rest[4:6], strict=True))
    words = [
        *("simulate.main", "--port", engine.rpartition(":")[2], "--max-model-len", "2048"),
        *("--kv-port", kv.rpartition(":")[2], "--replay-port", replay.rpartition(":")[2]),
        *("--model-name", MODEL),
    ]
    processes = {"engine": Process("engine", words, None, folder / "engine.log")}
    for name, stride in STRIDES.items():
        config = {
            "transport": "plaintext",
            "stride": stride,
            "engines": [
                {"url": f"http://{engine}", "kv": f"tcp://{kv}", "replay": f"tcp://{replay}"}
            ],
            "http": gateway[name],
            "grpc": grpc[name],
            "admin": admin[name],
            "store": f"sqlite:{folder / 'state.db'}",
        }
        processes[name] = Process(
            name, ["coordinator.main", "--config", "-"], config, folder / f"{name}.log"
        )
    agent = {"transport": "plaintext", "coordinators": list(grpc.values())}
    processes["agent"] = Process(
        "agent", ["agent.main", "--config", "-"], agent, folder / "agent.log"
    )
    try:
        await asyncio.gather(*(process.start() for process in processes.values()))
        async with aiohttp.ClientSession() as session:
            yield Pair(session, engine, admin, processes)
    finally:
        for process in processes.values():
            process.kill_if_running()


async def test_both_know_the_same_and_one_may_die_and_come_back(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await until(partial(both.know, fine=0, coarse=0), 15)
        await both.cache()
        await until(partial(both.know, fine=KNOWN[8], coarse=KNOWN[8]))

        await both.processes["coarse"].kill()
        await until(partial(both.know, fine=KNOWN[4], coarse="ClientConnectorError"))

        await both.processes["coarse"].start()
        await until(partial(both.know, fine=KNOWN[8], coarse=KNOWN[8]), 10)

        await both.processes["fine"].kill()
        await until(partial(both.know, fine="ClientConnectorError", coarse=KNOWN[8]))
        await both.processes["fine"].start()
        await until(partial(both.know, fine=KNOWN[8], coarse=KNOWN[8]), 10)
        codes = {name: await process.end() for name, process in both.processes.items()}
        assert codes == dict.fromkeys(both.processes, 0)
