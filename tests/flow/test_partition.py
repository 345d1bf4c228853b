"""A node that nobody reaches any more, and that comes back: real processes in network namespaces.

One coordinator and two engines are on one node, a third engine with its agent on the other.
`make test-state`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.captures import ids
from tests.killable import Process
from tests.namespaces import Nodes, two_nodes

pytestmark = [pytest.mark.flow, pytest.mark.state]

MODEL = "simulated"
TOKEN = "between-the-nodes"
HTTP, GRPC, ADMIN = 8080, 9001, 9090
EVERY_S = 0.04
RETURN_S = 10.0
MOST = 48.0
"""Per cent of requests that the engine may get in the first 10 s after its return: 1.4 even
shares, and one request more at any time."""


class Cut:
    """The cluster, and a client of it that never waits for an answer before the next request."""

    def __init__(self, session: aiohttp.ClientSession, nodes: Nodes, far: str) -> None:
        self.session, self.nodes, self.far = session, nodes, far
        self.answers: list[tuple[float, float, int, str]] = []
        """Sent, ended, status, engine."""
        self._asked: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        return self.nodes.hosts["a"]

    async def traffic(self) -> None:
        """Send short new prompts, for ever."""
        number = 0
        while True:
            number += 1
            task = asyncio.create_task(self._ask(ids(number, 200)))
            self._asked.add(task)  # at most as many as the time-outs of the coordinator let wait
            task.add_done_callback(self._asked.discard)
            await asyncio.sleep(EVERY_S)

    async def _ask(self, prompt: Sequence[int]) -> None:
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 4, "ignore_eos": True}
        sent = time.monotonic()
        url = f"http://{self.host}:{HTTP}/v1/completions"
        async with self.session.post(url, json=body) as answer:
            await answer.read()
            engine = answer.headers.get("x-lineside-engine", "")
            self.answers.append((sent, time.monotonic(), answer.status, engine))

    async def end(self) -> None:
        await asyncio.gather(*self._asked)

    async def state(self) -> dict[str, Any]:
        """Return the far engine as the coordinator shows it."""
        url = f"http://{self.host}:{ADMIN}/debug/engines"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with self.session.get(url, headers=headers) as answer:
            engines: list[dict[str, Any]] = await answer.json()
        return next(engine for engine in engines if engine["id"] == self.far)

    async def until(self, limit_s: float, **expected: object) -> float:
        """Wait until the far engine is shown so; return how long that took."""
        began = time.monotonic()
        while True:
            state = await self.state()
            if all(state[name] == value for name, value in expected.items()):
                return time.monotonic() - began
            assert time.monotonic() - began < limit_s, {name: state[name] for name in expected}
            await asyncio.sleep(0.05)

    def sent_between(self, since: float, until: float) -> list[tuple[int, str]]:
        return [
            (status, engine) for sent, _, status, engine in self.answers if since <= sent < until
        ]


@asynccontextmanager
async def cut(folder: Path, nodes: Nodes) -> AsyncIterator[Cut]:
    """Run the cluster."""
    near, far = nodes.hosts["a"], nodes.hosts["b"]
    at = [("a", near, 8000), ("a", near, 8010), ("b", far, 8000)]
    processes, specs = [], []
    for number, (side, host, port) in enumerate(at):
        words = [
            *("simulate.main", "--model-name", MODEL, "--seed", str(number), "--host", host),
            *("--port", str(port), "--kv-port", str(port + 1), "--replay-port", str(port + 2)),
        ]
        name = f"engine{number}"
        processes.append(Process(name, nodes.inside(side, *words), None, folder / f"{name}.log"))
        spec = {"url": f"http://{host}:{port}", "kv": f"tcp://{host}:{port + 1}"}
        specs.append(spec | {"replay": f"tcp://{host}:{port + 2}", "node": side})
    coordinator = {
        "transport": "plaintext",
        "agent_token": TOKEN,
        "admin_token": TOKEN,
        "engines": specs,
        "http": f"{near}:{HTTP}",
        "grpc": f"{near}:{GRPC}",
        "admin": f"{near}:{ADMIN}",
        "probe_s": 1.0,
    }
    parts: list[tuple[str, str, dict[str, Any]]] = [("a", "coordinator", coordinator)]
    for side in nodes.hosts:
        agent = {"transport": "plaintext", "coordinators": [f"{near}:{GRPC}"]}
        parts.append((side, "agent", agent | {"node": side, "token": TOKEN}))
    for side, kind, config in parts:
        words = nodes.inside(side, f"{kind}.main", "--config", "-")
        processes.append(Process(kind, words, config, folder / f"{kind}-{side}.log"))
    try:
        await asyncio.gather(*(process.start() for process in processes))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Cut(session, nodes, f"{far}:8000")
    finally:
        for process in processes:
            process.kill_if_running()
        await asyncio.gather(*(each.end() for each in processes if each.pids))


async def test_a_node_that_is_cut_off_leaves_and_comes_back_to_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with two_nodes() as nodes:
        async with cut(tmp_path, nodes) as there:
            await there.until(20, cache_state="live", away=False)
            traffic = asyncio.create_task(there.traffic())
            await asyncio.sleep(12)  # from 10 s on an engine that comes is a newcomer

            nodes.cut("b")
            cut_at = time.monotonic()
            stale_s = await there.until(5, cache_state="stale")
            await there.until(10, away=True)
            left_s = time.monotonic() - cut_at
            await there.until(15, cache_state="lost")
            lost_s = time.monotonic() - cut_at
            await asyncio.sleep(1)

            nodes.mend("b")
            mended = time.monotonic()
            await there.until(15, away=False)
            back = time.monotonic()
            await asyncio.sleep(RETURN_S)
            state, heard_s = await there.state(), await there.until(10, cache_state="live")
            traffic.cancel()
            await there.end()

    meanwhile = there.sent_between(cut_at + left_s, mended)
    after = there.sent_between(back, back + RETURN_S)
    shares = {e: 100 * n / len(after) for e, n in Counter(e for _, e in after).items()}
    waited = there.sent_between(cut_at - 1, cut_at + left_s)
    with capsys.disabled():
        print(
            f"\n  stale after {stale_s:.1f} s, out after {left_s:.1f} s, lost after {lost_s:.1f} s;"
            f" used again {back - mended:.1f} s after its return, with"
            f" {shares.get(there.far, 0.0):.1f} % of {len(after)} requests in {RETURN_S:.0f} s"
            f" (cache {state['cache_state']}, live {heard_s:.1f} s later); of {len(waited)}"
            f" requests while nobody knew {sum(status != 200 for status, _ in waited)} failed"
        )
    assert {status for status, _ in meanwhile} == {200}
    assert there.far not in {engine for _, engine in meanwhile}
    assert {status for status, _ in after} == {200}
    assert 0 < shares[there.far] <= MOST
