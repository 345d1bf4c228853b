"""The plain manifests in a whole cluster: scheduler, controllers, RBAC, and nodes that run nothing.

It is an old one (1.20), the only one that can be built here: what it does not know is left out.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent / "fullcluster"
NAMESPACE = "lineside-test"
NODES = 3
SOON_S = 60.0

Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def kubectl(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A running cluster's kubectl."""
    if not (tools / "fullcluster" / "kubemark").exists():
        pytest.fail(f"there is no {tools / 'fullcluster'}: run `make test-cluster`", pytrace=False)
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root", pytrace=False)
    state = tmp_path_factory.mktemp("whole")
    inside = ("ip", "netns", "exec", NAMESPACE)
    _run("ip", "netns", "add", NAMESPACE)
    try:
        _run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
        _run("ip", "-n", NAMESPACE, "addr", "add", "10.87.1.1/32", "dev", "lo")
        program = str(tools / "kubectl")
        up = ("bash", str(HERE / "up.sh"), str(tools / "fullcluster"), str(state), str(NODES))
        _run(*inside, *up, program)

        def kubectl(*words: str | Path, stdin: str = "") -> str:
            command = (
                *inside,
                program,
                "--kubeconfig",
                str(state / "kubeconfig"),
                *map(str, words),
            )
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 or "can-i" in words, done.stderr
            return done.stdout

        yield kubectl
    finally:
        for name in ("hollow*", "scheduler", "manager", "apiserver", "etcd"):
            for file in state.glob(f"{name}.pid"):
                _end(int(file.read_text()))
        _run("ip", "netns", "del", NAMESPACE)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=180)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def applied(kubectl: Kubectl) -> Kubectl:
    """The cluster with coordinator and agents, as the guide applies them."""
    until(lambda: listed(kubectl, "nodes"), lambda nodes: ready(nodes) == NODES)
    for folder in ("deploy", "daemonset"):
        documents = yaml.safe_load_all(kubectl("kustomize", ROOT / folder))
        known = [each for each in documents if each["kind"] != "PodDisruptionBudget"]  # policy/v1
        for each in known:
            for container in _containers(each):  # hollow nodes have one processor
                container["resources"]["requests"]["cpu"] = "50m"
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(known))
    tokens = ("--from-literal=agent-token=a", "--from-literal=admin-token=b")
    kubectl("create", "secret", "generic", "lineside-tokens", "-n", "lineside", *tokens)
    return kubectl


def _containers(document: Any) -> list[Any]:
    template = document.get("spec", {}).get("template", {})
    return list(template.get("spec", {}).get("containers", ()))


def listed(kubectl: Kubectl, kind: str, *words: str) -> list[Any]:
    items: list[Any] = json.loads(kubectl("get", kind, "-o", "json", *words))["items"]
    return items


def ready(objects: list[Any]) -> int:
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for each in objects
        for condition in each["status"].get("conditions", ())
    )


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + SOON_S
    while not holds(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.5)
    return seen


def test_an_agent_runs_on_every_node(applied: Kubectl) -> None:
    agents = "app.kubernetes.io/component=agent"
    pods = until(
        lambda: listed(applied, "pods", "-n", "lineside", "-l", agents),
        lambda pods: [pod["status"]["phase"] for pod in pods] == ["Running"] * NODES,
    )
    nodes = {node["metadata"]["name"] for node in listed(applied, "nodes")}
    assert {pod["spec"]["nodeName"] for pod in pods} == nodes


def test_agents_reach_a_coordinator_before_it_is_ready_and_clients_do_not(applied: Kubectl) -> None:
    def addresses(service: str, word: str) -> int:
        found = json.loads(applied("get", "endpoints", service, "-n", "lineside", "-o", "json"))
        return sum(len(each.get(word, ())) for each in found.get("subsets", ()))

    until(lambda: addresses("lineside-agents", "addresses"), lambda count: count == 1)
    until(lambda: addresses("lineside-admin", "addresses"), lambda count: count == 1)
    assert addresses("lineside", "addresses") == 0  # no probe of a hollow pod succeeds


@pytest.mark.parametrize("account", ["lineside-agent", "lineside-coordinator"])
@pytest.mark.parametrize(
    "what", ["get pods", "list secrets", "get nodes", "get configmaps", "create tokenreviews"]
)
def test_processes_may_do_nothing(applied: Kubectl, account: str, what: str) -> None:
    user = f"system:serviceaccount:lineside:{account}"
    assert applied("auth", "can-i", *what.split(), "-n", "lineside", "--as", user).strip() == "no"


def test_an_operator_may(applied: Kubectl) -> None:
    assert applied("auth", "can-i", "get", "pods", "-n", "lineside").strip() == "yes"
