"""Looks at a cluster through its API server, for the doctor. Judges nothing, changes nothing.

What it may not read is remembered, and everything else is still looked at. Processes and engines
are asked through the API server's own proxy to pods, so the doctor needs no way into the network.
"""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from agent import scrape
from cli.asking import Buffered
from cli.kube.api import Answer, Api, Asker, Blind
from cli.kube.flags import Flags, flags_of, is_vllm
from cli.kube.needs import Need
from cli.kube.rights import rights_of
from cli.kube.shapes import Definition, Json, NetworkPolicy, Pod, WorkerSet
from coordinator.config import Config
from coordinator.servers import Version
from lineside.settings import read
from policies.crd import GROUP, VERSION

MOST_ENGINES = 256
"""Pods that are asked; of a larger cluster the first ones."""

OURS = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"

PORTS = {"admin": 9090, "metrics": 9091}
"""Where processes of ours answer, by the port's name in the pod; these where the pod names none."""


@dataclass(frozen=True, slots=True)
class Process:
    """One pod of ours, and what it says of itself."""

    pod: Json
    series: Mapping[str, list[tuple[Mapping[str, str], float]]] | None = None
    """Its metrics by name; `None`: they were not to be had."""
    state: Json | None = None
    """Its `/readyz`; `None`: not had, or not asked for."""
    at: tuple[float, float] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    def values(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """Return a metric's samples."""
        return (self.series or {}).get(name, [])


@dataclass(frozen=True, slots=True)
class Server:
    """One pod that runs vLLM, what its command line says and what it answers."""

    pod: Json
    flags: Flags
    worker_set: str = ""
    """The worker set that selects it; empty: none does."""
    answered: bool = False
    version: str = ""
    sources: Mapping[int, Buffered] | None = None
    page: bytes = b""
    """Its /metrics."""

    @property
    def name(self) -> str:
        """Namespace and name."""
        meta = self.pod["metadata"]
        return f"{meta['namespace']}/{meta['name']}"


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was looked at. `None`: it could not be."""

    release: str
    namespace: str
    others: list[str]
    """Namespaces beside it in which processes of ours were seen."""
    definitions: list[Json] | None
    coordinators: list[Process]
    agents: list[Process]
    workloads: list[Json]
    worker_sets: list[Json]
    servers: list[Server]
    policies: list[Json] | None
    config: Config | None
    rights: Mapping[tuple[str, Need], bool]
    """By service account and need."""
    certificates: Mapping[str, bytes]
    """PEM by the secret and key that it is in."""
    blinds: list[Blind]


async def look(api: Api, namespace: str) -> Seen:
    """Look at a cluster. Raises `Unreachable`."""
    on = Asker(api, namespace)
    release = await on.get("/version")
    here = f"/api/v1/namespaces/{namespace}/pods"
    definitions, sets, pods, policies, workloads = await asyncio.gather(
        _definitions(on),
        _worker_sets(on),
        on.listed(here, f"pods of {namespace}", "list pods", Pod),
        _policies(on),
        _workloads(on),
    )
    ours, elsewhere = [pod for pod in pods or () if _is_ours(pod)], await _elsewhere(on, sets)
    pods = [*(pods or []), *elsewhere]
    homes = {pod["metadata"]["namespace"] for pod in elsewhere if _is_ours(pod)}
    coordinators = [pod for pod in ours if _component(pod) == "coordinator"]
    agents = [pod for pod in ours if _component(pod) == "agent"]
    config = await _config(on, coordinators)
    return Seen(
        release=str(release.said.get("gitVersion", "")),
        namespace=namespace,
        others=sorted(homes),
        definitions=definitions,
        coordinators=await _processes(on, coordinators, "admin", with_state=True),
        agents=await _processes(on, agents, "metrics", with_state=False),
        workloads=workloads,
        worker_sets=sets,
        servers=await _servers(on, [pod for pod in pods if not _is_ours(pod)], sets),
        policies=policies,
        config=config,
        rights=await rights_of(on, coordinators, agents, config),
        certificates=await _certificates(on, ours),
        blinds=list(on.blinds.seen.values()),
    )


async def _definitions(on: Asker) -> list[Json] | None:
    """Return the definitions of our group."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    what, verb = "the definitions of kinds", "list customresourcedefinitions"
    found = await on.listed(path, what, verb, Definition)
    if found is None:
        return None
    return [each for each in found if each.get("spec", {}).get("group") == GROUP]


async def _policies(on: Asker) -> list[Json] | None:
    path = "/apis/networking.k8s.io/v1/networkpolicies"
    return await on.listed(path, "NetworkPolicies", "list networkpolicies -A", NetworkPolicy)


def _is_ours(found: Json) -> bool:
    return bool(found["metadata"].get("labels", {}).get(OURS) == "lineside")


def _component(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get(COMPONENT, ""))


async def _worker_sets(on: Asker) -> list[Json]:
    base, what = f"/apis/{GROUP}/{VERSION}", "worker sets"
    path, verb = f"{base}/inferenceworkersets", f"list inferenceworkersets.{GROUP} -A"
    if (await on.get(path, {"limit": "1"})).status == 403:  # not in all of it: here, perhaps
        path = f"{base}/namespaces/{on.namespace}/inferenceworkersets"
    return await on.listed(path, what, verb, WorkerSet, absent=(404,)) or []


async def _workloads(on: Asker) -> list[Json]:
    base = f"/apis/apps/v1/namespaces/{on.namespace}"
    found = []
    for plural, kind in (("deployments", "Deployment"), ("daemonsets", "DaemonSet")):
        for each in await on.listed(f"{base}/{plural}", plural, f"list {plural}.apps") or []:
            if _is_ours(each):
                found += [{**each, "kind": kind}]  # members of a list do not say it
    return found


async def _elsewhere(on: Asker, sets: list[Json]) -> list[Json]:
    """Return the pods of other namespaces that have worker sets."""
    named = sorted({str(each["metadata"]["namespace"]) for each in sets} - {on.namespace})
    listed = await asyncio.gather(
        *(
            on.listed(
                f"/api/v1/namespaces/{name}/pods", f"pods of {name}", f"list pods -n {name}", Pod
            )
            for name in named
        )
    )
    return [pod for pods in listed for pod in pods or []]


async def _config(on: Asker, coordinators: list[Json]) -> Config | None:
    """Return the coordinators' settings, out of the ConfigMap that they mount."""
    volumes = [each for pod in coordinators[:1] for each in pod["spec"].get("volumes", ())]
    for volume in volumes:
        name = volume.get("configMap", {}).get("name")
        if volume["name"] != "config" or not name:
            continue
        answer = await on.get(f"/api/v1/namespaces/{on.namespace}/configmaps/{name}")
        if on.blinds.note(answer, "the coordinators' settings", "get configmaps", absent=(404,)):
            text = answer.said.get("data", {}).get("coordinator.yaml", "")
            settings = read(Config, text.encode(), "coordinator.yaml")
            return settings if isinstance(settings, Config) else None
    return None


# --- processes and engines --------------------------------------------------------------------


async def _processes(on: Asker, pods: list[Json], port: str, *, with_state: bool) -> list[Process]:
    return list(await asyncio.gather(*(_process(on, pod, port, with_state) for pod in pods)))


async def _process(on: Asker, pod: Json, named: str, with_state: bool) -> Process:
    if not _runs(pod):
        return Process(pod)
    port = _port(pod, named)
    page = await _asked(on, pod, port, "metrics")
    series = _series(page.body) if page.status == 200 and isinstance(page.body, str) else None
    state = await _asked(on, pod, port, "readyz") if with_state and series is not None else None
    said = state.body if state and isinstance(state.body, dict) else None
    return Process(pod, series, said, page.at)


def _port(pod: Json, named: str) -> int:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            if port.get("name") == named:
                return int(port["containerPort"])
    return PORTS[named]


def _runs(pod: Json) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


async def _asked(on: Asker, pod: Json, port: int, path: str) -> Answer:
    meta = pod["metadata"]
    where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}:{port}/proxy/{path}"
    answer = await on.get(where)
    if answer.status == 403:
        on.blinds.note(answer, "what processes say of themselves", "get pods/proxy")
    return answer


