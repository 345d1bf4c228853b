"""What the doctor says of a cluster: one that lacks nothing, and one thing wrong at a time."""

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.checks import events_flag
from cli.examination import Report
from cli.kube.api import Answer
from cli.kube.judge import CRDS as INSTALL
from cli.kube.judge import judged
from cli.kube.look import look
from cli.kube.needs import of_coordinators
from tests import kube_scenes as scenes
from tests.kube_scenes import (
    AGENT,
    AGENTS_ALONE,
    ARGS,
    BOTH,
    COORDINATOR,
    CORE,
    CRDS,
    ENGINE,
    NOW,
    NS,
    POLICIES,
    SETS,
    Scripted,
    component,
    definition,
    healthy,
    listed,
    metrics,
    pod,
    policy,
    soon,
    vllm,
)

Said = list[tuple[str, str, str, str]]


async def examined(
    answers: dict[str, Any], allowed: set[str] | None = None, reviews: int = 201
) -> Said:
    """Return part, level, message and help of all that is not fine."""
    api = Scripted(answers, allowed or set())
    api.reviews_status = reviews
    reports = judged(await look(api, NS), "0.1.0", NOW)
    return said_in(reports)


def said_in(reports: list[Report]) -> Said:
    return [
        (report.name, check.level, check.message, check.help)
        for report in reports
        for check in report.checks
        if check.level not in ("ok", "note")
    ]


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


def changed(path: str, answer: Any) -> Callable[[dict[str, Any]], None]:
    def change(answers: dict[str, Any]) -> None:
        answers[path] = answer

    return change


