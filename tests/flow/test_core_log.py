"""Standard error with the tap in: who writes what, and what of it comes out."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.authority import Authority

pytestmark = pytest.mark.flow

PROGRAM = """\
import os, sys, time
from lineside import logs
from lineside.core_log import CoreLog
log, heard = CoreLog(), []
def hear(line):
    heard.append(line)
    return "told" in line
log.open()
logs.setup()
log.hear = hear
lines = (
    b"I1130 20:25:05.982509   13667 any.cc:1] informs\\n",
    b"E1130 20:25:05.982509   13667 any.cc:2] told in other words\\n",
    b"W1130 20:25:05.982509   13667 any.cc:3] warns\\n",
    b"Incredible: no line of gRPC's\\n",
    b"x" * 5000 + b"\\n",
)
for line in lines:
    os.write(2, line)
print("Python's own", file=sys.stderr)
end = time.monotonic() + 5
while sum(map(len, heard)) < sum(map(len, lines)) and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.05)
print(len(heard))
sys.stdout.flush()
raise RuntimeError("the last word")
"""


def test_informing_and_told_lines_are_dropped_and_all_others_come_out() -> None:
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "6\n"  # the long one in two parts
    for there in ("Incredible: no line", "x" * 5000, "Python's own\n"):
        assert there in done.stderr
    (line,) = (each for each in done.stderr.splitlines() if "any.cc" in each)
    said = json.loads(line)
    assert (said["level"], said["event"]) == ("warning", "gRPC warns")
    assert (said["place"], said["text"]) == ("any.cc:3", "warns")
    assert "informs" not in done.stderr and "told" not in done.stderr
    assert done.stderr.endswith("RuntimeError: the last word\n")
    assert done.returncode == 1


def test_who_reads_no_standard_error_holds_up_nobody() -> None:
    """As when the other end of a pipe is gone."""
    program = PROGRAM.replace("lines = (", "lines = 400 * (").replace(
        'print("Python\'s own", file=sys.stderr)', ""
    )
    running = subprocess.Popen(
        (sys.executable, "-c", program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr and running.stdout
    running.stderr.close()
    with running.stdout:
        assert int(running.stdout.read()) >= 5 * 400
    assert running.wait(20) != 0


@asynccontextmanager
async def stranger(folder: Path) -> AsyncIterator[str]:
    """Listen with a certificate that nobody trusts; yield the address."""
    pair = Authority(folder, "strange").sign("stranger")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_agent_that_trusts_nobody_writes_json_alone(tmp_path: Path) -> None:
    trusted = Authority(tmp_path, "trusted")
    async with stranger(tmp_path) as address, asyncio.timeout(20):
        settings = {"coordinators": [address], "tls": {"ca_file": trusted.file}}
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent.main", "--config", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert agent.stdin and agent.stderr
        agent.stdin.write(json.dumps(settings).encode())
        agent.stdin.close()
        said = ""
        while said != "no trust":
            said = json.loads(await agent.stderr.readline())["event"]
        agent.terminate()
        rest = (await agent.stderr.read()).splitlines()
        assert [line for line in rest if not json.loads(line)["event"]] == []
        assert await agent.wait() == 0


async def test_a_command_that_trusts_nobody_says_so_in_words_alone(tmp_path: Path) -> None:
    trusted = Authority(tmp_path, "trusted")
    (tmp_path / "r.json").write_text('{"model": "m", "prompt": "Hello"}')
    async with stranger(tmp_path) as address, asyncio.timeout(30):
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "route", "-f", str(tmp_path / "r.json")),
            *("--grpc", address, "--ca-file", trusted.file),
            stderr=asyncio.subprocess.PIPE,
        )
        assert asked.stderr
        lines = (await asked.stderr.read()).decode().splitlines()
        assert await asked.wait() == 3
        assert [line.partition(": ")[0] for line in lines] == ["lineside", "  help"]
