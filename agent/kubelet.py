"""Asks this node's kubelet which devices it gave to which pods, again and again.

Its pod-resources socket belongs to root: who sets `pod_resources` gives the agent that user. The
only one that tells `GpuOwners`. A kubelet that cannot be asked leaves what it said before; why it
cannot is a state with a name.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from agent.owners import Container, Given, GpuOwners, PodName
from lineside import logs
from lineside.clock import Clock, heard_within
from lineside.ids import PodIdent
from lineside.v1 import pod_resources_pb2 as pb

METHOD = "/v1.PodResourcesLister/List"

READ_S = 30.0
"""Between two answers while no pod is new: a word that came too early is put right."""

RETRY_S = 5.0
"""After a failure."""

GATHER_S = 0.5
"""Between two questions at least, however often assignments change: kubelets refuse those who ask
too often."""

ANSWER_S = 5.0
"""For an answer, connecting included."""

ANSWER_BYTES = 2 * 2**20
"""An answer of a full node has some 100 kB. A larger one is not taken."""

MOST_ENTRIES = 20_000
"""Pods, containers, kinds of devices and devices of an answer, all together: a full node has some
thousand. An answer with more is not looked at, which would take seconds: an entry can be empty."""

DETAIL_CHARS = 200
"""Of the kubelet's own words."""

RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
"""What GPUs and their parts are called, with what may follow: `nvidia.com/gpu.shared`."""

IDS = ("GPU-", "MIG-")
"""What their ids begin with, under whatever name they can be asked for."""

OPTIONS = [
    ("grpc.max_receive_message_length", ANSWER_BYTES),
    ("grpc.default_authority", "localhost"),  # a path is none, and servers refuse it
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]

NoAnswer = Literal["absent", "denied", "refused", "slow", "failed"]

log = logs.get("agent.kubelet")

_List: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


class TooMuch(ValueError):
    """An answer lists more than a node can have."""


class KubeletAway(Exception):
    """It cannot be asked."""

    def __init__(self, failure: NoAnswer, detail: str) -> None:
        super().__init__(detail)
        self.failure: NoAnswer = failure
        self.detail = detail


class Kubelet:
    """One node's. Tells `owners` what it hears, and asks at once when they want to know."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._wanted = asyncio.Event()
        self.owners = GpuOwners(self._wanted.set)
        self.failing = "it was not asked yet"
        """Why the last question brought nothing; empty: it was answered."""
        self.failures: Counter[NoAnswer] = Counter()
        self.answered_at: float | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._wanted.clear()
            await self._ask()
            await self._clock.sleep(GATHER_S)
            await heard_within(self._wanted, RETRY_S if self.failing else READ_S, self._clock)

    async def _ask(self) -> None:
        at, pods, before = self._clock.monotonic(), self.owners.pods(), self.failing
        try:
            given = await asked(self._path)
        except KubeletAway as away:
            self.failures[away.failure] += 1
            self.failing = away.detail
        else:
            self.answered_at, self.failing = at, ""
            self._tell(given, pods)
        if self.failing != before:
            if self.failing:
                log.warning("kubelet cannot be asked", reason=self.failing)
            else:
                log.info("kubelet answers")

    def _tell(self, given: Given, pods: set[PodIdent]) -> None:
        before = self.owners.devices
        self.owners.heard(given, pods)
        for engine, devices in self.owners.devices.items():
            if devices != before.get(engine):
                log.info("GPUs of engine", engine=engine, gpus=devices.ids, unknown=devices.unknown)

    def troubles(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as it should be: a code and a sentence."""
        if self.failing:
            yield (
                "pod_resources_away",
                f"the kubelet cannot be asked which GPUs serve which engine: {self.failing}",
            )


async def asked(path: str) -> Given:
    """Ask once. Raises `KubeletAway`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await _list(path)
        return given_in(answer)
    except TimeoutError:
        raise KubeletAway("slow", f"no answer within {ANSWER_S:g} s") from None
    except DecodeError:
        raise KubeletAway("failed", "it answers something else than a list of pods") from None
    except TooMuch:
        raise KubeletAway("failed", f"it lists more than {MOST_ENTRIES} pods and devices") from None
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise KubeletAway("slow", f"no answer within {ANSWER_S:g} s") from None
        said = f"{error.code().name}: {(error.details() or '')[:DETAIL_CHARS]}"
        raise await _why(path) or KubeletAway("failed", said) from None


async def _list(path: str) -> bytes:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
        # Its bytes are parsed here: gRPC would log what cannot be.
        call: _List = channel.unary_unary(METHOD)
        return await call(b"", timeout=ANSWER_S)


async def _why(path: str) -> KubeletAway | None:
    """Find out why there is no connection, which gRPC does not tell apart; `None`: there is one."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_unix_connection(path)
        writer.close()
    except FileNotFoundError:
        return KubeletAway("absent", f"`{path}` is not there")
    except PermissionError:
        return KubeletAway("denied", f"`{path}` may not be opened by this user")
    except TimeoutError:
        return KubeletAway("slow", f"no connection within {ANSWER_S:g} s")
    except OSError as error:
        words = (error.strerror or "no reason").lower()
        return KubeletAway("refused", f"`{path}` cannot be connected to: {words}")
    return None


def given_in(answer: bytes) -> Given:
    """Read an answer. Raises `DecodeError`, and `TooMuch`."""
    pods = pb.ListPodResourcesResponse.FromString(answer).pod_resources
    _check_size(pods)
    given: dict[PodName, tuple[Container, ...] | None] = {}
    for pod in pods:
        name = (pod.namespace, pod.name)
        containers = tuple(found for each in pod.containers if (found := _gpus(each)))
        given[name] = containers if given.get(name, containers) == containers else None
    return given


def _check_size(pods: Sequence[pb.PodResources]) -> None:
    """Count entries before they are looked at, and no further than is allowed."""
    left = MOST_ENTRIES - len(pods)
    for pod in pods if left >= 0 else ():
        left -= len(pod.containers)
        for container in pod.containers if left >= 0 else ():
            left -= len(container.devices)
            for devices in container.devices if left >= 0 else ():
                left -= len(devices.device_ids)
        if left < 0:
            break
    if left < 0:
        raise TooMuch


def _gpus(container: pb.ContainerResources) -> Container:
    return frozenset(
        device
        for devices in container.devices
        for device in devices.device_ids
        if devices.resource_name.startswith(RESOURCES) or device.startswith(IDS)
    )
