"""Which GPUs serve which engine: what the kubelet gave to the engine's pod. Pure.

Written by the node (`assign`) and by whoever asks the kubelet (`heard`). Nothing is guessed: what
does not follow from the kubelet's word is unknown, with the reason.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent.assignment import AssignedEngine
from lineside.ids import EngineId, PodIdent
from lineside.signals import Gpu, NodeGpus

Container: TypeAlias = frozenset[str]
"""Ids of the GPUs, or parts of GPUs, that were given to one container."""

PodName: TypeAlias = tuple[str, str]
"""Namespace and name."""

Given: TypeAlias = Mapping[PodName, tuple[Container, ...] | None]
"""The containers of each pod that have GPUs. `None`: two pods of that name have different ones."""

_REPLICA = re.compile(r"(::|/vgpu)\d+\Z")
"""What device plugins, NVIDIA's and Google's, add to the id of a GPU that containers share."""

_PART = re.compile(r"/gi\d+\Z")
"""What Google's adds to the id of a GPU of which it gives a part."""

MOST_DEVICES = 256
"""Of one engine: sixteen GPUs have no more parts. Each is a metric's label."""

ID_CHARS = 128
"""Of a device's id; a UUID has 40."""


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs and parts of GPUs that serve an engine; none: unknown, and why."""

    ids: tuple[str, ...] = ()
    unknown: str = ""


NOT_ASKED = Devices(unknown="the kubelet has not said yet")
NOT_LISTED = Devices(unknown="the kubelet does not list its pod")
TWO_PODS = Devices(unknown="the kubelet lists two pods of its pod's name")
NO_GPU = Devices(unknown="the device plugin gave no GPU to its pod")
CONTAINERS = Devices(unknown="several containers of its pod have GPUs")
NO_IDS = Devices(unknown="the kubelet's ids of its pod's GPUs are none that GPUs can have")
ENGINES = Devices(unknown="several engines of its pod share several GPUs")


def _nobody() -> None:
    return None


class GpuOwners:
    """One node's. An engine without a pod is none of ours: nothing is said of it."""

    def __init__(self, wanted: Callable[[], None] = _nobody) -> None:
        """`wanted` is called when a pod is assigned that the kubelet was not asked about."""
        self._wanted = wanted
        self._engines: tuple[AssignedEngine, ...] = ()
        self._said: dict[PodIdent, Devices] = {}
        """What follows for one engine in the pod."""
        self.devices: Mapping[EngineId, Devices] = {}
        """Of each engine that is in a pod."""

    def assign(self, engines: Iterable[AssignedEngine]) -> None:
        """Take the node's engines. What was said of a pod ends with it: its name may come back."""
        self._engines = tuple(engines)
        pods = self.pods()
        self._said = {pod: said for pod, said in self._said.items() if pod in pods}
        self._follow()
        if pods - self._said.keys():
            self._wanted()

    def pods(self) -> set[PodIdent]:
        """Return the pods of the node's engines."""
        return {engine.pod for engine in self._engines if engine.pod is not None}

    def heard(self, given: Given, asked_of: Iterable[PodIdent]) -> None:
        """Take the kubelet's word on the pods that were assigned when it was asked."""
        for pod in self.pods().intersection(asked_of):
            self._said[pod] = _devices((pod.namespace, pod.name), given)
        self._follow()

    def _follow(self) -> None:
        engines = Counter(engine.pod for engine in self._engines)
        self.devices = {
            engine.id: self._of(engine.pod, engines[engine.pod])
            for engine in self._engines
            if engine.pod is not None
        }

    def _of(self, pod: PodIdent, engines: int) -> Devices:
        devices = self._said.get(pod, NOT_ASKED)
        return ENGINES if engines > 1 and len(devices.ids) > 1 else devices

    def named(self, gpus: NodeGpus) -> NodeGpus:
        """Return the node's GPUs with the engines that each serves.

        An engine with a device that the driver does not list is named by none: some of its GPUs
        would pass for all.
        """
        places = _places(gpus.gpus)
        serving: dict[str, list[EngineId]] = {}
        for engine, devices in self.devices.items():
            uuids = {places.get(_PART.sub("", device)) for device in devices.ids}
            for uuid in uuids if None not in uuids else ():
                serving.setdefault(uuid or "", []).append(engine)
        if not serving:
            return gpus
        named = (replace(gpu, engines=tuple(serving.get(gpu.uuid, ()))) for gpu in gpus.gpus)
        return replace(gpus, gpus=tuple(named))


def _devices(pod: PodName, given: Given) -> Devices:
    """Return what serves an engine that has the pod for itself."""
    if pod not in given:
        return NOT_LISTED
    containers = given[pod]
    if containers is None:
        return TWO_PODS
    if len(containers) > 1:
        return CONTAINERS
    ids = sorted({_REPLICA.sub("", id) for id in containers[0]}) if containers else []
    if len(ids) > MOST_DEVICES or any(not 0 < len(id) <= ID_CHARS for id in ids):
        return NO_IDS
    return Devices(tuple(ids)) if ids else NO_GPU


def _places(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the GPU that each device is or is a part of: by UUID, or by its file's name."""
    places = {gpu.uuid: gpu.uuid for gpu in gpus if gpu.uuid}
    for gpu in gpus:
        if (detail := gpu.detail) is None:
            continue
        places.update((part.uuid, gpu.uuid) for part in detail.mig_devices)
        if detail.minor is not None:
            places[f"nvidia{detail.minor}"] = gpu.uuid
    return places
