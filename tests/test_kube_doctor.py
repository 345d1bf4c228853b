"""What the doctor says of a cluster: one that lacks nothing, and one thing wrong at a time.

Of engines, worker sets and networks in `test_kube_doctor_engines`, of rights and certificates in
`test_kube_doctor_rights`; how it looks is in `test_kube_doctor_looking`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from cli.kube.api import Answer
from cli.kube.judge import CRDS as INSTALL
from cli.kube.judge import judged
from cli.kube.look import look
from tests import kube_scenes as scenes
from tests.kube_scenes import (
    AGENT,
    COORDINATOR,
    CORE,
    CRDS,
    NOW,
    NS,
    POLICIES,
    Scripted,
    changed,
    definition,
    foreign,
    healthy,
    listed,
    metrics,
    older,
    one_thing_wrong,
    pod,
    pods,
    said_in,
    vllm,
    waiting,
)


async def test_a_cluster_that_lacks_nothing_has_nothing_against_it() -> None:
    api = Scripted(healthy(), set())
    reports = judged(await look(api, NS), "0.1.0", NOW)
    assert said_in(reports) == []
    assert [report.name for report in reports] == [
        "cluster",
        "definitions",
        "coordinators",
        "agents",
        "network",
        "rights",
        f"engine {NS}/vllm-a-0",
    ]
    assert [{**report.to_json(), "checks": ()} for report in (reports[0], reports[-1])] == [
        {"part": "cluster", "problems": 0, "checks": ()},
        {"part": f"engine {NS}/vllm-a-0", "reached": True, "problems": 0, "checks": ()},
    ]
    assert {check.code for check in reports[-1].checks} == {
        "answers",
        "block_size",
        "hashes",
        "events",
    }


PROBLEMS: dict[str, tuple[Callable[[dict[str, Any]], None], str, str, str, str]] = {
    "an old API server": (
        changed("/version", {"gitVersion": "v1.20.2"}),
        "cluster",
        "problem",
        "Kubernetes v1.20.2: definitions have rules in CEL, which it does not know",
        "use 1.25 or newer",
    ),
    "definitions of another product": (
        changed(CRDS, listed(*foreign())),
        "definitions",
        "problem",
        "another product has inferencepolicies.kinference.buoyant.io: it is not Lineside's",
        "--set replaceForeign=true --take-ownership",
    ),
    "no definitions": (
        changed(CRDS, listed()),
        "definitions",
        "problem",
        "not there: gatewaybackends.kinference.buoyant.io, inferencepolicies",
        INSTALL,
    ),
    "a definition that is not in force": (
        changed(CRDS, listed(*definition(status={"conditions": None}))),
        "definitions",
        "problem",
        "gatewaybackends.kinference.buoyant.io is not in force",
        "kubectl describe crd",
    ),
    "a definition of another release": (
        changed(CRDS, listed(*older())),
        "definitions",
        "warning",
        "inferencepolicies.kinference.buoyant.io is of another release than this command",
        INSTALL,
    ),
    "no coordinator": (
        changed(f"{CORE}/pods", listed(pod("lineside-agent-0", "agent"), vllm())),
        "coordinators",
        "problem",
        "no coordinator runs in lineside",
        "name its namespace with -n",
    ),
    "an image that cannot be pulled": (
        pods(waiting("lineside-coordinator-1", "coordinator", "ImagePullBackOff")),
        "coordinators",
        "problem",
        "lineside-coordinator-1 is not ready: coordinator waits: ImagePullBackOff",
        "kubectl -n lineside describe pod lineside-coordinator-1",
    ),
    "a coordinator that waits for engines": (
        changed(f"{COORDINATOR}/readyz", {"ready": False, "reasons": ["no engine can be reached"]}),
        "coordinators",
        "problem",
        "lineside-coordinator-0 is not ready: no engine can be reached",
        "",
    ),
    "what is served around": (
        changed(f"{COORDINATOR}/readyz", {"ready": True, "degraded": ["the store is away: x"]}),
        "coordinators",
        "warning",
        "lineside-coordinator-0: the store is away: x",
        "docs/operations.md",
    ),
    "a tokenizer that is not at hand": (
        changed(
            f"{COORDINATOR}/metrics",
            metrics('lineside_engine_tokenizer{engine="e",state="no_tokenizer"} 1'),
        ),
        "coordinators",
        "warning",
        "the tokenizer of engine e is not at hand",
        "coordinator.config.hub",
    ),
    "a tokenizer that is another one": (
        changed(
            f"{COORDINATOR}/metrics",
            metrics('lineside_engine_tokenizer{engine="e",state="different"} 1'),
        ),
        "coordinators",
        "warning",
        "engine e tokenizes otherwise",
        "name the one that the engine serves",
    ),
    "an agent two releases behind": (
        changed(f"{AGENT}/metrics", metrics(release="0.0.9")),
        "coordinators",
        "",
        "",
        "",
    ),
    "an agent two minor releases ahead": (
        changed(f"{AGENT}/metrics", metrics(release="0.3.0")),
        "coordinators",
        "problem",
        "of release 0.1.0, lineside-agent-0 of 0.3.0",
        "finish the update",
    ),
    "a clock that is fast": (
        changed(f"{AGENT}/metrics", metrics(clock=105.0)),
        "coordinators",
        "warning",
        "the clock of lineside-agent-0's node is 4.9 s before that of lineside-coordinator-",
        "chrony",
    ),
    "a clock that is far off": (
        changed(f"{AGENT}/metrics", metrics(clock=40.0)),
        "coordinators",
        "problem",
        "s before that of lineside-agent-0's",
        "chrony",
    ),
    "agents on no node": (
        changed(f"/apis/apps/v1/namespaces/{NS}/daemonsets", listed(scenes.daemonset(0, 0))),
        "agents",
        "problem",
        "lineside-agent runs on no node",
        "agent.nodeSelector",
    ),
    "agents that are not ready": (
        changed(f"/apis/apps/v1/namespaces/{NS}/daemonsets", listed(scenes.daemonset(2, 1))),
        "agents",
        "problem",
        "1 of 2 agents are ready",
        "kubectl -n lineside get pods",
    ),
    "no agents": (
        changed(f"/apis/apps/v1/namespaces/{NS}/daemonsets", listed()),
        "agents",
        "problem",
        "no agents are deployed",
        "kubectl apply -k daemonset",
    ),
    "an agent without a stream": (
        changed(f"{AGENT}/metrics", metrics('lineside_agent_stream_up{coordinator="c:9001"} 0')),
        "agents",
        "problem",
        "the agent on node-a has no stream to coordinator c:9001",
        "address, certificate or token",
    ),
    "an agent that hears nothing of an engine": (
        changed(
            f"{AGENT}/metrics",
            metrics('lineside_agent_events_state{engine="10.0.0.7:8000",state="connecting"} 1'),
        ),
        "agents",
        "problem",
        "the agent on node-a gets no events of engine 10.0.0.7:8000: connecting",
        "NetworkPolicy",
    ),
    "a kubelet that says nothing of GPUs": (
        changed(f"{AGENT}/metrics", metrics("lineside_agent_pod_resources_up 0")),
        "agents",
        "warning",
        "the agent on node-a cannot ask its kubelet which GPUs serve which engine",
        "agent.gpu.podResources",
    ),
    "a GPU that was lost": (
        changed(f"{AGENT}/metrics", metrics('lineside_gpu_lost{gpu="0",uuid="GPU-a"} 1')),
        "agents",
        "problem",
        "GPU GPU-a on node-a fell off the bus",
        "drain the node",
    ),
    "pods that may not be listed elsewhere": (
        changed(POLICIES, Answer(403)),
        "cluster",
        "warning",
        "could not look at NetworkPolicies: not allowed",
        "allow `list networkpolicies -A`",
    ),
    "processes that may not be asked": (
        changed(f"{COORDINATOR}/metrics", Answer(403)),
        "cluster",
        "warning",
        "could not look at what processes say of themselves: not allowed",
        "allow `get pods/proxy`",
    ),
    "an API server that answers something else": (
        changed("/version", "<html>"),
        "cluster",
        "",
        "",
        "",
    ),
    "an API server that fails": (
        changed(CRDS, Answer(500)),
        "cluster",
        "warning",
        "could not look at the definitions of kinds: the API server answers 500",
        "kubectl auth can-i list customresourcedefinitions",
    ),
}


@pytest.mark.parametrize(
    ("change", "part", "level", "words", "help"), PROBLEMS.values(), ids=PROBLEMS
)
async def test_what_is_wrong_is_said_with_what_to_do(
    change: Callable[[dict[str, Any]], None], part: str, level: str, words: str, help: str
) -> None:
    await one_thing_wrong(change, part, level, words, help)
