"""Three coordinators that share an etcd, while it is killed, comes back, and is wiped. Processes.

Requests go on all the while, and none may fail.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.main import main
from coordinator.state import applied
from coordinator.state.store import SECRET_KEY
from tests import etcds
from tests.captures import ids
from tests.killable import Process, free_ports
from tests.test_applied import policy
from tests.waiting import until

pytestmark = [pytest.mark.flow, etcds.needs_etcd]

MODEL = "simulated"
NAMES = ("one", "two", "three")
PREFIX = ids(7, 16 * 28)
"""Cached once, then asked for with other ends: all but the end is known to be cached."""


@dataclass
class Cluster:
    """The processes, and what has become of requests."""

    session: aiohttp.ClientSession
    http: dict[str, str]
    admin: dict[str, str]
    processes: dict[str, Process]
    statuses: list[int | str] = field(default_factory=list)
    up: set[str] = field(default_factory=lambda: set(NAMES))

    async def traffic(self) -> None:
        """Send a request to each coordinator in turn, for ever."""
        for number, name in enumerate(itertools.cycle(NAMES)):
            if name not in self.up:
                continue
            prompt = [*PREFIX, *ids(number, 5)]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            url = f"http://{self.http[name]}/v1/completions"
            try:
                async with self.session.post(url, json=body) as answer:
                    await answer.read()
                    self.statuses.append(answer.status)
            except aiohttp.ClientError as error:
                self.statuses.append(repr(error))
            await asyncio.sleep(0.02)

    async def ask(self, name: str, path: str) -> Any:
        async with self.session.get(f"http://{self.admin[name]}{path}") as answer:
            return await answer.json()

    async def degraded(self, name: str) -> set[str]:
        """Return the codes of what a coordinator serves around."""
        async with self.session.get(f"http://{self.admin[name]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if line.startswith("lineside_degraded{")]
        return {line.split('"')[1] for line in found if float(line.split()[-1])}

    async def ready(self, name: str) -> tuple[bool, list[str]]:
        """Return whether a coordinator is ready, and why not."""
        said = await self.ask(name, "/readyz")
        return said["ready"], said["reasons"]

    async def completed(self, name: str) -> tuple[int, str]:
        """Send a request; return its status, and what is said of a refusal."""
        body = {"model": MODEL, "prompt": [*PREFIX, 1, 2, 3], "max_tokens": 1}
        url = f"http://{self.http[name]}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            said = await answer.json()
            return answer.status, said.get("error", {}).get("message", "")

    async def inflight(self, name: str) -> int:
        """Return what a coordinator counts as in flight on the engine."""
        (engine,) = await self.ask(name, "/debug/engines")
        return int(engine["inflight"])

    async def requests(self, name: str) -> int:
        """Return how many requests a coordinator counted."""
        async with self.session.get(f"http://{self.admin[name]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if line.startswith("lineside_requests_total{")]
        return int(sum(float(line.split()[-1]) for line in found))

    async def overlap(self, name: str) -> int | None:
        """Return the tokens that a coordinator knows to be cached of a prompt with the prefix."""
        body = {"model": MODEL, "prompt": [*PREFIX, 1, 2, 3], "max_tokens": 1}
        asked = {"path": "/v1/completions", "body": body}
        url = f"http://{self.admin[name]}/debug/route"
        async with self.session.post(url, json=asked) as answer:
            candidates = (await answer.json()).get("candidates") or [{}]
        tokens: int | None = candidates[0].get("overlap_tokens")
        return tokens

    async def members(self, name: str) -> tuple[int, list[int]]:
        """Return how many coordinators one knows, and how many each agent is connected to."""
        said = await self.ask(name, "/debug/members")
        return len(said["coordinators"]), [len(each["coordinators"]) for each in said["agents"]]


@asynccontextmanager
async def cluster(folder: Path, store: str, **settings: Any) -> AsyncIterator[Cluster]:
    """Run an engine, three coordinators with further `settings`, and an agent."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(12)]
    engine, kv, replay, *rest = ports
    http, grpc, admin = (dict(zip(NAMES, rest[n : n + 3], strict=True)) for n in (0, 3, 6))
    words = [
        *("simulate.main", "--port", engine.rpartition(":")[2], "--max-model-len", "2048"),
        *("--kv-port", kv.rpartition(":")[2], "--replay-port", replay.rpartition(":")[2]),
        *("--model-name", MODEL),
    ]
    processes = {"engine": Process("engine", words, None, folder / "engine.log")}
    spec = {"url": f"http://{engine}", "kv": f"tcp://{kv}", "replay": f"tcp://{replay}"}
    for name in NAMES:
        config = {
            "transport": "plaintext",
            "engines": [spec],
            "http": http[name],
            "grpc": grpc[name],
            "admin": admin[name],
            "store": store,
            **settings,
        }
        words = ["coordinator.main", "--config", "-"]
        processes[name] = Process(name, words, config, folder / f"{name}.log")
    agent = {"transport": "plaintext", "coordinators": list(grpc.values())}
    words = ["agent.main", "--config", "-"]
    processes["agent"] = Process("agent", words, agent, folder / "agent.log")
    try:
        await asyncio.gather(*(process.start() for process in processes.values()))
        async with aiohttp.ClientSession() as session:
            yield Cluster(session, http, admin, processes)
    finally:
        for process in processes.values():
            process.kill_if_running()
        await asyncio.gather(*(each.end() for each in processes.values() if each.pids))


