"""Pods of a real small cluster as engines, with the rights that the manifests give."""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.crd import definitions
from tests.cluster.whole import NODES, Whole, bearable, ready, until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
ACCOUNT = "lineside-coordinator"


def without_rules(schema: Any) -> Any:
    """Return a schema without rules in CEL, which this old cluster does not know."""
    if isinstance(schema, list):
        return [without_rules(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: without_rules(v) for k, v in schema.items() if k != "x-kubernetes-validations"}


@pytest.fixture(scope="module")
def kubeconfigs(applied: Whole, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An operator's, and that of the coordinator's ServiceAccount."""
    made = [without_rules(each) for each in definitions()]
    applied.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": made})
    )
    applied.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    secrets = until(
        lambda: [
            each
            for each in applied.listed("secrets", "-n", "lineside")
            if each["metadata"]["name"].startswith(f"{ACCOUNT}-token")
        ],
        lambda found: bool(found),
    )
    said = applied.kubectl("config", "view", "--raw", "--flatten", "-o", "json")
    config: dict[str, Any] = json.loads(said)
    folder = tmp_path_factory.mktemp("kubeconfigs")
    admin, mine = folder / "admin", folder / "mine"
    admin.write_text(json.dumps(config))
    token = base64.b64decode(secrets[0]["data"]["token"]).decode()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    mine.write_text(json.dumps(config))
    return admin, mine


@pytest.fixture(scope="module")
def seen(applied: Whole, kubeconfigs: tuple[Path, Path]) -> Iterator[dict[str, Any]]:
    """What was measured where the cluster is; the node without a kubelet goes at the end."""
    command = (sys.executable, "-m", "tests.cluster.pods_scene", *kubeconfigs)
    path = f"PYTHONPATH={ROOT}:{ROOT / 'proto'}"
    done = applied.run("env", "-C", ROOT, path, *command, timeout_s=180)
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    print({name: value for name, value in said.items() if isinstance(value, float)})
    yield said
    applied.kubectl("delete", "node", said["engine"]["node"])


def test_a_ready_pod_is_an_engine_of_its_node(seen: dict[str, Any]) -> None:
    assert seen["engine"]["node"] == "by-hand" and seen["engine"]["model"] == "tiny-qwen3"
    assert seen["answer"] == 200
    assert seen["pools"] == {"default": 0, "pool": 1}


def test_the_command_line_shows_them(seen: dict[str, Any]) -> None:
    address = seen["engine"]["endpoint"]
    assert address in seen["get engines"] and "tiny-qwen3" in seen["get engines"]
    rows = [line.split() for line in seen["get pools"].splitlines()]
    assert ["pool", "1", "no", address] in rows or ["pool", "1", "-", address] in rows
    assert "custom resources of the cluster (lineside)" in seen["get policies"]


def test_a_pod_that_loses_readiness_or_its_label_is_out_in_two_seconds(
    seen: dict[str, Any],
) -> None:
    assert seen["unready"] < 2 and seen["unlabelled"] < 2 and seen["terminating"] < 2
    assert seen["ready"] < 2 and seen["labelled"] < 5
    assert seen["refused"] == 503


def test_a_request_in_flight_finishes_while_its_pod_terminates(seen: dict[str, Any]) -> None:
    assert seen["streamed"] == 20


def test_a_pod_that_is_deleted_out_of_sight_is_out_in_five_seconds(seen: dict[str, Any]) -> None:
    assert seen["away"] < 2
    assert list(seen["known meanwhile"].values()) == [""] and seen["served meanwhile"] == 200
    assert seen["deleted out of sight"] < 5


def test_a_bad_policy_says_why_in_its_status_and_an_event(seen: dict[str, Any]) -> None:
    why = "spec.rules[1].name: duplicate-name: there are two rules called `r`"
    assert seen["conditions"]["Accepted"][:2] == ["False", "Invalid"]
    assert seen["conditions"]["Accepted"][2].startswith(why)
    assert seen["conditions"]["Programmed"][:2] == ["False", "Invalid"]
    assert ["Warning", "Invalid"] in [each[:2] for each in seen["events"]]
    assert any(each[2].startswith(why) for each in seen["events"])


def test_rbac_refuses_what_is_not_granted(seen: dict[str, Any]) -> None:
    assert set(seen["may"].values()) == {403}, seen["may"]
    assert "it answers 403" in seen["without rights"]


def test_pods_that_kubelets_run_are_selected_with_their_nodes(
    applied: Whole, kubeconfigs: tuple[Path, Path]
) -> None:
    app = {"app": "hollow-vllm"}
    pods = {"containers": [{"name": "vllm", "image": "vllm"}]}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "hollow-vllm", "namespace": "lineside"},
        "spec": {
            "replicas": NODES,
            "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": pods},
        },
    }
    applied.kubectl("apply", "-f", "-", stdin=json.dumps(bearable(document)))
    words = ("-n", "lineside", "-l", "app=hollow-vllm")
    running = until(
        lambda: applied.listed("pods", *words),
        lambda found: len(found) == ready(found) == NODES,
    )
    expected = sorted(
        [each["status"]["podIP"], each["spec"]["nodeName"], each["metadata"]["name"], True]
        for each in running
    )
    assert {node for _, node, _, _ in expected} <= {f"hollow-{n + 1}" for n in range(NODES)}
    command = (sys.executable, "-m", "tests.cluster.hollow_scene", kubeconfigs[1])
    path = f"PYTHONPATH={ROOT}:{ROOT / 'proto'}"
    done = applied.run("env", "-C", ROOT, path, *command, timeout_s=60)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(json.loads(done.stdout)) == expected
