"""From what a kubelet gave to pods to the GPUs that serve an engine: what follows, and no more."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.assignment import AssignedEngine
from agent.kubelet import MOST_ENTRIES, TooMuch, given_in
from agent.owners import (
    CONTAINERS,
    ENGINES,
    ID_CHARS,
    MOST_DEVICES,
    NO_GPU,
    NO_IDS,
    NOT_ASKED,
    NOT_LISTED,
    TWO_PODS,
    Devices,
    GpuOwners,
)
from lineside.ids import EngineId, PodIdent
from lineside.signals import Gpu, GpuDetail, MigDevice, NodeGpus
from lineside.v1 import pod_resources_pb2 as pb
from tests.kubelets import answer, container

A, B = EngineId("10.0.0.1:8000"), EngineId("10.0.0.1:8001")
POD = PodIdent("inference", "vllm-0", "u1")
NEW = POD._replace(uid="u2")


def engine(id: EngineId = A, pod: PodIdent | None = POD) -> AssignedEngine:
    return AssignedEngine(id, f"http://{id}", pod=pod)


def owners(said: bytes, *engines: AssignedEngine) -> GpuOwners:
    """Return what follows when a kubelet that was asked about these engines says this."""
    made = GpuOwners()
    made.assign(engines)
    made.heard(given_in(said), made.pods())
    return made


def gpus(*uuids: str, parts: Sequence[str] = ()) -> NodeGpus:
    """Return a node's GPUs, the first of which is cut into parts."""
    cut = GpuDetail(mig_devices=tuple(map(MigDevice, parts)))
    return NodeGpus(
        tuple(Gpu(uuid, n, "H200", detail=None if n else cut) for n, uuid in enumerate(uuids))
    )


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([container("vllm", gpu=["GPU-a"])], Devices(("GPU-a",)), id="one GPU"),
        pytest.param(
            [container("vllm", gpu=["GPU-b", "GPU-a"])], Devices(("GPU-a", "GPU-b")), id="all of it"
        ),
        pytest.param(
            [container("vllm", ("nvidia.com/gpu", ["GPU-a"]), ("nvidia.com/gpu", ["GPU-b"]))],
            Devices(("GPU-a", "GPU-b")),
            id="one entry for each NUMA node",
        ),
        pytest.param(
            [container("vllm", ("nvidia.com/mig-1g.10gb", ["MIG-1"]))],
            Devices(("MIG-1",)),
            id="MIG",
        ),
        pytest.param(
            [container("vllm", ("nvidia.com/gpu.shared", ["GPU-a::7"]))],
            Devices(("GPU-a",)),
            id="a turn on a GPU that is shared",
        ),
        pytest.param(
            [container("vllm", gpu=["GPU-a::0", "GPU-a::12"])], Devices(("GPU-a",)), id="two turns"
        ),
        pytest.param(
            [container("vllm", ("example.com/h200", ["GPU-a"]))],
            Devices(("GPU-a",)),
            id="by another name",
        ),
        pytest.param(
            [container("proxy"), container("vllm", gpu=["GPU-a"])],
            Devices(("GPU-a",)),
            id="sidecar",
        ),
        pytest.param(
            [container("vllm", ("rdma/hca", ["mlx5_0"]), ("nvidia.com/gpu", ["GPU-a"]))],
            Devices(("GPU-a",)),
            id="other devices",
        ),
        pytest.param([container("vllm", ("rdma/hca", ["mlx5_0"]))], NO_GPU, id="no GPU"),
        pytest.param([], NO_GPU, id="no container"),
        pytest.param(
            [container("vllm", gpu=["GPU-a"]), container("embed", gpu=["GPU-b"])],
            CONTAINERS,
            id="which of two containers it is, nobody says",
        ),
        pytest.param(
            [container("vllm", gpu=["nvidia3", "nvidia0/vgpu2"])],
            Devices(("nvidia0", "nvidia3")),
            id="by device files",
        ),
        pytest.param(
            [container("vllm", gpu=["nvidia0/gi7/vgpu1"])],
            Devices(("nvidia0/gi7",)),
            id="a turn on a part by its device file",
        ),
        pytest.param(
            [container("vllm", gpu=[f"GPU-a::{n}" for n in range(1000)])],
            Devices(("GPU-a",)),
            id="a thousand turns",
        ),
        pytest.param(
            [container("vllm", gpu=[f"GPU-{n}" for n in range(MOST_DEVICES + 1)])],
            NO_IDS,
            id="more GPUs than there can be",
        ),
        pytest.param([container("vllm", gpu=[""])], NO_IDS, id="a GPU without an id"),
        pytest.param(
            [container("vllm", gpu=["GPU-a", "GPU-" + "b" * ID_CHARS])], NO_IDS, id="an endless id"
        ),
    ],
)
def test_an_engine_has_what_its_pod_has(containers: list[object], expected: Devices) -> None:
    said = answer(
        ("inference", "vllm-0", containers), ("other", "vllm-0", [container("x", gpu=["GPU-z"])])
    )
    assert owners(said, engine()).devices == {A: expected}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(("n", "p", []), id="pods"),
        pytest.param(("n", "p", [container("c")]), id="pods and containers"),
        pytest.param(("n", "p", [container("c", ("d", []))]), id="kinds of devices"),
        pytest.param(("n", "p", [container("c", ("d", ["", "", ""]))]), id="devices"),
    ],
)
def test_an_answer_of_more_entries_than_a_node_has_is_not_looked_at(
    pod: tuple[str, str, list[pb.ContainerResources]],
) -> None:
    each = 1 + len(pod[2]) + sum(len(c.devices) for c in pod[2])
    each += sum(len(d.device_ids) for c in pod[2] for d in c.devices)
    most = MOST_ENTRIES // each
    assert given_in(answer(*[pod] * most)) == {("n", "p"): ()}
    with pytest.raises(TooMuch):
        given_in(answer(*[pod] * (most + 1)))