@pytest.mark.parametrize(
    "losses", [1, pytest.param(2, marks=pytest.mark.state)], ids=["wiped", "restarted, then wiped"]
)
async def test_whatever_becomes_of_etcd_requests_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], losses: int
) -> None:
    with etcds.etcd(tmp_path) as member:
        async with cluster(tmp_path, f"etcd:{member.url}") as three, asyncio.TaskGroup() as tasks:
            store = etcds.store_of(member)

            async def everybody() -> bool:
                return all([await three.members(name) == (3, [3]) for name in NAMES])

            async def away(is_away: bool) -> bool:
                found = [await three.degraded(name) for name in NAMES]
                return all(("store_away" in codes) is is_away for codes in found)

            async def warm() -> bool:
                return all([await three.overlap(name) == len(PREFIX) for name in NAMES])

            await until(everybody)
            file = tmp_path / "policy.yaml"
            file.write_text(policy("kept")[1])
            words = ["apply", "-f", str(file), "--store", f"etcd:{member.url}"]
            assert await asyncio.to_thread(main, words) == 0
            secret = await store.get(SECRET_KEY)
            traffic = tasks.create_task(three.traffic())
            await until(warm)

            for loss in range(losses):
                member.kill()
                away_s = await until(lambda: away(True))
                assert await warm()
                if loss == losses - 1:
                    member.wipe()
                await asyncio.to_thread(member.start)
                back_s = await until(lambda: away(False))
                remade_s = await until(everybody)
            kept = await store.get(SECRET_KEY)
            assert (kept and kept.value) == (secret and secret.value)
            assert await three.degraded("one") == set()
            for name in NAMES:
                said = await three.ask(name, "/debug/policies")
                assert [each["name"] for each in said["policies"]] == ["default/kept"]
            newest = (await applied.history(store)).newest
            assert newest is not None
            assert newest.documents == (("policy.yaml", file.read_text()),)
            assert await warm()

            code = await asyncio.to_thread(
                main, ["get", "members", "--admin", f"http://{three.admin['one']}"]
            )
            shown = capsys.readouterr().out.splitlines()
            lines = list(itertools.takewhile(lambda line: "in flight" not in line, shown))
            named = [line for line in lines if "coordinator-" in line]
            assert (code, len(named)) == (0, 5), "three, the agent's, and who tidies"

            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)

            async def idle() -> bool:
                return [await three.inflight(name) for name in NAMES] == [0, 0, 0]

            await until(idle)
            counted = [await three.requests(name) for name in NAMES]
            assert sum(counted) - len(three.statuses) in (0, 1)  # one may have been cut off

            # One leaves in order, so the others hear of it at once and not by its lease.
            assert await three.processes["three"].end() == 0

            async def two_are_left() -> bool:
                return await three.members("one") == (2, [2])

            left_s = await until(two_are_left)
            assert left_s < 3
            await store.close()
        with capsys.disabled():
            times = {"away": away_s, "back": back_s, "remade": remade_s, "left": left_s}
            print("\n", json.dumps({name: round(took_s, 2) for name, took_s in times.items()}))
        assert set(three.statuses) == {200}
        assert len(three.statuses) > 50
