"""A simulated engine as a child process, of the recorded server's size, and short calls to it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

from tests.captures import ids

MODEL = "tiny-qwen3"
TOPIC = "kv@tiny-pod@tiny-qwen3"
LIMIT_S = 10.0
_SEEDS = count(1000)
"""Of prompts that no engine has seen yet."""


def launch(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start an engine; return it and what it announced. Close its `stdout`."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "simulate.main", "--port", "0", "--blocks", "48"),
            *("--block-size", "32", "--max-model-len", "1024", "--max-num-seqs", "16"),
            *("--max-num-batched-tokens", "1024", "--base-step-s", "0.002"),
            *("--kv-topic", TOPIC, *arguments),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["listening"]


@contextmanager
def engine(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run an engine of the recorded server's size; give the addresses that it announced."""
    process, listening = launch(*arguments)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield listening
        finally:
            process.terminate()
            assert process.wait(LIMIT_S) == 0


@contextmanager
def opened(kind: int, address: str, **options: int) -> Iterator[zmq.asyncio.Socket]:
    """Give a socket that is connected."""
    with zmq.asyncio.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        for name, value in options.items():
            setattr(socket, name, value)
        socket.connect(address)
        yield socket


async def next_frames(socket: zmq.asyncio.Socket) -> list[bytes]:
    async with asyncio.timeout(LIMIT_S):
        return await socket.recv_multipart()


async def post(client: aiohttp.ClientSession, path: str, **body: Any) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def complete(client: aiohttp.ClientSession, prompt: Any, **body: Any) -> Any:
    fixed = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    return await post(client, "/v1/completions", **{**fixed, **body})


class Events:
    """A subscriber to one publisher, caught up: what comes next is what the test causes."""

    def __init__(self, live: zmq.asyncio.Socket, client: aiohttp.ClientSession) -> None:
        self._live = live
        self._client = client
        self.last = -1
        """Number of the last message."""

    async def begin(self, headers: dict[str, str] | None = None) -> None:
        """Cause messages until they arrive, and read them all."""
        self._live.subscribe("")
        while not await self._live.poll(50):
            await self.cause(headers=headers)
        self.last = (await self.numbers())[-1]

    async def cause(self, times: int = 1, headers: dict[str, str] | None = None) -> None:
        """Cause one message each time."""
        for _ in range(times):
            body = {"prompt": list(ids(next(_SEEDS), 100)), "max_tokens": 1}
            async with self._client.post("/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200

    async def messages(self, quiet_ms: int = 150) -> list[list[bytes]]:
        """Return what arrives until nothing does for a while."""
        received = []
        while await self._live.poll(quiet_ms):
            received.append(await self._live.recv_multipart())
        return received

    async def numbers(self) -> list[int]:
        """Return the numbers of what arrives."""
        return [int.from_bytes(frames[1], "big") for frames in await self.messages()]
