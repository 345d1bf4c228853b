"""Judges what was seen of a cluster: each finding with what to do about it. Asks nobody.

Engines are `cli.kube.engines`'; here is everything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.checks import Check, Level
from cli.examination import Report
from cli.kube.certificates import ends_of
from cli.kube.engines import of_engine, why_not_ready
from cli.kube.look import Process, Seen
from cli.kube.needs import TOO_MUCH
from cli.kube.network import selects
from cli.kube.rights import asks_api
from coordinator.kube.settings import EVERY
from policies.crd import MARK, PART_OF, VERSION, definitions

OLDEST, NEWEST = (1, 25), (1, 37)
"""Releases of Kubernetes that the manifests are checked against."""

SKEW_S = 1.0
"""Clocks that differ by more make times in logs and records hard to compare."""

BAD_SKEW_S = 30.0
"""From here on certificates and tokens that are just made, or about to end, are refused."""

SOON = timedelta(days=14)

CRDS = "helm upgrade --install lineside-crds deploy/charts/lineside-crds"


def judged(seen: Seen, release: str, now: datetime) -> list[Report]:
    """Return a report on each part; `release` is our own.

    Where Lineside is not installed that is all there is to say of it: the rest would follow.
    """
    cluster = _part("cluster", [*_cluster(seen), *_blind(seen)])
    if _is_absent(seen):
        definitions = [each for each in _definitions(seen) if each.code != "missing"]
        absent = _part("coordinators", [_absent(seen)])
        reports = [cluster, _part("definitions", definitions), absent, *_engines(seen)]
        return [report for report in reports if report.checks]
    reports = [
        cluster,
        _part("definitions", [*_definitions(seen)]),
        _part("coordinators", [*_coordinators(seen, release)]),
        _part("agents", [*_agents(seen, release)]),
        _part("worker sets", [*_worker_sets(seen)]),
        _part("network", [*_network(seen)]),
        _part("rights", [*_rights(seen)]),
        _part("certificates", [*_certificates(seen, now)]),
        *_engines(seen),
    ]
    if not seen.servers:
        text = "no pod runs vLLM here, and no InferenceWorkerSet selects one"
        help = "see deploy/examples/vllm.yaml; -n names the namespace of Lineside"
        reports.append(_part("engines", [Check("engines", "warning", text, help)]))
    return [report for report in reports if report.checks]


def _engines(seen: Seen) -> Iterator[Report]:
    """Yield a report on each engine; that it has no agent follows where there is none at all."""
    for server in seen.servers:
        has_key = seen.config is None or seen.config.kubernetes.engine_key_file is not None
        found = of_engine(server, seen.agents, seen.policies, has_key)
        if not (seen.agents or _agent_sets(seen)):
            found = [each for each in found if each.code != "agent"]
        yield _part(f"engine {server.name}", found, server.answered)


def _is_absent(seen: Seen) -> bool:
    """Whether nothing of Lineside runs in the namespace, as far as everything could be seen."""
    return not (seen.coordinators or seen.agents or seen.workloads or seen.blinds)


def _absent(seen: Seen) -> Check:
    if seen.others:
        text = f"no coordinator runs in {seen.namespace}"
        help = f"it runs in {', '.join(seen.others)}: name that with -n"
        return Check("coordinators", "problem", text, help)
    chart = f"helm upgrade --install lineside deploy/charts/lineside -n {seen.namespace}"
    help = f"README.md, In a cluster: {CRDS}; {chart} -f VALUES; or -n names where it is"
    return Check("absent", "problem", f"Lineside is not installed in {seen.namespace}", help)


def _agent_sets(seen: Seen) -> list[Mapping[str, Any]]:
    return [each for each in seen.workloads if each["kind"] == "DaemonSet"]


def _part(name: str, checks: list[Check], reached: bool | None = None) -> Report:
    return Report(name, reached, checks, is_part=True)


def _cluster(seen: Seen) -> Iterator[Check]:
    numbers = seen.release.lstrip("v").split(".")
    try:
        release = int(numbers[0]), int(numbers[1].rstrip("+"))
    except (IndexError, ValueError):
        yield Check("kubernetes", "note", "the API server does not say its release")
        return
    if release < OLDEST:
        text = f"Kubernetes {seen.release}: definitions have rules in CEL, which it does not know"
        yield Check("kubernetes", "problem", text, f"use {OLDEST[0]}.{OLDEST[1]} or newer")
    elif release > NEWEST:
        text = f"Kubernetes {seen.release} is newer than what the manifests were checked against"
        yield Check("kubernetes", "note", text)
    else:
        yield Check("kubernetes", "ok", f"Kubernetes {seen.release}")


def _blind(seen: Seen) -> Iterator[Check]:
    for blind in seen.blinds:
        if blind.odd or blind.is_cut:
            many = f"{blind.odd} of {blind.what} are not what such objects are, and left out"
            text = f"of {blind.what} the first ones alone were looked at" if blind.is_cut else many
            help = f"kubectl auth can-i {blind.verb}; then look at them with kubectl get -o yaml"
        elif blind.status == 403:
            text, help = f"could not look at {blind.what}: not allowed", f"allow `{blind.verb}`"
        else:
            text = f"could not look at {blind.what}: the API server answers {blind.status}"
            help = f"kubectl auth can-i {blind.verb}"
        yield Check("blind", "warning", text, help)


def _definitions(seen: Seen) -> Iterator[Check]:
    if seen.definitions is None:
        return
    there = {str(each["metadata"]["name"]): each for each in seen.definitions}
    ours = {str(each["metadata"]["name"]): each for each in definitions()}
    foreign = [name for name, each in there.items() if not _is_ours(each)]
    if foreign:
        text = f"another product has {', '.join(sorted(foreign))}: it is not Lineside's"
        help = "uninstall that product first, or take its definitions over:"
        yield Check(
            "foreign", "problem", text, f"{help} {CRDS} --set replaceForeign=true --take-ownership"
        )
    if missing := sorted(ours.keys() - there.keys()):
        text = f"not there: {', '.join(missing)}"
        yield Check("missing", "problem", text, CRDS)
    for name in sorted(ours.keys() & there.keys() - set(foreign)):
        yield from _definition(name, ours[name], there[name])
    if not foreign and not missing:
        yield Check("definitions", "ok", f"all {len(ours)} kinds are defined, by Lineside")


def _is_ours(definition: Mapping[str, Any]) -> bool:
    labels = definition["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in PART_OF.items())


def _mark(definition: Mapping[str, Any]) -> str | None:
    return (definition["metadata"].get("annotations") or {}).get(MARK)


def _definition(name: str, ours: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Check]:
    conditions = there.get("status", {}).get("conditions") or ()
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        why = "; ".join(str(c.get("message", "")) for c in conditions if c["status"] == "False")
        text = f"{name} is not in force: {why or 'the API server has not taken it yet'}"
        yield Check("established", "problem", text, f"kubectl describe crd {name}")
    said = {each["name"]: each for each in there["spec"].get("versions", ())}
    if not said.get(VERSION, {}).get("served"):
        yield Check("version", "problem", f"{name} is not served as {VERSION}", CRDS)
    elif _mark(there) != _mark(ours):
        text = f"{name} is of another release than this command: fields may differ"
        yield Check("version", "warning", text, CRDS)


# --- processes --------------------------------------------------------------------------------


def _coordinators(seen: Seen, release: str) -> Iterator[Check]:
    if not seen.coordinators:
        text = f"no coordinator runs in {seen.namespace}"
        help = "install the chart lineside, or name its namespace with -n"
        if seen.others:
            help = f"it runs in {', '.join(seen.others)}: name that with -n"
        yield Check("coordinators", "problem", text, help)
        return
    for each in seen.coordinators:
        yield from _coordinator(each)
    if len(seen.coordinators) == 1:
        text = "there is one coordinator: while it restarts nothing is served"
        yield Check("replicas", "note", text, "coordinator.replicas, with a store that they share")
    yield from _releases(seen, release)
    yield from _clocks([*seen.coordinators, *seen.agents])


def _coordinator(process: Process) -> Iterator[Check]:
    name, state = process.name, process.state or {}
    why = why_not_ready(process.pod)
    if reasons := state.get("reasons"):
        yield Check("ready", "problem", f"{name} is not ready: {'; '.join(reasons)}")
    elif why is not None:
        on = f"kubectl -n {process.pod['metadata']['namespace']}"
        help = f"{on} describe pod {name}; {on} logs {name}"
        yield Check("ready", "problem", f"{name} is not ready: {why}", help)
    else:
        yield Check("ready", "ok", f"{name} is ready")
    for text in state.get("degraded") or ():
        help = "docs/operations.md, What a coordinator serves around"
        yield Check("degraded", "warning", f"{name}: {text}", help)
    for labels, value in process.values("lineside_engine_tokenizer"):
        if value and labels.get("state") in ("no_tokenizer", "different"):
            yield _tokenizer(labels)
    if process.series is None and why is None:
        yield Check("metrics", "note", f"{name} could not be asked: only its pod was looked at")


def _tokenizer(labels: Mapping[str, str]) -> Check:
    name = labels.get("engine", "")
    if labels.get("state") == "different":
        text = f"engine {name} tokenizes otherwise than the tokenizer that is at hand for it"
        return Check("tokenizer", "warning", text, "name the one that the engine serves")
    text = f"the tokenizer of engine {name} is not at hand: each prompt is sent to the engine first"
    help = "let coordinators reach the hub (coordinator.config.hub), or name `tokenizer` for it"
    return Check("tokenizer", "warning", text, help)


def _agents(seen: Seen, release: str) -> Iterator[Check]:
    sets = _agent_sets(seen)
    if not sets:
        text = "no agents are deployed: what engines have cached is not known, all go by load alone"
        yield Check("agents", "problem", text, "agent.enabled, or kubectl apply -k daemonset")
    for each in sets:
        status, name = each.get("status", {}), each["metadata"]["name"]
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if wanted == 0:
            text = f"{name} runs on no node"
            yield Check("agents", "problem", text, "agent.nodeSelector, agent.tolerations")
        elif ready < wanted:
            text = f"{name}: {ready} of {wanted} agents are ready"
            help = f"kubectl -n {seen.namespace} get pods -o wide; {_first_why(seen)}"
            yield Check("agents", "problem", text, help)
        else:
            yield Check("agents", "ok", f"{name}: {ready} agents, all ready")
    for agent in seen.agents:
        yield from _agent(agent)


def _first_why(seen: Seen) -> str:
    whys = ((each.name, why_not_ready(each.pod)) for each in seen.agents)
    return next(
        (f"{name}: {why}" for name, why in whys if why),
        f"kubectl -n {seen.namespace} describe daemonset",
    )


def _agent(agent: Process) -> Iterator[Check]:
    node = agent.pod["spec"].get("nodeName", "no node")
    for labels, up in agent.values("lineside_agent_stream_up"):
        if not up:
            text = f"the agent on {node} has no stream to coordinator {labels.get('coordinator')}"
            help = f"kubectl logs {agent.name}: address, certificate or token"
            yield Check("stream", "problem", text, help)
    for labels, value in agent.values("lineside_agent_events_state"):
        if value and labels.get("state") in ("connecting", "unusable"):
            text = f"the agent on {node} gets no events of engine {labels.get('engine')}"
            help = "its --kv-events-config, and a NetworkPolicy that lets agents to that port"
            yield Check("events", "problem", f"{text}: {labels['state']}", help)
    for _, up in agent.values("lineside_agent_pod_resources_up"):
        if not up:
            text = f"the agent on {node} cannot ask its kubelet which GPUs serve which engine"
            help = f"kubectl logs {agent.name} says why; agent.gpu.podResources, podResourcesDir"
            yield Check("gpu", "warning", text, help)
    for labels, value in agent.values("lineside_gpu_lost"):
        if value:
            text = f"GPU {labels.get('uuid') or labels.get('gpu')} on {node} fell off the bus"
            yield Check("gpu", "problem", text, "drain the node and restart it")


def _releases(seen: Seen, release: str) -> Iterator[Check]:
    """Say who is more than one release apart: one apart is what an update looks like."""
    found = {
        said: each.name for each in (*seen.coordinators, *seen.agents) if (said := release_of(each))
    }
    numbers = {said: number for said in found if (number := _minor(said)) is not None}
    if not numbers:
        return
    oldest, newest = min(numbers, key=numbers.__getitem__), max(numbers, key=numbers.__getitem__)
    spread = numbers[newest] - numbers[oldest]
    if spread > 1:
        text = f"{found[oldest]} is of release {oldest}, {found[newest]} of {newest}"
        help = "coordinators and agents work together one release apart: finish the update"
        yield Check("releases", "problem", text, help)
    elif len(found) > 1:
        text = f"releases {oldest} and {newest} run beside each other, as in an update"
        yield Check("releases", "note", text)
    else:
        yield Check("releases", "ok", f"coordinators and agents are of release {oldest}")
    if (mine := _minor(release)) is not None and abs(mine - numbers[newest]) > 1:
        text = f"this command is of release {release}, the cluster runs {newest}"
        yield Check("command", "warning", text, "use the command of the cluster's release")


def release_of(process: Process) -> str:
    """Return what a process says it is; else what its pod is labelled."""
    for labels, _ in process.values("lineside_build_info"):
        return str(labels.get("version", ""))
    labels = process.pod["metadata"].get("labels", {})
    return str(labels.get("app.kubernetes.io/version", ""))


def _minor(release: str) -> int | None:
    """Return a release as a number that rises by one with each minor release."""
    parts = release.lstrip("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]) * 1000 + int(parts[1])


def _clocks(processes: Sequence[Process]) -> Iterator[Check]:
    """Compare the clocks of nodes. Each is known to lie between two of our own moments."""
    known: list[tuple[float, float, str]] = []
    for each in processes:
        for _, said in each.values("lineside_clock_seconds")[:1]:
            asked, answered = each.at
            known.append((said - answered, said - asked, each.name))
    if len(known) < 2:
        return
    latest, earliest = max(known), min(known, key=lambda each: each[1])
    apart = latest[0] - earliest[1]  # at least
    if apart > SKEW_S:
        level: Level = "problem" if apart > BAD_SKEW_S else "warning"
        text = f"the clock of {latest[2]}'s node is {apart:.1f} s before that of {earliest[2]}'s"
        yield Check("clocks", level, text, "let nodes follow one time server (chrony)")
    else:
        yield Check("clocks", "ok", f"clocks of {len(known)} processes agree to {SKEW_S:g} s")


def _worker_sets(seen: Seen) -> Iterator[Check]:
    reads = seen.config.kubernetes if seen.config is not None else None
    chosen = {(each.pod["metadata"]["namespace"], each.worker_set) for each in seen.servers}
    for each in seen.worker_sets:
        namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
        of = f"worker set {namespace}/{name}"
        if reads is not None and not reads.is_on:
            text = f"no coordinator reads {of}: they go by their settings alone"
            yield Check("read", "problem", text, "coordinator.kubernetes.enabled")
        elif reads is not None and not {namespace, EVERY} & {*reads.namespaces}:
            text = f"no coordinator reads {of}: its namespace is none of theirs"
            yield Check("read", "problem", text, "coordinator.kubernetes.namespaces")
        elif each.get("spec", {}).get("selector") and (namespace, name) not in chosen:
            text = f"{of} selects no pod: it has no engines"
            help = f"kubectl -n {namespace} get pods --show-labels"
            yield Check("selects", "problem", text, help)


# --- network, rights, certificates ------------------------------------------------------------


def _network(seen: Seen) -> Iterator[Check]:
    if seen.policies is None:
        return
    for what, processes in (("coordinators", seen.coordinators), ("agents", seen.agents)):
        if processes and not any(selects(each, processes[0].pod) for each in seen.policies):
            text = f"no NetworkPolicy is about the {what}: whoever is in the cluster reaches them"
            yield Check("policies", "warning", text, "networkPolicies.enabled")
        elif processes:
            yield Check("policies", "ok", f"a NetworkPolicy is about the {what}")
    if seen.policies:
        text = "whether the cluster's network enforces its policies cannot be seen from here"
        yield Check("enforced", "note", text)


def _rights(seen: Seen) -> Iterator[Check]:
    lacking, too_much = [], []
    for (account, need), allowed in sorted(seen.rights.items(), key=lambda each: str(each[0])):
        if need in TOO_MUCH and allowed:
            too_much.append(f"{account} may {need}: {need.why}")
        elif need not in TOO_MUCH and not allowed:
            lacking.append((account, need))
    for account, need in lacking:
        text = f"{account} may not {need}: {need.why}"
        yield Check("lacking", "problem", text, "the chart's role grants it: helm upgrade")
    for text in too_much:
        yield Check("too_much", "warning", text, "take that role binding away")
    if seen.rights and not lacking and not too_much:
        asks = any(asks_api(each.pod) for each in seen.coordinators)
        text = "coordinators may do what they need" if asks else "coordinators may do nothing"
        yield Check("rights", "ok", f"{text} in the cluster, and no more; agents nothing")


def _certificates(seen: Seen, now: datetime) -> Iterator[Check]:
    for name, text in seen.certificates.items():
        ends = ends_of(text)
        if ends is None:
            yield Check("unreadable", "problem", f"{name} holds no certificate that can be read")
            continue
        day = f"{ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        help = "renew it: cert-manager does so by itself, else lineside certs"
        if ends <= now:
            yield Check("expired", "problem", f"{name} ended at {day}", help)
        elif ends - now < SOON:
            yield Check("expires", "warning", f"{name} ends at {day}", help)
        else:
            yield Check("certificate", "ok", f"{name} holds until {day}")
