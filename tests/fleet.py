"""Several coordinators, engines and agents as processes, and a client of all of them.

Ports are fixed: what is killed and started again is found where it was.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from tests.killable import Process, free_ports

MODEL = "simulated"
NAMES = ("one", "two", "three")
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request came to."""

    status: int
    engine: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass
class Fleet:
    """The processes, and where they listen."""

    session: aiohttp.ClientSession
    http: dict[str, str]
    admin: dict[str, str]
    engines: tuple[str, ...]
    """Ids, as coordinators give them."""
    processes: dict[str, Process] = field(default_factory=dict)

    async def complete(self, name: str, prompt: Sequence[int], max_tokens: int = 1) -> Answer:
        """Have a coordinator complete a prompt. Raises `aiohttp.ClientError`."""
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        url = f"http://{self.http[name]}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            said = await answer.json()
            usage = said.get("usage") or {}
            return Answer(
                answer.status,
                answer.headers.get("x-lineside-engine", ""),
                usage.get("prompt_tokens", 0),
                (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                usage.get("completion_tokens", 0),
            )

    async def cache(self, engine: str, prompt: Sequence[int]) -> None:
        """Have an engine alone compute a prompt."""
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 1}
        async with self.session.post(f"http://{engine}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def ask(self, name: str, path: str) -> Any:
        """Return what a coordinator's admin listener says."""
        async with self.session.get(f"http://{self.admin[name]}{path}") as answer:
            return await answer.json()

    async def candidates(self, name: str, prompt: Sequence[int]) -> list[dict[str, Any]]:
        """Return where a prompt could go now, as it would be measured. Nothing is sent."""
        return (await self._dry_run(name, prompt)).get("candidates") or []

    async def _dry_run(self, name: str, prompt: Sequence[int]) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 1}
        asked = {"path": "/v1/completions", "body": body}
        url = f"http://{self.admin[name]}/debug/route"
        async with self.session.post(url, json=asked) as answer:
            said: dict[str, Any] = await answer.json()
            return said

    async def chosen(self, name: str, prompt: Sequence[int]) -> str:
        """Return the engine that a prompt would go to now; empty: none."""
        decision = (await self._dry_run(name, prompt)).get("decision") or {}
        return str(decision.get("id", ""))

    async def knows(self, name: str, engine: str, prompt: Sequence[int], tokens: int) -> bool:
        """Return whether a coordinator knows that so much of a prompt is cached there."""
        return any(
            each["id"] == engine and each["overlap_tokens"] >= tokens
            for each in await self.candidates(name, prompt)
        )

    async def ready(self, name: str) -> bool:
        """Return whether a coordinator says so; `False` also where it cannot be asked."""
        try:
            return bool((await self.ask(name, "/readyz"))["ready"])
        except aiohttp.ClientError:
            return False

    async def metrics(self, name: str) -> dict[str, float]:
        """Return a coordinator's metrics by name with labels."""
        async with self.session.get(f"http://{self.admin[name]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line[:1] != "#")
        return {name: float(value) for name, value in samples}

    async def all_ready(self) -> bool:
        """Return whether every coordinator is ready and hears every engine's agent."""
        for name in self.http:
            if not await self.ready(name):
                return False
            engines = await self.ask(name, "/debug/engines")
            if [each["cache_state"] for each in engines] != ["live"] * len(self.engines):
                return False
        return True


def shares(answers: Sequence[Answer], engines: Sequence[str]) -> list[float]:
    """Return each engine's share of the answers, in per cent, the largest first."""
    counts = Counter(answer.engine for answer in answers)
    return sorted((100 * counts[engine] / len(answers) for engine in engines), reverse=True)


@asynccontextmanager
async def fleet(
    folder: Path,
    *,
    store: str = "",
    names: Sequence[str] = NAMES,
    engines: int = 3,
    relays: bool = True,
    engine_words: Sequence[str] = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Fleet]:
    """Run a fleet. Without `relays` each coordinator has an agent of its own: nobody tells any
    coordinator of the others.
    """
    ports = iter(f"127.0.0.1:{port}" for port in free_ports(3 * engines + 3 * len(names)))
    processes, specs, ids = {}, [], []
    for number in range(engines):
        at, kv, replay = (next(ports) for _ in range(3))
        words = [
            *("simulate.main", "--model-name", MODEL, "--seed", str(number)),
            *("--port", at.rpartition(":")[2], "--kv-port", kv.rpartition(":")[2]),
            *("--replay-port", replay.rpartition(":")[2], *engine_words),
        ]
        name = f"engine{number}"
        processes[name] = Process(name, words, None, folder / f"{name}.log")
        specs.append({"url": f"http://{at}", "kv": f"tcp://{kv}", "replay": f"tcp://{replay}"})
        ids.append(at)
    http, grpc, admin = (dict(zip(names, ports, strict=False)) for _ in range(3))
    for name in names:
        config = {
            "transport": "plaintext",
            "engines": specs,
            "http": http[name],
            "grpc": grpc[name],
            "admin": admin[name],
            "store": store or f"sqlite:{folder / 'state.db'}",
            **settings,
        }
        words = ["coordinator.main", "--config", "-"]
        processes[name] = Process(name, words, config, folder / f"{name}.log")
    for name, reports_to in _agents(grpc, relays).items():
        config = {"transport": "plaintext", "coordinators": reports_to}
        words = ["agent.main", "--config", "-"]
        processes[name] = Process(name, words, config, folder / f"{name}.log")
    try:
        await asyncio.gather(*(process.start() for process in processes.values()))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Fleet(session, http, admin, tuple(ids), processes)
    finally:
        for process in processes.values():
            process.kill_if_running()
        await asyncio.gather(*(each.end() for each in processes.values() if each.pids))


def _agents(grpc: dict[str, str], relays: bool) -> dict[str, list[str]]:
    """Return which coordinators each agent reports to."""
    if relays:
        return {"agent": list(grpc.values())}
    return {f"agent of {name}": [address] for name, address in grpc.items()}
