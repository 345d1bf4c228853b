"""Agent and coordinator as processes that cannot run, or do not end: exit code 3 and one line."""

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.processes import running, started

pytestmark = pytest.mark.flow

ANY = "127.0.0.1:0"
AGENT = {"transport": "plaintext", "coordinators": ["127.0.0.1:1"]}
COORDINATOR = {"transport": "plaintext", "http": ANY, "grpc": ANY, "admin": ANY}


async def last_words(module: str, config: dict[str, Any]) -> str:
    """Return what a process says last that cannot run."""
    async with asyncio.timeout(20):
        process = await running(module, config)
        out, err = await process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert b"Traceback" not in err
    return err.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "config", "listener", "reason"),
    [
        ("agent.main", AGENT, "metrics", ": another process does; name another port"),
        ("coordinator.main", COORDINATOR, "grpc", " for agents"),
    ],
)
async def test_a_port_that_is_taken(
    module: str, config: dict[str, Any], listener: str, reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = await last_words(module, {**config, listener: address})
    assert said == f"could not run: cannot listen on `{address}`{reason}"


async def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "store"
    said = await last_words("coordinator.main", {**COORDINATOR, "store": f"sqlite:{path}"})
    reason = "SQLite: unable to open database file: its folder is not there, or cannot be written"
    assert said == f"could not run: cannot use the store `sqlite:{path}`: {reason}"


HELD_UP = """
import asyncio, sys, time
from lineside import logs, process

async def run(stop, announce):
    announce({})
    await stop.wait()
    await asyncio.to_thread(time.sleep, 60)

logs.setup("info")
sys.exit(process.serve(run, end_within_s=0.3))
"""


async def test_a_process_that_a_thread_holds_up_ends_anyhow() -> None:
    async with asyncio.timeout(20):
        process = await started("-c", HELD_UP)
        assert process.stdout is not None
        assert await process.stdout.readline() == b'{"listening": {}}\n'
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["did not stop in time"]