def test_an_engine_without_a_pod_is_not_spoken_of() -> None:
    said = answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-a"])]))
    assert owners(said, engine(pod=None)).devices == {}


def test_a_pod_of_another_node_or_of_none_is_not_listed() -> None:
    assert owners(answer(), engine()).devices == {A: NOT_LISTED}


def test_engines_of_one_pod_share_one_gpu_and_of_several_nobody_knows() -> None:
    both = engine(A), engine(B)
    one = answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-a"])]))
    two = answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-a", "GPU-b"])]))
    assert owners(one, *both).devices == {A: Devices(("GPU-a",)), B: Devices(("GPU-a",))}
    assert owners(two, *both).devices == {A: ENGINES, B: ENGINES}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        pytest.param("GPU-a", Devices(("GPU-a",)), id="the same GPU"),
        pytest.param("GPU-b", TWO_PODS, id="another GPU"),
    ],
)
def test_two_pods_of_a_name_are_told_apart_by_nothing(second: str, expected: Devices) -> None:
    said = answer(
        ("inference", "vllm-0", [container("vllm", gpu=["GPU-a"])]),
        ("inference", "vllm-0", [container("vllm", gpu=[second])]),
    )
    assert owners(said, engine()).devices == {A: expected}


def test_a_pod_that_came_back_under_its_name_is_asked_about_anew() -> None:
    asked: list[str] = []
    made = GpuOwners(lambda: asked.append("again"))
    made.assign([engine()])
    assert (made.devices, asked) == ({A: NOT_ASKED}, ["again"])
    old = given_in(answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-a"])])))
    made.heard(old, {POD})
    made.assign([engine()])  # the same word again asks nothing
    assert (made.devices, asked) == ({A: Devices(("GPU-a",))}, ["again"])
    made.assign([engine(pod=NEW)])
    assert (made.devices, asked) == ({A: NOT_ASKED}, ["again"] * 2)
    made.heard(old, {POD})  # an answer that was under way: it is of the pod before
    assert made.devices == {A: NOT_ASKED}
    made.heard(given_in(answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-b"])]))), {NEW})
    assert made.devices == {A: Devices(("GPU-b",))}


def test_what_was_said_of_a_pod_ends_with_it() -> None:
    made = owners(answer(("inference", "vllm-0", [container("vllm", gpu=["GPU-a"])])), engine())
    made.assign([])
    made.assign([engine()])
    assert made.devices == {A: NOT_ASKED}


def test_gpus_are_named_with_their_engines() -> None:
    said = answer(
        ("inference", "vllm-0", [container("vllm", gpu=["GPU-a", "GPU-b"])]),
        ("inference", "vllm-1", [container("vllm", gpu=["GPU-c::1"])]),
        ("inference", "vllm-2", [container("vllm", gpu=["GPU-c::2"])]),
    )
    others = [PodIdent("inference", f"vllm-{n}", f"u{n}") for n in (1, 2)]
    made = owners(said, engine(), *(engine(EngineId(pod.name), pod) for pod in others))
    named = made.named(gpus("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    assert [gpu.engines for gpu in named.gpus] == [(A,), (A,), ("vllm-1", "vllm-2"), ()]


def test_a_part_is_its_gpu() -> None:
    said = answer(
        ("inference", "vllm-0", [container("vllm", ("nvidia.com/mig-1g.10gb", ["MIG-2"]))])
    )
    named = owners(said, engine()).named(gpus("GPU-a", "GPU-b", parts=["MIG-1", "MIG-2"]))
    assert [gpu.engines for gpu in named.gpus] == [(A,), ()]


@pytest.mark.parametrize("ids", [["nvidia7"], ["nvidia7/gi2", "nvidia7/gi3"]])
def test_a_device_file_is_found_by_its_number_and_not_by_the_index(ids: list[str]) -> None:
    said = answer(("inference", "vllm-0", [container("vllm", gpu=ids)]))
    seen = gpus("GPU-a", "GPU-b")
    numbered = replace(seen, gpus=(seen.gpus[0], replace(seen.gpus[1], detail=GpuDetail(minor=7))))
    named = owners(said, engine()).named(numbered)
    assert [gpu.engines for gpu in named.gpus] == [(), (A,)]


@pytest.mark.parametrize("ids", [["GPU-a", "GPU-gone"], ["nvidia0"], ["nvidia0/gi1"], ["MIG-9"]])
def test_an_engine_with_a_device_that_the_driver_does_not_list_is_unknown(ids: list[str]) -> None:
    said = answer(("inference", "vllm-0", [container("vllm", gpu=ids)]))
    seen = gpus("GPU-a", "")
    assert owners(said, engine()).named(seen) == seen