def _series(page: str) -> Mapping[str, list[tuple[Mapping[str, str], float]]] | None:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except ValueError:
        return None
    return found


async def _servers(on: Asker, pods: list[Json], sets: list[Json]) -> list[Server]:
    found = []
    for pod in pods:
        chosen = next((each for each in sets if _selects(each, pod)), None)
        containers = pod["spec"].get("containers", [])
        container = next((each for each in containers if is_vllm(each)), None)
        if chosen is not None and container is None:
            container = containers[0]
        if container is not None:
            name = str(chosen["metadata"]["name"]) if chosen else ""
            found.append((pod, flags_of(container), name))
    return list(await asyncio.gather(*(_server(on, *each) for each in found[:MOST_ENGINES])))


def _selects(worker_set: Json, pod: Json) -> bool:
    if worker_set["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    wanted = worker_set.get("spec", {}).get("selector") or {}
    labels = pod["metadata"].get("labels", {})
    return bool(wanted) and all(labels.get(name) == value for name, value in wanted.items())


async def _server(on: Asker, pod: Json, flags: Flags, worker_set: str) -> Server:
    server = Server(pod, flags, worker_set)
    if not _runs(pod):
        return server
    page = await _asked(on, pod, flags.port, "metrics")
    if page.status != 200 or not isinstance(page.body, str):
        return server
    version = await _asked(on, pod, flags.port, "version")
    sources = await _asked(on, pod, flags.port, "kv_event_sources")
    return Server(
        pod,
        flags,
        worker_set,
        answered=True,
        version=_read(version, Version, Version()).version,
        sources=_read(sources, dict[int, Buffered] | None, None),
        page=page.body.encode(),
    )


def _read(answer: Answer, kind: Any, otherwise: Any) -> Any:
    if answer.status != 200:
        return otherwise
    try:
        return msgspec.convert(answer.body, kind, strict=False)
    except msgspec.ValidationError:
        return otherwise


def block_size(server: Server) -> int | None:
    """Return what an engine says of its blocks, else what its command line does."""
    said = scrape.cache_config(server.page).get("block_size", "")
    return int(said) if said.isdigit() else server.flags.block_size


# --- certificates -------------------------------------------------------------------------------


async def _certificates(on: Asker, pods: list[Json]) -> Mapping[str, bytes]:
    """Return the certificates in the secrets that our pods mount; never a key."""
    names = {
        str(volume["secret"]["secretName"])
        for pod in pods
        for volume in pod["spec"].get("volumes", ())
        if "secretName" in volume.get("secret", {})
    }
    found: dict[str, bytes] = {}
    for name in sorted(names):
        answer = await on.get(f"/api/v1/namespaces/{on.namespace}/secrets/{name}")
        if not on.blinds.note(answer, f"secret {name}", f"get secrets/{name}", absent=(404,)):
            continue
        if answer.said.get("type") == "kubernetes.io/service-account-token":
            continue  # the cluster's own, as old ones mount them
        for key, text in (answer.said.get("data") or {}).items():
            if key.endswith(".crt"):
                found[f"{name}/{key}"] = base64.b64decode(text)
    return found
