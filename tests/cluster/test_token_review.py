"""Agents' bound tokens before a real API server, with the rights that the manifests grant.

It is of Kubernetes 1.20, whose tokens name a pod and no node: what newer ones add is tried with a
scripted server (tests/test_token_review.py).
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.whole import Whole, until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
AGENTS = "app.kubernetes.io/component=agent"


def pods(whole: Whole) -> list[Any]:
    """Return the agents' pods that have a node."""
    found = whole.listed("pods", "-n", "lineside", "-l", AGENTS)
    return [each for each in found if each["spec"].get("nodeName")]


def token_of(whole: Whole, account: str, pod: Any = None, audience: str = "lineside") -> str:
    """Have a token made as the kubelet does for a pod's volume."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if pod is not None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/lineside/serviceaccounts/{account}/token"
    made = json.loads(whole.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(asked)))
    token: str = made["status"]["token"]
    return token


def judged(whole: Whole, ours: Path, token: str, node: str, **settings: Any) -> Any:
    """Return why a coordinator, by its own token, refuses an agent's; `None`: it does not."""
    state = whole.kubeconfig.parent
    said = {
        "accounts": ["lineside/lineside-agent"],
        "api_server": "https://127.0.0.1:6443",
        "ca_file": str(state / "ca.crt"),
        "token_file": str(ours),
        **settings,
    }
    document = json.dumps({"settings": said, "token": token, "node": node})
    path = f"PYTHONPATH={ROOT}:{ROOT / 'proto'}"
    words = ("env", "-C", ROOT, path, sys.executable, "-m", "tests.cluster.review_scene")
    done = whole.run(*words, stdin=document)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_real_api_server_tells_agents_from_others(applied: Whole, tmp_path: Path) -> None:
    ours = tmp_path / "coordinator"
    token = applied.login("lineside", "lineside-coordinator", tmp_path / "kubeconfig")
    ours.write_text(token)
    pod = until(lambda: pods(applied), bool)[0]
    node = pod["spec"]["nodeName"]
    agent = token_of(applied, "lineside-agent", pod)

    assert judged(applied, ours, agent, node, needs_node=False) is None
    strict = judged(applied, ours, agent, node)
    assert strict["why"] == "NOT_ITS_NODE"
    assert "as clusters before Kubernetes 1.30 make them" in strict["text"]
    for other, text in (
        (token_of(applied, "lineside-agent", pod, "https://127.0.0.1:6443"), "audience `lineside`"),
        (token_of(applied, "lineside-coordinator"), "is of ServiceAccount `lineside/lineside-co"),
        (agent[:-4] + "AAAA", "does not accept the agent's token"),
        ("hunter2", "does not accept the agent's token"),
    ):
        denied = judged(applied, ours, other, node, needs_node=False)
        assert denied["why"] == "UNKNOWN" and text in denied["text"], denied

    applied.kubectl("delete", "pod", "-n", "lineside", pod["metadata"]["name"], "--now")
    until(
        lambda: judged(applied, ours, agent, node, needs_node=False),
        lambda denied: denied is not None and denied["why"] == "UNKNOWN",
    )


def test_without_the_right_nobody_is_judged(applied: Whole, tmp_path: Path) -> None:
    ours = tmp_path / "agent"
    ours.write_text(applied.login("lineside", "lineside-agent", tmp_path / "kubeconfig"))
    agent = token_of(applied, "lineside-agent")
    denied = judged(applied, ours, agent, "n", needs_node=False)
    assert denied["why"] == "CANNOT_TELL"
    assert "it answers 403: we may not: give our ServiceAccount `create` on" in denied["text"]
    ours.write_text("hunter2")
    denied = judged(applied, ours, agent, "n", needs_node=False)
    assert "it answers 401: it does not know our own token" in denied["text"]
