"""What can be reached from another pod: real processes in network namespaces, the chart's policies.

Agent and coordinator speak TLS by certificates of `lineside certs init`, as in the guide for
several machines.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import LINESIDE, ROOT
from tests.cluster.spaces import Pod, enforce, pods

pytestmark = pytest.mark.cluster

EVENTS, REPLAY, HTTP = 5557, 5558, 8000
NODE = "gpu-1"
CLOSINGS = {
    "refusing": ("-j", "REJECT", "--reject-with", "tcp-reset"),
    "dropping": ("-j", "DROP"),
}
"""What networks do with what no policy allows."""


def labels(component: str) -> dict[str, str]:
    own = {"name": "lineside", "instance": "lineside", "component": component}
    return {f"app.kubernetes.io/{key}": value for key, value in own.items()}


WANTED = {
    "engine": ({"app": "vllm"}, {}),
    "agent": (labels("agent"), {"metrics": 9091}),
    "coord": (labels("coordinator"), {"http": 8080, "agents": 9001, "admin": 9090}),
    "other": ({"app": "other"}, {}),
}


@pytest.fixture
def four() -> Iterator[dict[str, Pod]]:
    """An engine, an agent, a coordinator and a stranger, on one network."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root", pytrace=False)
    if shutil.which("iptables") is None:
        pytest.fail("there is no `iptables`: run `make test-cluster`", pytrace=False)
    with pods(WANTED) as made:
        yield made


def policies(tools: Path) -> list[Any]:
    """Return the chart's NetworkPolicies for engines that are labelled."""
    chart = ROOT / "deploy" / "charts" / "lineside"
    words = ("template", "lineside", chart, "--set", "networkPolicies.engines.selector.app=vllm")
    done = subprocess.run((tools / "helm", *words), capture_output=True, text=True, check=True)
    return [
        each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "NetworkPolicy"
    ]


