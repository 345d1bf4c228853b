"""From an agent's GPU report to what policies may ask of an engine."""

import pytest

from coordinator.cluster import GPU_FOR_S, Cluster
from coordinator.config import EngineSpec
from coordinator.predict import FixedRate
from coordinator.servers import Found, engines_of
from lineside.ids import EngineId, NodeId
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


@pytest.mark.parametrize(("age_s", "expected"), [(GPU_FOR_S, 0.5), (GPU_FOR_S + 0.1, None)])
def test_an_old_report_says_nothing(age_s: float, expected: float | None) -> None:
    report = ("n1", [("GPU-a", 0.5), ("GPU-b", 0.5)])
    assert seen(report, now=10.0 + age_s) == expected


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
