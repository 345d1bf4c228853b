"""Deletion costs in a whole cluster: written with the chart's right to, and not without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.kube.costs import ANNOTATION
from coordinator.kube.deletion_costs import REFUSED_S, ROUND_S
from tests.cluster.whole import Whole, until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
ENGINES = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "engines", "namespace": "lineside"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "engines"}},
        "template": {
            "metadata": {"labels": {"app": "engines"}},
            "spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
        },
    },
}


def costs(whole: Whole) -> dict[str, str | None]:
    """Return each engine's pod with its cost."""
    pods = whole.listed("pods", "-n", "lineside", "-l", "app=engines")
    return {
        each["metadata"]["name"]: each["metadata"].get("annotations", {}).get(ANNOTATION)
        for each in pods
    }


def written(whole: Whole, kubeconfig: Path, worths: dict[str, int]) -> Any:
    path = f"PYTHONPATH={ROOT}:{ROOT / 'proto'}"
    command = (sys.executable, "-m", "tests.cluster.cost_scene", kubeconfig)
    said = [f"{name}={tokens}" for name, tokens in worths.items()]
    done = whole.run("env", "-C", ROOT, path, *command, *said)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_costs_are_written_where_it_was_asked_for(
    applied: Whole, tools: Path, tmp_path: Path
) -> None:
    applied.kubectl("apply", "-f", "-", stdin=json.dumps(ENGINES))
    first, second = until(lambda: costs(applied), lambda found: len(found) == 2)
    kubeconfig = tmp_path / "kubeconfig"
    applied.login("lineside", "lineside-coordinator", kubeconfig)

    refused = written(applied, kubeconfig, {first: 5_000})
    assert refused == [[REFUSED_S, REFUSED_S], {"failed": 2}]
    assert costs(applied) == {first: None, second: None}

    try:
        applied.kubectl("apply", "-f", "-", stdin=roles(tools, asked_for=True))
        done = written(applied, kubeconfig, {first: 5_000, second: 70_000})
        assert done == [[ROUND_S, ROUND_S], {"written": 2}]  # none in the second round
        assert costs(applied) == {first: "5000", second: "70000"}
    finally:
        applied.kubectl("apply", "-f", "-", stdin=roles(tools, asked_for=False))
        applied.kubectl("delete", "deployment", "engines", "-n", "lineside")


def roles(tools: Path, *, asked_for: bool) -> str:
    """Return the chart's roles."""
    value = f"coordinator.kubernetes.podDeletionCost={str(asked_for).lower()}"
    chart = ROOT / "deploy" / "charts" / "lineside"
    words = ("template", "lineside", chart, "-n", "lineside", "--set", value)
    done = subprocess.run(
        (tools / "helm", *words, "-s", "templates/rbac.yaml"),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
