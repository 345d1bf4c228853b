"""The plain manifests in a whole cluster: scheduler, controllers, RBAC, and nodes that run nothing.

It is an old one (1.20), the only one that can be built here: what it does not know is left out.
"""

import json

import pytest

from tests.cluster.whole import NODES, Whole, until

pytestmark = pytest.mark.cluster


def test_an_agent_runs_on_every_node(applied: Whole) -> None:
    agents = "app.kubernetes.io/component=agent"
    pods = until(
        lambda: applied.listed("pods", "-n", "lineside", "-l", agents),
        lambda pods: [pod["status"]["phase"] for pod in pods] == ["Running"] * NODES,
    )
    nodes = {node["metadata"]["name"] for node in applied.listed("nodes")}
    assert {pod["spec"]["nodeName"] for pod in pods} == nodes


def test_agents_reach_a_coordinator_before_it_is_ready_and_clients_do_not(applied: Whole) -> None:
    def addresses(service: str, word: str) -> int:
        said = applied.kubectl("get", "endpoints", service, "-n", "lineside", "-o", "json")
        return sum(len(each.get(word, ())) for each in json.loads(said).get("subsets", ()))

    until(lambda: addresses("lineside-agents", "addresses"), lambda count: count == 1)
    until(lambda: addresses("lineside-admin", "addresses"), lambda count: count == 1)
    assert addresses("lineside", "addresses") == 0  # no probe of a hollow pod succeeds


AGENT, COORDINATOR = "lineside-agent", "lineside-coordinator"


def may(whole: Whole, account: str, what: str, namespace: str = "lineside") -> bool:
    user = f"system:serviceaccount:lineside:{account}"
    asked = ("auth", "can-i", *what.split(), "-n", namespace, "--as", user)
    return whole.kubectl(*asked).strip() == "yes"


@pytest.mark.parametrize("account", [AGENT, COORDINATOR])
@pytest.mark.parametrize(
    "what", ["list secrets", "get nodes", "get configmaps", "patch pods", "delete pods"]
)
def test_what_is_not_granted_is_refused(applied: Whole, account: str, what: str) -> None:
    assert not may(applied, account, what)


@pytest.mark.parametrize("what", ["list pods", "create events", "create tokenreviews"])
def test_a_coordinator_may_what_it_needs_and_an_agent_nothing(applied: Whole, what: str) -> None:
    assert may(applied, COORDINATOR, what)
    assert not may(applied, AGENT, what)


def test_pods_of_other_namespaces_are_out_of_reach(applied: Whole) -> None:
    assert not may(applied, COORDINATOR, "list pods", "default")


def test_an_operator_may(applied: Whole) -> None:
    assert applied.kubectl("auth", "can-i", "get", "pods", "-n", "lineside").strip() == "yes"
