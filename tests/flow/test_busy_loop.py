"""Probes while the main loop is busy, and streams that are not held up on their way."""

import asyncio
import json
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coordinator.config import EngineSpec
from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.gateways import coordinator
from tests.waiting import until

pytestmark = pytest.mark.flow

STREAMS = 500
BUSY_S = 0.25
"""Alone on the machine the slowest of a hundred takes under 100 ms."""
TALKER = Path(__file__).parents[2] / "bench" / "streaming.py"


@pytest.mark.parametrize(
    ("path", "within_s"), [("/healthz", 1.0), ("/readyz", 1.5)], ids=["health", "readiness"]
)
async def test_probes_are_answered_while_the_loop_does_not_run(path: str, within_s: float) -> None:
    async with (
        fake_engines(FakeEngine()) as (engine,),
        coordinator(EngineSpec(url=engine.url)) as running,
    ):
        assert await running.ready()
        took: list[float] = []

        def probe() -> None:
            for _ in range(3):
                start = time.monotonic()
                with urllib.request.urlopen(running.admin + path, timeout=5) as answer:
                    assert answer.status == 200
                took.append(time.monotonic() - start)

        thread = threading.Thread(target=probe)
        thread.start()
        time.sleep(4)  # noqa: ASYNC251  this is the point: the main loop stands still
        thread.join()
        assert len(took) == 3
        assert min(took) < within_s


async def test_a_stream_is_not_held_up_at_one_connection() -> None:
    async with (
        fake_engines(FakeEngine(words=60, between_s=0.005)) as (engine,),
        coordinator(EngineSpec(url=engine.url)) as running,
    ):
        reader, writer = await asyncio.open_connection(*running.address)
        body = json.dumps({"model": MODEL, "prompt": [1] * 20, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        times, received = [], b""
        async with asyncio.timeout(10):
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await reader.read(2**16)
                times.append(time.monotonic())
        writer.close()
        gaps = [late - early for early, late in pairwise(times)]
        # Nagle's algorithm and a delayed acknowledgement together would make most of them 40 ms.
        assert len(gaps) > 40
        assert statistics.median(gaps) < 0.02


@asynccontextmanager
async def process(*command: str, config: Any = None) -> AsyncIterator[dict[str, str]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps(config).encode())
    child.stdin.close()
    try:
        async with asyncio.timeout(20):
            listening: dict[str, str] = json.loads(await child.stdout.readline())["listening"]
        yield listening
    finally:
        child.kill()
        await child.wait()


async def test_five_hundred_streams_do_not_delay_a_probe() -> None:
    listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    async with process(str(TALKER), "--serve", "engine") as talker:
        config = listen | {
            "transport": "plaintext",
            "engines": [{"url": f"http://{talker['http']}"}],
            "log_level": "error",
        }
        async with (
            process("-m", "coordinator.main", "--config", "-", config=config) as where,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            http, admin = f"http://{where['http']}", f"http://{where['admin']}"
            await _until_found(session, http)
            body = {"model": "talker", "prompt": [1] * 20, "stream": True}
            body |= {"max_tokens": 300, "n": 1, "top_p": 0.1}  # ten writes a second

            async def follow() -> None:
                async with session.post(f"{http}/v1/completions", json=body) as answer:
                    assert answer.status == 200
                    async for _ in answer.content.iter_any():
                        pass

            streams = [asyncio.create_task(follow()) for _ in range(STREAMS)]

            async def all_flow() -> bool:
                async with session.get(f"{admin}/debug/engines") as answer:
                    (engine,) = await answer.json()
                return bool(engine["inflight"] == STREAMS)

            await until(all_flow, 20)
            for _ in range(5):  # where other processes want the processors, too
                took = await asyncio.to_thread(_probe, f"{admin}/healthz", 100)
                if took[98] < BUSY_S:
                    break
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    assert took[98] < BUSY_S


def _probe(url: str, times: int) -> list[float]:
    """Return how long each probe took, sorted."""
    took = []
    for _ in range(times):
        start = time.monotonic()
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.status == 200
        took.append(time.monotonic() - start)
        time.sleep(0.01)
    return sorted(took)


async def _until_found(session: aiohttp.ClientSession, http: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with session.get(f"{http}/v1/models") as answer:
                if (await answer.json())["data"]:
                    return
            await asyncio.sleep(0.05)
