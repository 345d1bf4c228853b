"""The coordinator as a process: one line when it listens, exit codes, a clean stop."""

import asyncio
import json
import signal
from typing import Any

import aiohttp
import pytest

from tests.fakes import MODEL, FakeEngine, fake_engines
from tests.processes import running

pytestmark = pytest.mark.flow


def settings(*engines: FakeEngine) -> dict[str, Any]:
    listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
    return listen | {"transport": "plaintext", "engines": [{"url": e.url} for e in engines]}


async def test_a_process_serves_and_stops_on_sigterm() -> None:
    async with fake_engines(FakeEngine()) as (engine,), asyncio.timeout(20):
        process = await running("coordinator.main", settings(engine) | {"agent_token": "s3cret"})
        assert process.stdout is not None
        listening = json.loads(await process.stdout.readline())["listening"]
        assert set(listening) == {"http", "grpc", "admin"}
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"http://{listening['admin']}/readyz") as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "unmistakable"}]}
            url = f"http://{listening['http']}/v1/chat/completions"
            async with session.post(url, json=body) as answer:
                assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert (process.returncode, out) == (0, b"")
        logged = [json.loads(line)["event"] for line in err.decode().splitlines()]
        assert logged[0] == "starting"
        assert "drained" in logged
        assert b"s3cret" not in err
        assert b"unmistakable" not in err


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        pytest.param(
            {"transport": "plaintext", "htpp": "x"}, 1, b"did you mean `http`?", id="typo"
        ),
        pytest.param(
            {"transport": "plaintext", "http": "192.0.2.1:1"},
            3,
            b"could not run",
            id="no such host",
        ),
        pytest.param(
            {"tls": {"cert_file": "/nowhere/tls.crt", "key_file": "/nowhere/tls.key"}},
            3,
            b"could not run: `tls.cert_file` cannot be read: no such file or directory",
            id="no such certificate",
        ),
    ],
)
async def test_what_cannot_run_says_why(config: dict[str, Any], code: int, said: bytes) -> None:
    async with asyncio.timeout(20):
        process = await running("coordinator.main", config)
        _, err = await process.communicate()
        assert process.returncode == code
        assert said in err
