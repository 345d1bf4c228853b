"""Agents, coordinators and others as processes, by their command lines."""

import asyncio
import json
import sys
from typing import Any


async def started(*words: str, config: dict[str, Any] | None = None) -> asyncio.subprocess.Process:
    """Run Python with these words, and `config` on its standard input; all output is a pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(config).encode())
    process.stdin.close()
    return process


async def running(module: str, config: dict[str, Any]) -> asyncio.subprocess.Process:
    """Run a process of ours by its settings."""
    return await started("-m", module, "--config", "-", config=config)
