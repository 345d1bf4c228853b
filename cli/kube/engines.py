"""Judges engines' pods: what their command lines and they themselves say. Asks nobody.

What an engine answers counts before what its command line says.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agent import scrape
from cli.checks import BY_LOAD, DETAILS_FLAG, WITHOUT_REPLAY, Check, events_flag, release_of
from cli.kube.look import Process, Server, block_size
from cli.kube.network import reach_of
from coordinator.holdings.audit import ANNOUNCES_SINCE
from lineside.hashing import UNIT

OLDEST = (0, 10)

GPU = "nvidia.com/gpu"


def of_engine(
    server: Server,
    agents: Sequence[Process],
    policies: Sequence[Mapping[str, Any]] | None,
    has_key: bool,
) -> list[Check]:
    """Return all there is to say of one engine's pod. `has_key`: coordinators have one for pods."""
    return [
        *_itself(server, has_key),
        *_cache(server),
        *_events(server),
        *_agent(server, agents),
        *_network(server, agents, policies),
    ]


def _itself(server: Server, has_key: bool) -> Iterator[Check]:
    if (why := why_not_ready(server.pod)) is not None:
        text = f"its pod is not ready: {why}"
        namespace, _, name = server.name.partition("/")
        on = f"kubectl -n {namespace}"
        yield Check("ready", "problem", text, f"{on} describe pod {name}; {on} logs {name}")
    if not server.worker_set:
        text = "no InferenceWorkerSet selects it: coordinators know it only if their settings do"
        yield Check("worker_set", "note", text)
    elif server.flags.has_key and not has_key:
        text = "it asks for a key, and coordinators have none for pods that worker sets select"
        yield Check("key", "problem", text, "coordinator.kubernetes.engineKeySecret")
    if server.answered:
        release = release_of(server.version)
        said = f"vLLM {server.version}" if server.version else "an engine without /version"
        yield Check("answers", "ok", f"{said} answers")
        if release is not None and release < OLDEST:
            text = f"vLLM before {OLDEST[0]}.{OLDEST[1]} is not known: its events may not be read"
            yield Check("version", "warning", text, "use a newer release")
        elif release is not None and release < ANNOUNCES_SINCE:
            text = "it cannot announce its blocks anew (vLLM from 0.26)"
            yield Check("version", "note", f"{text}: lost events are made up for by new prompts")
    elif why is None:
        text = "it does not answer through the API server, so only its command line was looked at"
        yield Check("answers", "note", text)