@asynccontextmanager
async def process(pod: Pod, log: Path, *words: str, config: Any = None) -> AsyncIterator[None]:
    """Run a Python program in a pod, once it says that it listens."""
    with log.open("ab") as errors:
        running = await asyncio.create_subprocess_exec(
            *pod.command(sys.executable, "-m", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
        )
    assert running.stdin and running.stdout
    try:
        running.stdin.write(json.dumps(config).encode() if config else b"")
        running.stdin.close()
        async with asyncio.timeout(30):
            line = await running.stdout.readline()
        assert line, _end_of(log)
        yield
    finally:
        if running.returncode is None:
            running.terminate()
        await running.wait()


def _end_of(log: Path) -> str:
    return log.read_text()[-2000:]


def certified(folder: Path, four: dict[str, Pod]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of TLS of both sides, by certificates of the command."""
    words = ("certs", "init", "--dir", folder, "--coordinator-name", four["coord"].address)
    subprocess.run((LINESIDE, *words, "--node", NODE), check=True, capture_output=True)
    ours, node = folder / "coordinator", folder / "nodes" / NODE
    return (
        {
            "cert_file": f"{ours}/tls.crt",
            "key_file": f"{ours}/tls.key",
            "client_ca_file": f"{ours}/ca.crt",
        },
        {
            "cert_file": f"{node}/tls.crt",
            "key_file": f"{node}/tls.key",
            "ca_file": f"{node}/ca.crt",
        },
    )


@asynccontextmanager
async def product(four: dict[str, Pod], folder: Path, **engine: str) -> AsyncIterator[None]:
    """Run the coordinator and the agent, each in its pod."""
    ours, agents = certified(folder / "certs", four)
    address = four["engine"].address
    coordinator = {
        "http": "0.0.0.0:8080",
        "grpc": "0.0.0.0:9001",
        "admin": "0.0.0.0:9090",
        "engines": [{"url": f"http://{address}:{HTTP}", "node": NODE, **engine}],
        "tls": ours,
    }
    agent = {
        "coordinators": [f"{four['coord'].address}:9001"],
        "node": NODE,
        "metrics": "0.0.0.0:9091",
        "tls": agents,
    }
    async with AsyncExitStack() as stack:
        for name, pod, config in (("coordinator", "coord", coordinator), ("agent", "agent", agent)):
            words = (f"{name}.main", "--config", "-")
            await stack.enter_async_context(
                process(four[pod], folder / f"{name}.log", *words, config=config)
            )
        yield


ASK = """\
import json, sys, time, urllib.request
def ask(url, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
engines, end = [], time.monotonic() + 25
while time.monotonic() < end:
    try:
        (engine,) = engines = ask("http://127.0.0.1:9090/debug/engines")
    except OSError:
        continue
    if engine["fresh"] and engine["cache_state"] == "live":
        if engine["blocks"]:
            break
        prompt = list(range(3, 300))
        ask("http://127.0.0.1:8080/v1/completions",
            {"model": engine["model"], "prompt": prompt, "max_tokens": 1})
    time.sleep(0.2)
print(json.dumps(engines))
"""


def seen_by(coordinator: Pod) -> Any:
    """Return what the coordinator knows of the engine, once a prompt is in its cache."""
    words = coordinator.command(sys.executable, "-c", ASK)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def served(pod: Pod, *events: str) -> tuple[str, ...]:
    return ("simulate.main", "--host", pod.address, "--port", str(HTTP), *events)


TCP = ("--kv-port", str(EVENTS), "--replay-port", str(REPLAY))


async def test_without_policies_anybody_reads_the_events(
    four: dict[str, Pod], tmp_path: Path
) -> None:
    """So that what follows could fail."""
    async with process(four["engine"], tmp_path / "engine.log", *served(four["engine"], *TCP)):
        seen = await asyncio.to_thread(four["other"].sees, four["engine"])
        assert {EVENTS, REPLAY, HTTP} <= set(seen)


@pytest.mark.parametrize("closing", CLOSINGS)
async def test_with_the_chart_s_policies_only_agents_reach_the_events(
    closing: str, four: dict[str, Pod], tools: Path, tmp_path: Path
) -> None:
    enforce(policies(tools), four, CLOSINGS[closing])
    log = tmp_path / "engine.log"
    async with (
        process(four["engine"], log, *served(four["engine"], *TCP)),
        product(four, tmp_path),
    ):
        # All that it must reach it does: the cache is known, through TLS.
        (engine,) = await asyncio.to_thread(seen_by, four["coord"])
        assert (engine["cache_state"], engine["blocks"] > 0) == ("live", True), engine
        last = 10_000 if closing == "refusing" else 0
        for who, whom, first, ports in (
            ("other", "engine", 1, []),
            ("other", "engine", EVENTS, []),
            ("coord", "engine", EVENTS, []),
            ("coord", "engine", HTTP, [HTTP]),
            ("agent", "engine", EVENTS, [EVENTS, REPLAY]),
            ("other", "coord", 9001, []),
            ("agent", "coord", 9001, [9001]),
            ("other", "coord", 8080, [8080]),
        ):
            upto = last if (first == 1 and last) else first + (first == EVENTS)
            seen = await asyncio.to_thread(four[who].sees, four[whom], first, upto)
            assert seen == ports, (who, whom, first)


async def test_over_sockets_in_a_folder_there_is_no_port_with_tokens(
    four: dict[str, Pod], tmp_path: Path
) -> None:
    """The hardened way, without any policy: engine and agent share a folder of their machine."""
    arguments = served(four["engine"], "--kv-folder", str(tmp_path))
    async with (
        process(four["engine"], tmp_path / "engine.log", *arguments),
        product(four, tmp_path),
    ):
        (engine,) = await asyncio.to_thread(seen_by, four["coord"])
        assert (engine["cache_state"], engine["blocks"] > 0) == ("live", True), engine
        assert await asyncio.to_thread(four["other"].sees, four["engine"], 1, 65_535) == [HTTP]
