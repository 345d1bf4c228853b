"""From an agent's GPU report to what policies may ask of an engine."""

from dataclasses import replace

import pytest

from coordinator.cluster import GPU_FOR_S, Cluster
from coordinator.config import EngineSpec
from coordinator.load.predict import FixedRate
from coordinator.servers import Found, engines_of
from lineside.ids import EngineId, NodeId, PodIdent
from lineside.signals import Gpu, NodeGpus
from policies.load import load
from policies.model import InferencePolicy
from tests.scene import decided, view

NODE = NodeId("n1")
FOUND = Found((), "m")
RATE = FixedRate(prefill_tokens_per_s=1000.0, step_s=0.0)


def seen(*reports: tuple[str, list[tuple[str, float | None]]], now: float = 10.0) -> float | None:
    """Return what is known at some time of an engine on two GPUs, reported at 10 s."""
    cluster = Cluster()
    spec = EngineSpec("http://e:8000", gpus=("GPU-a", "GPU-b"))
    cluster.assign(engines_of(spec, FOUND, NODE, 4))
    for node, gpus in reports:
        report = NodeGpus(tuple(Gpu(uuid, 0, "H200", value) for uuid, value in gpus))
        cluster.observe_gpus(NodeId(node), report, 10.0)
    (known,) = cluster.snapshot(now).engines
    return known.gpu_utilization


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([], None, id="nothing reported"),
        pytest.param(
            [("n1", [("GPU-a", 0.2), ("GPU-b", 0.9), ("GPU-c", 1.0)])], 0.9, id="the busiest of its"
        ),
        pytest.param([("n1", [("GPU-a", 0.0), ("GPU-b", 0.0)])], 0.0, id="idle is known"),
        pytest.param([("n1", [("GPU-a", 0.2)])], None, id="one is not listed"),
        pytest.param(
            [("n1", [("GPU-a", 0.2), ("GPU-b", None)])], None, id="one is refused or lost"
        ),
        pytest.param([("n2", [("GPU-a", 0.2), ("GPU-b", 0.9)])], None, id="another node's report"),
        pytest.param(
            [("n1", [("GPU-a", 0.2), ("GPU-b", 0.9)]), ("n1", [])], None, id="NVML went away"
        ),
    ],
)
def test_an_engine_is_as_busy_as_its_busiest_gpu(
    reports: list[tuple[str, list[tuple[str, float | None]]]], expected: float | None
) -> None:
    assert seen(*reports) == expected


POD = PodIdent("inference", "vllm-0", "u1")


def given(cluster: Cluster) -> list[tuple[tuple[str, ...], str, float | None]]:
    engines = cluster.snapshot(10.0).engines
    return [(each.engine.gpus, each.engine.card, each.gpu_utilization) for each in engines]


def test_gpus_that_a_kubelet_gave_are_known_as_long_as_its_pod_is_there() -> None:
    cluster = Cluster()
    (found,) = engines_of(EngineSpec("http://e:8000"), FOUND, NODE, 4)
    cluster.assign([replace(found, pod=POD)])
    one = Gpu("GPU-a", 0, "H200", 0.25, engines=(found.id, EngineId("of nobody")))
    both = NodeGpus((one, Gpu("GPU-b", 1, "L4", 0.75)))
    unknown, known = [((), "", None)], [(("GPU-a",), "H200", 0.25)]
    assert given(cluster) == unknown
    cluster.observe_gpus(NodeId("n2"), both, 10.0)  # another node's word on our engine
    assert given(cluster) == unknown
    cluster.observe_gpus(NODE, both, 10.0)
    assert given(cluster) == known
    revision = cluster.revision
    cluster.observe_gpus(NODE, both, 10.0)
    assert cluster.revision == revision  # the same word again is no change
    cluster.observe_gpus(NODE, NodeGpus(unavailable="NVML does not answer"), 10.0)
    assert given(cluster) == [(("GPU-a",), "H200", None)]
    cluster.observe_gpus(NODE, both, 10.0)
    cluster.assign([replace(found, pod=POD._replace(uid="u2"))])  # at the same address
    assert [gpus for gpus, _, _ in given(cluster)] == [()]
    cluster.observe_gpus(NODE, NodeGpus((replace(one, engines=()),)), 10.0)
    assert given(cluster) == [((), "H200", None)]  # a node of one card


def test_gpus_in_the_configuration_count_before_a_kubelets() -> None:
    cluster = Cluster()
    cluster.assign(engines_of(EngineSpec("http://e:8000", gpus=("GPU-b",)), FOUND, NODE, 4))
    (known,) = cluster.snapshot(10.0).engines
    gpus = (Gpu("GPU-a", 0, "H200", 0.25, engines=(known.engine.id,)), Gpu("GPU-b", 1, "L4", 0.75))
    cluster.observe_gpus(NODE, NodeGpus(gpus), 10.0)
    assert given(cluster) == [(("GPU-b",), "L4", 0.75)]


@pytest.mark.parametrize(("age_s", "expected"), [(GPU_FOR_S, 0.5), (GPU_FOR_S + 0.1, None)])
def test_an_old_report_says_nothing(age_s: float, expected: float | None) -> None:
    both: list[tuple[str, float | None]] = [("GPU-a", 0.5), ("GPU-b", 0.5)]
    assert seen(("n1", both), now=10.0 + age_s) == expected


def test_an_engine_whose_gpus_nobody_named_is_not_known() -> None:
    cluster = Cluster()
    cluster.assign(engines_of(EngineSpec("http://e:8000"), FOUND, NODE, 4))
    cluster.observe_gpus(NODE, NodeGpus((Gpu("GPU-a", 0, "H200", 0.5),)), 10.0)
    (known,) = cluster.snapshot(10.0).engines
    assert known.gpu_utilization is None


POLICY = b"""
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: cool }
spec:
  rules:
  - name: r
    route:
      exclude:
      - { name: hot, drop: { gpuUtilization: { greaterThan: 0.9 } } }
      select: [ { minimize: GPUUtilization } ]
"""


def test_a_policy_ranks_and_drops_by_it() -> None:
    (policy,) = (each.resource for each in load([("p", POLICY)]).resources)
    assert isinstance(policy, InferencePolicy)
    views = [
        view("hot", gpu_utilization=0.95),
        view("warm", gpu_utilization=0.6),
        view("cold", gpu_utilization=0.1),
        view("unknown"),
    ]
    decision = decided(views, RATE, policies=[policy])
    assert [each.view.engine.id for each in decision.ranked if each.view] == [
        EngineId("cold"),
        EngineId("warm"),
        EngineId("unknown"),
    ]
