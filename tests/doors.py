"""A gateway before simulated engines that can be made to fail, and clients of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from coordinator.config import EngineSpec, Timeouts
from tests import simulated
from tests.gateways import Running, coordinator
from tests.simulated import MODEL
from tests.waiting import until

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = CHAT | {"max_tokens": 400, "ignore_eos": True, "stream": True}
SHORT_WAITS = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=0.5, total_s=30, receive_s=0.6)


class Sim:
    """A simulated engine that can be made to fail."""

    def __init__(self, address: str) -> None:
        self.id = address
        self.url = f"http://{address}"

    async def fault(self, fault: str, **how: Any) -> None:
        async with aiohttp.ClientSession() as client:
            await simulated.post(client, f"{self.url}/sim/faults", fault=fault, **how)

    async def heal(self) -> None:
        async with aiohttp.ClientSession() as client:
            await client.delete(f"{self.url}/sim/faults")

    async def open(self) -> int:
        """Return how many requests it is working on."""
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/load") as answer:
            load: int = (await answer.json())["server_load"]
            return load

    async def listens(self) -> bool:
        """Whether connections are taken."""
        try:
            async with aiohttp.ClientSession() as client, client.get(f"{self.url}/health"):
                return True
        except aiohttp.ClientError:
            return False

    async def asked(self) -> int:
        """Return how many requests it has ended, in whatever way."""
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            int(float(line.split()[-1])) for line in lines if "request_success_total{" in line
        )


@asynccontextmanager
async def before(*sims: Sim, **settings: Any) -> AsyncIterator[Running]:
    """Run a coordinator; at the end nothing is in flight, here or at the engines."""
    specs = [EngineSpec(url=sim.url) for sim in sims]
    async with coordinator(*specs, **({"timeouts": SHORT_WAITS} | settings)) as running:
        yield running

        async def quiet() -> bool:
            return await running.inflight() == [0] * len(sims) and not any(
                [await sim.open() for sim in sims]
            )

        await until(quiet, 1.0)  # aborted within a second


async def begun(running: Running) -> bool:
    """Whether the latest request has had its first token."""
    records = await running.debug("/debug/decisions?limit=1")
    return bool(records) and records[0]["outcome"]["ttft_s"] is not None


def is_error(body: bytes, status: int) -> str:
    """Check OpenAI's error shape; return the message."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert isinstance(error["message"], str)
    return error["message"]


class Client:
    """A client that says exactly what the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def head(self, line: str, **headers: str | int) -> None:
        named = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        self.writer.write(f"{line}\r\nhost: a\r\n{''.join(named)}\r\n".encode())

    def ask(self, body: dict[str, Any], version: str = "1.1", **headers: str) -> None:
        raw = json.dumps(body).encode()
        kind: dict[str, str | int] = {
            "content_type": "application/json",
            "content_length": len(raw),
        }
        self.head(f"POST {CHAT_PATH} HTTP/{version}", **kind, **headers)
        self.writer.write(raw)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer of a known length."""
        status, headers = await self.answer_head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def answer_head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(5):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def rest(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.read()


@asynccontextmanager
async def client_of(running: Running, **options: Any) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*running.address, **options)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def stream(
    running: Running, body: dict[str, Any], chunks: int | None = None
) -> tuple[list[bytes], bool]:
    """Read a stream's events, some of them or all; return them and whether it ended cleanly."""
    events = b""
    async with running.session.post(running.http + CHAT_PATH, json=body) as answer:
        assert answer.status == 200, await answer.text()
        try:
            async for chunk in answer.content.iter_any():
                events += chunk
                if chunks is not None and events.count(b"\n\n") >= chunks:
                    return events.split(b"\n\n")[:-1], False
        except aiohttp.ClientPayloadError:
            return events.split(b"\n\n")[:-1], False
    return events.split(b"\n\n")[:-1], True


def ends_in_error(events: list[bytes], status: int) -> str:
    assert not any(b"[DONE]" in event for event in events)
    return is_error(events[-1].removeprefix(b"data: "), status)