def pods(*others: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Replace pods by name, or add them."""

    def change(answers: dict[str, Any]) -> None:
        named = {each["metadata"]["name"]: each for each in answers[f"{CORE}/pods"]["items"]}
        named |= {each["metadata"]["name"]: each for each in others}
        answers[f"{CORE}/pods"] = listed(*named.values())

    return change


def silent(*others: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """The same, and the engine does not answer: its command line alone counts."""

    def change(answers: dict[str, Any]) -> None:
        pods(*others)(answers)
        for path in [each for each in answers if each.startswith(ENGINE)]:
            del answers[path]

    return change


def without(flag: str) -> list[str]:
    return [each for each in ARGS if not each.startswith(flag)]


def foreign() -> list[dict[str, Any]]:
    theirs, *ours = definition()
    return [{**theirs, "metadata": {**theirs["metadata"], "labels": {}}}, *ours]


def older() -> list[dict[str, Any]]:
    first, *rest = definition()
    return [{**first, "metadata": {**first["metadata"], "annotations": {}}}, *rest]


READS = """\
transport: plaintext
kubernetes: { access: in-cluster, namespaces: [lineside, models] }
node_proof: service-account
service_accounts: { accounts: [lineside/lineside-agent] }
"""


def settings(text: str) -> dict[str, Any]:
    """A ConfigMap with a coordinator's settings."""
    return {"data": {"coordinator.yaml": text}}


def configured() -> dict[str, Any]:
    """A coordinator with a ConfigMap of settings."""
    volume = {"name": "config", "configMap": {"name": "settings"}}
    return pod("lineside-coordinator-0", "coordinator", volumes=[volume])


def waiting(name: str, part: str, reason: str) -> dict[str, Any]:
    made = pod(name, part, ready=False)
    made["status"]["phase"] = "Pending"
    made["status"]["containerStatuses"] = [
        {"name": "coordinator", "state": {"waiting": {"reason": reason}}}
    ]
    return made


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
    "a network that is open": (
        changed(POLICIES, listed(policy("e", {"app": "vllm"}, AGENTS_ALONE, BOTH))),
        "network",
        "warning",
        "no NetworkPolicy is about the coordinators",
        "networkPolicies.enabled",
    ),
    "events for everybody": (
        changed(
            POLICIES,
            listed(policy("c", component("coordinator")), policy("a", component("agent"))),
        ),
        "engine",
        "warning",
        "anybody in the cluster may read its KV events, which carry prompts' token ids",
        "networkPolicies.engines.selector",
    ),
    "events for nobody": (
        changed(
            POLICIES,
            listed(
                policy("c", component("coordinator")),
                policy("a", component("agent")),
                policy("e", {"app": "vllm"}, BOTH),
            ),
        ),
        "engine",
        "problem",
        "a NetworkPolicy keeps agents from its event ports",
        "let the agents' pods in",
    ),
    "an engine on a node without an agent": (
        pods(vllm(node="node-z")),
        "engine",
        "problem",
        "no agent runs on its node node-z",
        "agent.tolerations",
    ),
    "an engine that is not ready": (
        pods(vllm(ready=False)),
        "engine",
        "problem",
        "its pod is not ready: running",
        "kubectl -n lineside logs vllm-a-0",
    ),
    "GPUs that an agent cannot read": (
        lambda answers: (
            pods(vllm(*ARGS, runtimeClassName="x"))(answers),
            answers[f"{CORE}/pods"]["items"][-1]["spec"]["containers"][0].update(
                resources={"limits": {"nvidia.com/gpu": "1"}}
            ),
            answers.update({f"{AGENT}/metrics": metrics("lineside_gpu_available 0")}),
        ),
        "engine",
        "warning",
        "it has GPUs, and the agent on its node cannot read them",
        "agent.gpu.runtimeClass",
    ),
    "no prefix caching": (
        silent(vllm("--no-enable-prefix-caching", *without("--enable-prefix"))),
        "engine",
        "problem",
        "prefix caching is off",
        "add --enable-prefix-caching",
    ),
    "no prefix caching, says the engine": (
        changed(f"{ENGINE}/metrics", 'vllm:cache_config_info{enable_prefix_caching="False"} 1\n'),
        "engine",
        "problem",
        "prefix caching is off",
        "add --enable-prefix-caching",
    ),
    "blocks that do not fit": (
        silent(vllm("--block-size=8", *ARGS)),
        "engine",
        "problem",
        "its blocks have 8 tokens, which is no multiple of 16",
        "add --block-size 16",
    ),
    "no word on cached tokens": (
        pods(vllm(*without("--enable-prompt"))),
        "engine",
        "warning",
        "its answers do not say what was cached",
        "add --enable-prompt-tokens-details",
    ),
    "no statistics": (
        pods(vllm("--disable-log-stats", *ARGS)),
        "engine",
        "problem",
        "--disable-log-stats",
        "take --disable-log-stats away",
    ),
    "no events": (
        silent(vllm(*without("--kv"))),
        "engine",
        "problem",
        "KV events are off",
        f"add {events_flag()}",
    ),
    "no events, says the engine": (
        changed(f"{ENGINE}/kv_event_sources", {}),
        "engine",
        "problem",
        "KV events are off",
        f"add {events_flag()}",
    ),
    "events in no JSON": (
        silent(vllm("--kv-events-config={", *without("--kv"))),
        "engine",
        "problem",
        "--kv-events-config cannot be read: it is no JSON",
        "write --kv-events-config",
    ),
    "events on loopback": (
        silent(
            vllm(
                '--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:1"}',
                *without("--kv"),
            )
        ),
        "engine",
        "problem",
        "which only its own pod can reach",
        "publish to all",
    ),
    "events to one place": (
        silent(
            vllm(
                '--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://agent:1",'
                '"replay_endpoint":"tcp://*:2"}',
                *without("--kv"),
            )
        ),
        "engine",
        "warning",
        "its publisher connects to tcp://agent:1",
        "let it listen",
    ),
    "no replay": (
        changed(f"{ENGINE}/kv_event_sources", {"0": {"endpoint": "tcp://*:5557"}}),
        "engine",
        "warning",
        "it answers no replays",
        "add a `replay_endpoint`",
    ),
    "an old release": (
        changed(f"{ENGINE}/version", {"version": "0.9.2"}),
        "engine",
        "warning",
        "vLLM before 0.10 is not known",
        "use a newer release",
    ),
    "an HTTP port for everybody": (
        changed(
            POLICIES,
            listed(
                policy("c", component("coordinator")),
                policy("a", component("agent")),
                policy("e", {"app": "vllm"}, AGENTS_ALONE, {"ports": [{"port": 8000}]}),
            ),
        ),
        "engine",
        "warning",
        "anybody in the cluster may send it requests, past every policy and limit",
        "networkPolicies.engines.selector",
    ),
    "a key that coordinators do not know": (
        lambda answers: (
            pods(vllm("--api-key=k", *ARGS), configured())(answers),
            answers.update({f"{CORE}/configmaps/settings": settings(READS)}),
        ),
        "engine",
        "problem",
        "it asks for a key, and coordinators have none for pods that worker sets select",
        "coordinator.kubernetes.engineKeySecret",
    ),
    "a worker set that selects nothing": (
        changed(
            SETS,
            listed(
                {
                    "metadata": {"name": "glm", "namespace": NS},
                    "spec": {"selector": {"app": "other"}},
                }
            ),
        ),
        "worker sets",
        "problem",
        f"worker set {NS}/glm selects no pod",
        "--show-labels",
    ),
    "a worker set that nobody reads": (
        lambda answers: (
            pods(configured())(answers),
            answers.update({f"{CORE}/configmaps/settings": settings("transport: plaintext\n")}),
        ),
        "worker sets",
        "problem",
        f"no coordinator reads worker set {NS}/glm: they go by their settings alone",
        "coordinator.kubernetes.enabled",
    ),
    "a worker set elsewhere": (
        lambda answers: (
            pods(configured())(answers),
            answers.update(
                {
                    f"{CORE}/configmaps/settings": settings(
                        READS.replace("lineside, models", "models")
                    )
                }
            ),
        ),
        "worker sets",
        "problem",
        f"no coordinator reads worker set {NS}/glm: its namespace is none of theirs",
        "coordinator.kubernetes.namespaces",
    ),
    "no engines": (
        lambda answers: answers.update(
            {
                SETS: listed(),
                f"{CORE}/pods": listed(
                    *(
                        each
                        for each in answers[f"{CORE}/pods"]["items"]
                        if not each["metadata"]["name"].startswith("vllm")
                    )
                ),
            }
        ),
        "engines",
        "warning",
        "no pod runs vLLM here",
        "deploy/examples/vllm.yaml",
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
    answers = healthy()
    change(answers)
    found = await examined(answers)
    if not level:
        assert found == []
        return
    assert [
        each
        for each in found
        if each[0].startswith(part) and each[1] == level and words in each[2] and help in each[3]
    ], found


def asking() -> dict[str, Any]:
    """A cluster whose coordinators read their resources from the API server."""
    answers = healthy()
    change = {"automountServiceAccountToken": True}
    pods(pod("lineside-coordinator-0", "coordinator", **change))(answers)
    first = answers[f"{CORE}/pods"]["items"][0]
    assert first["spec"]["automountServiceAccountToken"] is True
    return answers


NEEDED = {f"lineside-coordinator {need}" for need in of_coordinators()}


async def test_rights_that_are_there_are_no_finding() -> None:
    assert await examined(asking(), NEEDED) == []


@pytest.mark.parametrize("need", sorted(of_coordinators()), ids=str)
async def test_a_right_that_lacks_is_named_with_what_does_not_work(need: Any) -> None:
    found = await examined(asking(), NEEDED - {f"lineside-coordinator {need}"})
    text = f"lineside-coordinator may not {need}: {need.why}"
    assert found == [("rights", "problem", text, "the chart's role grants it: helm upgrade")]


async def test_a_right_that_nobody_needs_is_named() -> None:
    assert await examined(healthy(), {"lineside-agent list secrets"}) == [
        (
            "rights",
            "warning",
            "lineside-agent may list secrets: whoever takes the process over reads every key",
            "take that role binding away",
        )
    ]


async def test_without_the_right_to_review_nothing_is_said_of_rights() -> None:
    found = await examined(asking(), set(), reviews=403)
    assert found == [
        (
            "cluster",
            "warning",
            "could not look at what our processes may do: not allowed",
            "allow `create subjectaccessreviews`",
        )
    ]


def certificate(ends: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(soon(-400))
        .not_valid_after(ends)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("ends", "level", "words"),
    [
        pytest.param(soon(90), "", "", id="far off"),
        pytest.param(soon(5), "warning", "tls/tls.crt ends at 2026-12-05 12:00 UTC", id="soon"),
        pytest.param(soon(-1), "problem", "tls/tls.crt ended at 2026-11-29 12:00 UTC", id="over"),
        pytest.param(None, "problem", "tls/tls.crt holds no certificate", id="no certificate"),
    ],
)
async def test_certificates_are_read_and_keys_are_not(
    ends: datetime | None, level: str, words: str
) -> None:
    answers = healthy()
    volume = {"name": "tls", "secret": {"secretName": "tls"}}
    pods(pod("lineside-coordinator-0", "coordinator", volumes=[volume]))(answers)
    text = certificate(ends) if ends else b"nothing"
    data = {"tls.crt": base64.b64encode(text).decode(), "tls.key": "bm90IHNob3du"}
    answers[f"{CORE}/secrets/tls"] = {"data": data}
    found = await examined(answers)
    if not level:
        assert found == []
    else:
        ((part, said, message, help),) = found
        assert (part, said) == ("certificates", level) and words in message
        assert "not shown" not in message + help


async def test_what_a_pod_does_not_say_itself_is_its_command_lines_word() -> None:
    answers = healthy()
    silent(vllm(ready=False))(answers)
    reports = judged(await look(Scripted(answers, set()), NS), "0.1.0", NOW)
    (events,) = (check for check in reports[-1].checks if check.code == "events")
    assert (events.level, events.message) == (
        "ok",
        "by its command line events are published at tcp://*:5557",
    )
    assert {**reports[-1].to_json(), "checks": ()} == {
        "part": f"engine {NS}/vllm-a-0",
        "reached": False,
        "problems": 1,
        "checks": (),
    }


async def test_engines_of_other_namespaces_are_found_by_their_worker_sets() -> None:
    answers = healthy()
    answers[SETS] = listed(
        {"metadata": {"name": "far", "namespace": "ml"}, "spec": {"selector": {"app": "vllm"}}}
    )
    far = vllm()
    far["metadata"] = {**far["metadata"], "namespace": "ml"}
    answers["/api/v1/namespaces/ml/pods"] = listed(far)
    seen = await look(Scripted(answers, set()), NS)
    assert [(server.name, server.worker_set) for server in seen.servers] == [
        (f"{NS}/vllm-a-0", ""),
        ("ml/vllm-a-0", "far"),
    ]


async def test_in_a_namespace_without_lineside_it_is_said_where_it_runs() -> None:
    answers = healthy() | {"/api/v1/namespaces/nowhere/pods": listed()}
    reports = judged(await look(Scripted(answers, set()), "nowhere"), "0.1.0", NOW)
    (found,) = (each for each in said_in(reports) if each[0] == "coordinators")
    assert found[2:] == (
        "no coordinator runs in nowhere",
        "it runs in lineside: name that with -n",
    )
    assert "rights" not in [report.name for report in reports]


def without_lineside() -> dict[str, Any]:
    answers = healthy() | {CRDS: listed(), SETS: Answer(404), f"{CORE}/pods": listed(vllm())}
    return answers | {f"/apis/apps/v1/namespaces/{NS}/daemonsets": listed()}


async def test_before_it_is_installed_that_is_all_that_is_said_of_lineside() -> None:
    said = await examined(without_lineside())
    assert [each[:3] for each in said] == [
        ("coordinators", "problem", "Lineside is not installed in lineside")
    ]
    assert "helm upgrade --install lineside deploy/charts/lineside -n lineside" in said[0][3]
    reports = judged(await look(Scripted(without_lineside(), set()), NS), "0.1.0", NOW)
    assert [each.name for each in reports] == ["cluster", "coordinators", f"engine {NS}/vllm-a-0"]


async def test_what_cannot_be_seen_is_not_said_to_be_absent() -> None:
    hidden = {f"/apis/apps/v1/namespaces/{NS}/daemonsets": Answer(403)}
    said = await examined(without_lineside() | hidden)
    assert "Lineside is not installed in lineside" not in [each[2] for each in said]
    assert "no coordinator runs in lineside" in [each[2] for each in said]


class Paged(Scripted):
    """Hands out a list of pods one at a time."""

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        answer = await super().get(path, query)
        if path != f"{CORE}/pods":
            return answer
        assert query["limit"] == "500"
        at = int(query.get("continue") or 0)
        rest = str(at + 1) if at + 1 < len(answer.items) else ""
        body = {"metadata": {"continue": rest}, "items": answer.items[at : at + 1]}
        return Answer(200, body, answer.at)


async def test_lists_are_read_in_parts() -> None:
    api, whole = Paged(healthy(), set()), Scripted(healthy(), set())
    assert judged(await look(api, NS), "0.1.0", NOW) == judged(await look(whole, NS), "0.1.0", NOW)
    assert api.asked.count(f"{CORE}/pods") == len(healthy()[f"{CORE}/pods"]["items"]) > 1


async def test_of_a_list_that_does_not_end_the_first_members_are_looked_at() -> None:
    answers = healthy()
    answers[f"{CORE}/pods"] |= {"metadata": {"continue": "more"}}
    seen = await look(Scripted(answers, set()), NS)
    assert [(each.what, each.is_cut) for each in seen.blinds] == [(f"pods of {NS}", True)]
    assert (
        "cluster",
        "warning",
        f"of pods of {NS} the first ones alone were looked at",
    ) in [each[:3] for each in said_in(judged(seen, "0.1.0", NOW))]


ODD: list[Any] = [
    None,
    "a pod",
    {},
    {"metadata": {"name": "no-namespace"}, "spec": {"containers": [{"name": "c"}]}},
    {"metadata": {"name": "none", "namespace": NS}, "spec": {"containers": []}},
    {"metadata": {"name": "n", "namespace": NS, "labels": ["l"]}, "spec": {"containers": [{}]}},
]


@pytest.mark.parametrize(
    ("path", "what", "odd"),
    [
        (f"{CORE}/pods", f"pods of {NS}", ODD),
        (SETS, "worker sets", [*ODD[:4], {"metadata": {"name": "s", "namespace": NS}, "spec": 1}]),
        (POLICIES, "NetworkPolicies", ODD[:4]),
        (CRDS, "the definitions of kinds", ODD[:3]),
    ],
)
async def test_objects_that_are_odd_are_left_out_and_counted(
    path: str, what: str, odd: list[Any]
) -> None:
    answers = healthy()
    answers[path]["items"] += odd
    found = await examined(answers)
    text = f"{len(odd)} of {what} are not what such objects are, and left out"
    assert [each[:3] for each in found] == [("cluster", "warning", text)]


async def test_what_is_null_is_not_there() -> None:
    answers = healthy()
    for each in answers[f"{CORE}/pods"]["items"]:
        each["metadata"]["annotations"] = each["spec"]["volumes"] = None
    assert not (await look(Scripted(answers, set()), NS)).blinds


async def test_processes_are_asked_at_the_ports_that_their_pods_name() -> None:
    answers = healthy()
    (ours,) = (
        each
        for each in answers[f"{CORE}/pods"]["items"]
        if each["metadata"]["name"] == "lineside-agent-0"
    )
    ours["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 7001}]
    api = Scripted(answers, set())
    await look(api, NS)
    assert [path for path in api.asked if "lineside-agent-0" in path] == [
        f"{CORE}/pods/lineside-agent-0:7001/proxy/metrics"
    ]