def why_not_ready(pod: Mapping[str, Any]) -> str | None:
    """Return why a pod is not ready, in Kubernetes' own words; `None`: it is."""
    status = pod.get("status", {})
    for each in status.get("conditions", ()):
        if each.get("type") == "Ready" and each.get("status") == "True":
            return None
    for container in (
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason"):
            return f"{container.get('name', 'a container')} waits: {waiting['reason']}"
    for each in status.get("conditions", ()):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return str(each.get("message") or each.get("reason") or "it has no node")
    return str(status.get("phase", "it has no state yet")).lower()


def _cache(server: Server) -> Iterator[Check]:
    flags = server.flags
    said = scrape.cache_config(server.page)
    on = said.get("enable_prefix_caching")
    caches = flags.prefix_caching is not False if on is None else on in ("True", "true")
    if not caches:
        text = f"prefix caching is off: it computes every prompt anew, so {BY_LOAD}"
        yield Check("prefix_caching", "problem", text, "add --enable-prefix-caching")
    size = block_size(server)
    if size is not None and size % UNIT:
        text = f"its blocks have {size} tokens, which is no multiple of {UNIT}: its cache cannot be"
        yield Check(
            "block_size", "problem", f"{text} matched, so {BY_LOAD}", f"add --block-size {UNIT}"
        )
    elif size is not None:
        yield Check("block_size", "ok", f"blocks of {size} tokens")
    algorithm = said.get("prefix_caching_hash_algo") or flags.hash_algorithm
    if algorithm and caches:
        text = f"it names blocks by {algorithm}: any algorithm and seed will do, keys are our own"
        yield Check("hashes", "ok", text)
    if not flags.log_stats:
        text = "--disable-log-stats: its load is not known, requests go by what is in flight here"
        yield Check("metrics", "problem", text, "take --disable-log-stats away")
    if flags.details is not True and not flags.from_file:
        text = "its answers do not say what was cached: a wrong prediction goes unnoticed"
        yield Check("token_details", "warning", text, DETAILS_FLAG)


# --- events -----------------------------------------------------------------------------------


def _events(server: Server) -> Iterator[Check]:
    flags = server.flags
    if server.sources is not None:  # vLLM's own word, from 0.31
        if not any(source.publishes for source in server.sources.values()):
            text = f"KV events are off: what it has cached is not known, so {BY_LOAD}"
            yield Check("events", "problem", text, f"add {events_flag()}")
            return
        source = next(each for each in server.sources.values() if each.publishes)
        yield from _endpoints(source.endpoint or "", source.replay_endpoint or "", "events are")
    elif flags.events_error:
        text = f"--kv-events-config cannot be read: {flags.events_error}"
        yield Check("events", "problem", text, f"write {events_flag()}")
    elif flags.events is None and flags.from_file:
        text = "whether it publishes KV events is not said on its command line (--config FILE)"
        yield Check("events", "note", text)
    elif not flags.publishes:
        text = f"KV events are off: what it has cached is not known, so {BY_LOAD}"
        yield Check("events", "problem", text, f"add {events_flag()}")
    else:
        events = flags.events or {}
        replay = str(events.get("replay_endpoint") or "")
        endpoint = str(events.get("endpoint") or "tcp://*:5557")
        yield from _endpoints(endpoint, replay, "by its command line events are")


def _endpoints(endpoint: str, replay: str, said: str) -> Iterator[Check]:
    url = urlsplit(endpoint)
    if url.scheme == "ipc":
        text = f"{said} published at {endpoint}: mount that directory into the agents, too"
        yield Check("events", "note", text)
    elif (url.hostname or "") in ("127.0.0.1", "localhost", "::1"):
        text = f"events go to {endpoint}, which only its own pod can reach: {BY_LOAD}"
        yield Check("events", "problem", text, f"publish to all: {events_flag()}")
    elif "*" in url.netloc or url.netloc.startswith(("0.0.0.0", "[::]")):
        yield Check("events", "ok", f"{said} published at {endpoint}")
    else:
        text = f"its publisher connects to {endpoint}: that works for one agent, at that address"
        yield Check("events", "warning", text, f"let it listen: {events_flag()}")
    if not replay:
        text = f"it answers no replays: {WITHOUT_REPLAY}"
        yield Check("replay", "warning", text, f"add a `replay_endpoint`: {events_flag()}")


# --- agents, network --------------------------------------------------------------------------


def _agent(server: Server, agents: Sequence[Process]) -> Iterator[Check]:
    node = server.pod["spec"].get("nodeName")
    if not node:
        return
    here = [each for each in agents if each.pod["spec"].get("nodeName") == node]
    if not here:
        text = f"no agent runs on its node {node}: what it has cached is not known, so {BY_LOAD}"
        help = "agent.nodeSelector and agent.tolerations say where agents run"
        yield Check("agent", "problem", text, help)
        return
    if (why := why_not_ready(here[0].pod)) is not None:
        yield Check(
            "agent",
            "problem",
            f"the agent on its node {node} is not ready: {why}",
            f"kubectl logs {here[0].name}",
        )
    yield from _gpus(server, here[0])


def _gpus(server: Server, agent: Process) -> Iterator[Check]:
    limits: dict[str, Any] = {}
    for container in server.pod["spec"].get("containers", ()):
        limits |= container.get("resources", {}).get("limits") or {}
    read = agent.values("lineside_gpu_available")
    if GPU in limits and read and not read[0][1]:
        text = "it has GPUs, and the agent on its node cannot read them: nothing else is affected"
        help = "set agent.gpu.runtimeClass to the class that brings the driver, usually nvidia"
        yield Check("gpu", "warning", text, help)


def _network(
    server: Server, agents: Sequence[Process], policies: Sequence[Mapping[str, Any]] | None
) -> Iterator[Check]:
    if policies is None:
        return
    ports = [_port_of(server, "endpoint", 5557), _port_of(server, "replay_endpoint", 5558)]
    reach = [reach_of(policies, server.pod, port, agents) for port in ports if port]
    http = reach_of(policies, server.pod, server.flags.port, agents)
    if any(each.everybody for each in reach):
        text = "anybody in the cluster may read its KV events, which carry prompts' token ids"
        help = "set networkPolicies.engines.selector to its labels, or write a policy of your own"
        yield Check("event_ports", "warning", text, help)
    if any(each.agents is False for each in reach):
        text = f"a NetworkPolicy keeps agents from its event ports: {BY_LOAD}"
        yield Check("event_ports", "problem", text, "let the agents' pods in")
    if http.everybody and not server.flags.has_key:
        text = "anybody in the cluster may send it requests, past every policy and limit"
        help = "set networkPolicies.engines.selector to its labels, and VLLM_API_KEY"
        yield Check("http_port", "warning", text, help)


def _port_of(server: Server, which: str, usual: int) -> int | None:
    said = (server.flags.events or {}).get(which)
    if said is None:
        return usual if which == "endpoint" else None
    try:
        return urlsplit(str(said)).port
    except ValueError:  # `tcp://*:*` and the like
        return None
