"""A whole small cluster of an old release, in a network namespace, for one session of tests.

Scheduler, controllers, RBAC, and hollow nodes, which run no containers.
"""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "fullcluster"
_NUMBERS = count()
NODES = 3
SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Whole:
    """A running cluster, and ways to ask it."""

    netns: str
    kubeconfig: Path
    kubectl_file: Path

    def run(
        self,
        *words: str | Path,
        stdin: str = "",
        timeout_s: float = 60.0,
        environ: Mapping[str, str] = {},
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program where the cluster is; its KUBECONFIG names it."""
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **environ}
        return subprocess.run(
            ("ip", "netns", "exec", self.netns, *map(str, words)),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environ,
            cwd=cwd,
        )

    def kubectl(self, *words: str | Path, stdin: str = "") -> str:
        """Return what kubectl prints; it may fail only for what is not allowed."""
        done = self.run(self.kubectl_file, *words, stdin=stdin)
        assert done.returncode == 0 or "can-i" in words, done.stderr
        return done.stdout

    def listed(self, kind: str, *words: str) -> list[Any]:
        """Return the objects of a kind."""
        items: list[Any] = json.loads(self.kubectl("get", kind, "-o", "json", *words))["items"]
        return items

    def login(self, namespace: str, account: str, file: Path) -> str:
        """Write a kubeconfig of a ServiceAccount; return its token."""
        secrets = until(
            lambda: [
                each
                for each in self.listed("secrets", "-n", namespace)
                if each["metadata"]["name"].startswith(f"{account}-token")
            ],
            lambda found: bool(found),
        )
        token = base64.b64decode(secrets[0]["data"]["token"]).decode()
        config = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        file.write_text(json.dumps(config))
        return token


@contextmanager
def whole_cluster(tools: Path, state: Path) -> Iterator[Whole]:
    """Run the cluster until the block ends, once its nodes are ready."""
    # A namespace of its own for each cluster of each run: several may go on at once.
    netns = f"lineside-test-{os.getpid()}-{next(_NUMBERS)}"
    inside = ("ip", "netns", "exec", netns)
    _run("ip", "netns", "add", netns)
    try:
        _run("ip", "-n", netns, "link", "set", "lo", "up")
        _run("ip", "-n", netns, "addr", "add", "10.87.1.1/32", "dev", "lo")
        kubectl = tools / "kubectl"
        up = ("bash", str(HERE / "up.sh"), str(tools / "fullcluster"), str(state), str(NODES))
        _run(*inside, *up, str(kubectl))
        cluster = Whole(netns, state / "kubeconfig", kubectl)
        until(lambda: cluster.listed("nodes"), lambda nodes: ready(nodes) == NODES)
        yield cluster
    finally:
        for name in ("hollow*", "scheduler", "manager", "apiserver", "etcd"):
            for file in state.glob(f"{name}.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
        _run("ip", "netns", "del", netns)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=180)


def ready(objects: list[Any]) -> int:
    """Return how many of them are ready."""
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for each in objects
        for condition in each["status"].get("conditions", ())
    )


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Look again and again until it holds; return what was seen then."""
    end = time.monotonic() + SOON_S
    while not holds(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.5)
    return seen


def bearable(document: Any) -> Any:
    """Return a workload that hollow nodes can hold: each has one processor."""
    template = document.get("spec", {}).get("template", {})
    for container in template.get("spec", {}).get("containers", ()):
        container.setdefault("resources", {}).setdefault("requests", {})["cpu"] = "50m"
    return document
