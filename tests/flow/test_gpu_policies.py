"""`gpuUtilization` from a node's driver to a decision: real processes, the real NVML binding."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import simulated
from tests.nvml.library import environment

pytestmark = pytest.mark.flow

POLICY = """\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: cool }
spec:
  rules:
  - name: r
    route:
      exclude:
      - { name: hot, drop: { gpuUtilization: { greaterThan: 0.9 } } }
      select: [ { type: Local, minimize: PredictedTTFT } ]
"""
SOON_S = 12.0


def gpus(*busy: int | None) -> str:
    """Return the driver's state: how busy each GPU is; `None`: it fell off the bus."""
    return "".join(
        f"GPU-{n} FakeH200 total_mib=1000 used_mib=10"
        + (" lost=1\n" if percent is None else f" gpu={percent} mem=5\n")
        for n, percent in enumerate(busy)
    )


@dataclass(frozen=True, slots=True)
class Node:
    """Two engines on a GPU each, behind a coordinator with the policy."""

    engines: tuple[str, str]
    admin: str
    state: Path
    agent: subprocess.Popen[str]

    def seen(self) -> list[float | None]:
        """What the coordinator knows of both engines' GPUs."""
        with urllib.request.urlopen(f"http://{self.admin}/debug/engines", timeout=5) as answer:
            known = {each["id"]: each["gpu_utilization"] for each in json.load(answer)}
        return [known.get(engine) for engine in self.engines]

    def decided(self) -> dict[str, str]:
        """Where a request may go: by engine, what dropped it; empty: nothing did."""
        body = {"model": simulated.MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        asked = {"path": "/v1/chat/completions", "headers": {}, "body": body}
        request = urllib.request.Request(
            f"http://{self.admin}/debug/route",
            data=json.dumps(asked).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            record: dict[str, Any] = json.load(answer)
        return {each["id"]: each["dropped_by"] or "" for each in record["candidates"]}

    def until(self, *expected: float | None) -> None:
        end = time.monotonic() + SOON_S
        while (seen := self.seen()) != list(expected):
            assert time.monotonic() < end, seen
            time.sleep(0.1)


@contextmanager
def process(
    *words: str | Path, environ: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a process until the block ends; give it and where it listens."""
    command = (sys.executable, "-m", *words)
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    )
    assert running.stdout is not None
    try:
        yield running, json.loads(running.stdout.readline())["listening"]
    finally:
        running.terminate()
        running.wait(15)
        running.stdout.close()


@pytest.fixture(scope="module")
def node(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    state, policies = folder / "gpus", folder / "policies"
    state.write_text(gpus(95, 10))
    policies.mkdir()
    (policies / "cool.yaml").write_text(POLICY)
    with ExitStack() as stack:
        engines = [stack.enter_context(simulated.engine())["http"] for _ in range(2)]
        specs = [
            {"url": f"http://{engine}", "gpus": [f"GPU-{n}"]} for n, engine in enumerate(engines)
        ]
        coordinator, agent = folder / "coordinator.json", folder / "agent.json"
        both = {"transport": "plaintext", "node": "n1"}
        listeners = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
        said = {**both, **listeners, "engines": specs, "resources": str(policies)}
        coordinator.write_text(json.dumps(said))
        _, where = stack.enter_context(process("coordinator.main", "--config", coordinator))
        agent.write_text(json.dumps({**both, "coordinators": [where["grpc"]]}))
        environ = environment(library, state)
        running, _ = stack.enter_context(process("agent.main", "--config", agent, environ=environ))
        yield Node((engines[0], engines[1]), where["admin"], state, running)


def test_a_policy_keeps_requests_from_busy_gpus_and_from_no_others(node: Node) -> None:
    hot, cool = node.engines
    node.until(0.95, 0.1)
    dropped = node.decided()
    assert dropped[hot] and not dropped[cool]
    node.state.write_text(gpus(20, 99))
    node.until(0.2, 0.99)
    dropped = node.decided()
    assert dropped[cool] and not dropped[hot]
    # A GPU that fell off the bus is not known, and what is not known drops nothing.
    node.state.write_text(gpus(None, 99))
    node.until(None, 0.99)
    assert not node.decided()[hot]
    # So are all of a node whose agent is gone.
    node.agent.terminate()
    node.until(None, None)
    assert node.decided() == {hot: "", cool: ""}
