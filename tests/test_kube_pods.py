"""Pods to servers, and the Gateway API's pools to ours."""

from typing import Any

import pytest

from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.gateway_pools import is_gateway_pool, with_gateway_pools
from coordinator.kube.pods import (
    NOT_READY,
    TERMINATING,
    Pod,
    Roster,
    Selection,
    gateway_pool_of,
    pod_of,
    selection_of,
)
from coordinator.rules import Resources
from lineside.ids import PodIdent
from policies.inventory import EngineFacts, members_of
from policies.load import load
from policies.model import InferenceWorkerSet


def pod(name: str = "p", **said: Any) -> Pod:
    defaults: dict[str, Any] = {
        "namespace": "n",
        "uid": f"uid-{name}",
        "labels": (("app", "vllm"),),
        "ip": "10.0.0.1",
        "node": "node-a",
        "is_ready": True,
        "is_terminating": False,
        "has_ended": False,
    }
    return Pod(name=name, **(defaults | said))


def written(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "1"}},
        "spec": {"nodeName": "node-a"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True"},
            ],
        }
        | status,
    }


def test_a_pod_is_read() -> None:
    expected = pod("p", uid="u", labels=(("a", "1"), ("b", "2")))
    assert pod_of(written()) == expected


@pytest.mark.parametrize(
    ("status", "is_ready"),
    [
        ({"conditions": [{"type": "Ready", "status": "False"}]}, False),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, False),
        ({"conditions": []}, False),
        ({}, True),
    ],
)
def test_readiness_is_the_condition(status: Any, is_ready: bool) -> None:
    found = pod_of(written(**status))
    assert found is not None and found.is_ready is is_ready


def test_a_pod_that_has_just_been_made_is_read() -> None:
    found = pod_of({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})
    assert found is not None and (found.ip, found.node, found.is_ready) == ("", "", False)
    assert pod_of({"metadata": {"name": 7}}) is None


SET = Selection("set", "n", {"app": "vllm"}, (8000,))


def servers(*pods: Pod, roster: Roster | None = None, also: Selection = SET) -> dict[str, Hosting]:
    found = (roster or Roster()).servers({SET, also} if also != SET else [SET], pods)
    return {spec.url: hosting for spec, hosting in found.items()}


def test_a_ready_pod_is_a_server() -> None:
    found = Roster().servers([SET], [pod()])
    assert found == {
        EngineSpec(url="http://10.0.0.1:8000", node="node-a"): Hosting(
            PodIdent("n", "p", "uid-p"), (("app", "vllm"),)
        )
    }


def test_a_worker_set_says_where_its_pods_listen() -> None:
    wanted = Selection("s", "n", {"app": "vllm"}, (9000,), 6000, 6001, "org/model")
    assert list(Roster().servers([wanted], [pod(ip="fd00::1")])) == [
        EngineSpec(
            url="http://[fd00::1]:9000",
            kv="tcp://[fd00::1]:6000",
            replay="tcp://[fd00::1]:6001",
            tokenizer="org/model",
            node="node-a",
        )
    ]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"is_ready": False}, id="it never was ready"),
        pytest.param({"ip": ""}, id="it has no address"),
        pytest.param({"has_ended": True}, id="it has ended"),
        pytest.param({"namespace": "other"}, id="another namespace"),
        pytest.param({"labels": (("app", "web"),)}, id="other labels"),
        pytest.param({"is_terminating": True}, id="it is on its way out"),
    ],
)
def test_no_server(said: dict[str, Any]) -> None:
    assert servers(pod(**said)) == {}


def test_a_pod_that_was_ready_keeps_its_place_until_it_is_gone() -> None:
    roster = Roster()
    url = "http://10.0.0.1:8000"
    assert servers(pod(), roster=roster)[url].unfit == ""
    assert servers(pod(is_ready=False), roster=roster)[url].unfit == NOT_READY
    assert servers(pod(), roster=roster)[url].unfit == ""
    going = pod(is_terminating=True)
    assert servers(going, roster=roster)[url].unfit == TERMINATING
    assert servers(pod(has_ended=True), roster=roster) == {}
    assert servers(roster=roster) == {}
    assert servers(pod(is_ready=False), roster=roster) == {}  # nobody remembers it


