"""Pods to servers: which of them worker sets and the Gateway API's pools select, and where those
listen. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec

from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.reflection import Object
from lineside.ids import PodIdent
from policies.model import InferenceWorkerSet

NOT_READY = "its pod is not ready"
TERMINATING = "its pod is terminating"

ENDED = ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What is of interest of a pod."""

    name: str
    namespace: str
    uid: str
    labels: tuple[tuple[str, str], ...]
    ip: str
    node: str
    is_ready: bool
    is_terminating: bool
    has_ended: bool


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    deletionTimestamp: str | None = None


class _Spec(msgspec.Struct):
    nodeName: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    phase: str = ""
    podIP: str = ""
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def pod_of(found: Object) -> Pod | None:
    """Read a pod; `None`: it is none that a server could be in."""
    try:
        said = msgspec.convert(found, _Pod)
    except msgspec.ValidationError:
        return None
    metadata, status = said.metadata, said.status
    return Pod(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        labels=tuple(sorted(metadata.labels.items())),
        ip=_address(status.podIP),
        node=said.spec.nodeName,
        is_ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions),
        is_terminating=metadata.deletionTimestamp is not None,
        has_ended=status.phase in ENDED,
    )


def _address(said: str) -> str:
    """Return an address that can stand in a URL; empty: it is none."""
    try:
        address = ip_address(said)
    except ValueError:
        return ""
    return "" if getattr(address, "scope_id", None) else str(address)


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods that are servers, and where they listen. `None`: the server is asked."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    http: tuple[int, ...]
    events: int | None = None
    replay: int | None = None
    tokenizer: str | None = None


def selection_of(worker_set: InferenceWorkerSet) -> Selection | None:
    """Return what a worker set selects; `None`: no pods. Without labels it selects none."""
    spec, metadata = worker_set.spec, worker_set.metadata
    if not spec.selector:
        return None
    ports = spec.ports
    return Selection(
        metadata.name,
        metadata.namespace,
        spec.selector,
        (ports.http,),
        ports.events,
        ports.replay,
        spec.tokenizer,
    )


class Roster:
    """The servers in pods. It remembers which pods were ready once: one that starts is no engine
    yet, one that was and is not ready any more keeps its place, since its cache may be back.
    """

    def __init__(self, key_file: str | None = None) -> None:
        """`key_file` holds the key that the servers want."""
        self._key_file = key_file
        self._were_ready: set[str] = set()

    def servers(
        self, selections: Iterable[Selection], pods: Iterable[Pod]
    ) -> dict[EngineSpec, Hosting]:
        """Return every server with the pod that it is in. A port is one server, whoever selects it:
        the first selection by namespace and name says how to read it.
        """
        there = [pod for pod in pods if pod.ip and not pod.has_ended]
        ready = {pod.uid for pod in there if pod.is_ready and not pod.is_terminating}
        self._were_ready = ready | (self._were_ready & {pod.uid for pod in there})
        there = [pod for pod in there if pod.uid in self._were_ready]
        # Of two pods at one address, on the network of their node, the one that serves counts.
        there.sort(key=lambda pod: (pod.is_terminating, not pod.is_ready, pod.name))
        found: dict[str, tuple[EngineSpec, Hosting]] = {}
        labelled = [(pod, frozenset(pod.labels)) for pod in there]
        for selection in sorted(selections, key=lambda each: (each.namespace, each.name)):
            wanted = frozenset(selection.labels.items())
            chosen = (pod for pod, labels in labelled if wanted <= labels)
            for pod in (each for each in chosen if each.namespace == selection.namespace):
                for spec in _specs(selection, pod, self._key_file):
                    found.setdefault(spec.url, (spec, _hosting(pod)))
        return dict(found.values())


def _hosting(pod: Pod) -> Hosting:
    unfit = TERMINATING if pod.is_terminating else "" if pod.is_ready else NOT_READY
    return Hosting(PodIdent(pod.namespace, pod.name, pod.uid), pod.labels, unfit)


def _specs(selection: Selection, pod: Pod, key_file: str | None) -> Iterator[EngineSpec]:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    for port in selection.http:
        yield EngineSpec(
            url=f"http://{host}:{port}",
            kv=_endpoint(host, selection.events),
            replay=_endpoint(host, selection.replay),
            tokenizer=selection.tokenizer,
            node=pod.node or None,
            api_key_file=key_file,
        )


def _endpoint(host: str, port: int | None) -> str | None:
    return None if port is None else f"tcp://{host}:{port}"


def gateway_pool_of(found: Object) -> Selection | None:
    """Read an `InferencePool` of the Gateway API; `None`: it selects nothing that can be read."""
    try:
        said = msgspec.convert(found, _GatewayPool)
    except msgspec.ValidationError:
        return None
    labels = said.spec.selector.matchLabels
    ports = tuple(port.number for port in said.spec.targetPorts if 0 < port.number < 65536)
    if not labels or not ports:
        return None
    return Selection(said.metadata.name, said.metadata.namespace, labels, ports)


class _PortNumber(msgspec.Struct):
    number: int = 0


class _Selector(msgspec.Struct):
    matchLabels: dict[str, str] = {}


class _GatewayPoolSpec(msgspec.Struct):
    selector: _Selector = msgspec.field(default_factory=_Selector)
    targetPorts: list[_PortNumber] = []


class _GatewayPool(msgspec.Struct):
    metadata: _Metadata
    spec: _GatewayPoolSpec
