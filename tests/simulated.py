"""A simulated engine as a child process, of the recorded server's size, and short calls to it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

MODEL = "tiny-qwen3"
TOPIC = "kv@tiny-pod@tiny-qwen3"
LIMIT_S = 10.0


@contextmanager
def engine(*arguments: str) -> Iterator[dict[str, str]]:
    """Run an engine of the recorded server's size; give the addresses that it announced."""
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
    with process.stdout:
        try:
            yield json.loads(process.stdout.readline())["listening"]
        finally:
            process.terminate()
            assert process.wait(LIMIT_S) == 0


async def post(client: aiohttp.ClientSession, path: str, **body: Any) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def complete(client: aiohttp.ClientSession, prompt: Any, **body: Any) -> Any:
    fixed = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    return await post(client, "/v1/completions", **{**fixed, **body})