def test_a_port_is_one_server_whoever_selects_it() -> None:
    other = Selection("a-first", "n", {}, (8000,), 7000)
    assert list(Roster().servers([SET, other], [pod()])) == [
        EngineSpec(url="http://10.0.0.1:8000", kv="tcp://10.0.0.1:7000", node="node-a")
    ]


def test_of_two_pods_at_one_address_the_one_that_serves_counts() -> None:
    roster, url = Roster(), "http://10.0.0.1:8000"
    old, new = pod("a-old"), pod("b-new", is_ready=False)
    assert servers(old, new, roster=roster)[url].pod.uid == "uid-a-old"
    going = pod("a-old", is_terminating=True)
    assert servers(going, pod("b-new"), roster=roster)[url] == Hosting(
        PodIdent("n", "b-new", "uid-b-new"), (("app", "vllm"),)
    )


def test_a_worker_set_without_labels_selects_nothing() -> None:
    text = b"""
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: s, namespace: n }
spec: { selector: SELECTOR, ports: { http: 9000 } }
"""
    for selector, expected in (
        (b"{}", None),
        (b"{app: vllm}", Selection("s", "n", {"app": "vllm"}, (9000,))),
    ):
        (located,) = load([("f", text.replace(b"SELECTOR", selector))]).resources
        assert isinstance(located.resource, InferenceWorkerSet)
        assert selection_of(located.resource) == expected


GATEWAY_POOL = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "qwen", "namespace": "n"},
    "spec": {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}, {"number": 8001}],
        "endpointPickerRef": {"name": "lineside", "port": {"number": 9002}},
    },
}


def test_each_target_port_of_a_gateways_pool_is_a_server() -> None:
    selection = gateway_pool_of(GATEWAY_POOL)
    assert selection == Selection("qwen", "n", {"app": "vllm"}, (8000, 8001))
    found = Roster().servers([selection], [pod()])
    assert [spec.url for spec in found] == ["http://10.0.0.1:8000", "http://10.0.0.1:8001"]


@pytest.mark.parametrize(
    "spec",
    [{}, {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}, {"selector": 5}],
    ids=["nothing", "no labels", "nonsense"],
)
def test_a_gateways_pool_that_selects_nothing(spec: Any) -> None:
    assert gateway_pool_of(GATEWAY_POOL | {"spec": spec}) is None


def test_a_gateways_pool_is_a_pool_of_its_pods_in_its_namespace() -> None:
    selection = gateway_pool_of(GATEWAY_POOL)
    assert selection is not None
    made = with_gateway_pools(Resources(), [selection])
    assert [each.metadata.name for each in made.pools] == ["qwen"]
    assert all(map(is_gateway_pool, made.worker_sets))
    labels = {"app": "vllm", "zone": "a"}
    engines = [
        EngineFacts("in", "http://10.0.0.1:8000", ("m",), labels, "n"),
        EngineFacts("elsewhere", "http://10.0.0.2:8000", ("m",), labels, "other"),
        EngineFacts("named", "http://10.0.0.3:8000", ("m",)),
    ]
    members = members_of(made.pools, made.worker_sets, engines)
    pools = {engine: members.pool_names(engine) for engine in ("in", "elsewhere", "named")}
    assert pools == {"in": {"qwen"}, "elsewhere": {"default"}, "named": {"default"}}


def test_a_name_that_is_taken_stays_whose_it_was() -> None:
    selection = gateway_pool_of(GATEWAY_POOL)
    assert selection is not None
    own = with_gateway_pools(Resources(), [selection]).pools
    made = with_gateway_pools(Resources(pools=own), [selection])
    assert made.pools == own and len(made.worker_sets) == 1


@pytest.mark.parametrize(
    ("ip", "read"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::0:7", "fd00::7"),
        *((odd, "") for odd in ("1.2.3.4:5@x", "fe80::1%eth0", "a/../b", "127.0.0.1\r\nX: y", "1")),
    ],
)
def test_only_what_can_stand_in_a_url_is_an_address(ip: str, read: str) -> None:
    found = pod_of(written(podIP=ip))
    assert found is not None and found.ip == read
