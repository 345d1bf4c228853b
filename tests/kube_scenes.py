"""A scripted API server, and what a healthy cluster answers; tests change one thing of it.

Then what the doctor says of it.
"""

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cli.examination import Report
from cli.kube.api import Answer
from cli.kube.judge import judged
from cli.kube.look import look
from policies.crd import GROUP, definitions

CASES = Path(__file__).parent / "cases"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
NS = "lineside"
CORE = f"/api/v1/namespaces/{NS}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETS = f"/apis/{GROUP}/v1alpha1/inferenceworkersets"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ENGINE = f"{CORE}/pods/vllm-a-0:8000/proxy"
COORDINATOR = f"{CORE}/pods/lineside-coordinator-0:9090/proxy"
AGENT = f"{CORE}/pods/lineside-agent-0:9091/proxy"

EVENTS = (
    '--kv-events-config={"enable_kv_cache_events": true, "publisher": "zmq",'
    ' "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
)
ARGS = ["--model=m", "--enable-prefix-caching", "--enable-prompt-tokens-details", EVENTS]


class Scripted:
    """Answers from a table; what is not in it is a 404."""

    def __init__(self, answers: Mapping[str, Answer | Any], allowed: set[str]) -> None:
        self.answers = {
            path: each if isinstance(each, Answer) else Answer(200, each, (100.0, 100.1))
            for path, each in answers.items()
        }
        self.allowed = allowed
        """As `account verb resource.group`."""
        self.reviews_status = 201
        self.asked: list[str] = []

    async def get(self, path: str, query: Mapping[str, str] = {}) -> Answer:
        self.asked.append(path)
        return copy.deepcopy(self.answers.get(path, Answer(404)))

    async def review(self, path: str, body: Mapping[str, Any]) -> Answer:
        assert path == REVIEWS
        spec = body["spec"]
        what = spec["resourceAttributes"]
        account = spec["user"].rpartition(":")[2]
        below = f"/{what['subresource']}" if what["subresource"] else ""
        of = f".{what['group']}" if what["group"] else ""
        said = f"{account} {what['verb']} {what['resource']}{below}{of}"
        return Answer(self.reviews_status, {"status": {"allowed": said in self.allowed}})


def listed(*items: Any) -> dict[str, Any]:
    """Return a list as the API server has it."""
    return {"kind": "List", "items": list(items)}


def pod(
    name: str,
    component: str = "",
    *,
    containers: list[Any] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str = "node-a",
    ready: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod; with a component, one of ours."""
    ours = {
        "app.kubernetes.io/part-of": "lineside",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": "0.1.0",
    }
    return {
        "metadata": {
            "name": name,
            "namespace": NS,
            "labels": {**(ours if component else {}), **(labels or {})},
        },
        "spec": {
            "nodeName": node,
            "containers": containers or [{"name": "c", "image": "i"}],
            "serviceAccountName": f"lineside-{component}" if component else "default",
            "automountServiceAccountToken": False,
            **spec,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def vllm(*args: str, **more: Any) -> dict[str, Any]:
    """Return an engine's pod."""
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": list(args or ARGS),
    }
    return pod("vllm-a-0", containers=[container], labels={"app": "vllm"}, **more)


def definition(**change: Any) -> list[dict[str, Any]]:
    """Return our definitions as an API server has taken them."""
    established = {"conditions": [{"type": "Established", "status": "True"}]}
    return [{**each, "status": established, **change} for each in _DEFINITIONS]


_DEFINITIONS = list(definitions())


def daemonset(wanted: int = 1, ready: int = 1) -> dict[str, Any]:
    """Return the agents' DaemonSet."""
    meta = {"name": "lineside-agent", "labels": {"app.kubernetes.io/part-of": "lineside"}}
    status = {"desiredNumberScheduled": wanted, "numberReady": ready}
    return {"metadata": meta, "status": status}


def policy(name: str, labels: Mapping[str, str], *rules: Any) -> dict[str, Any]:
    """Return a NetworkPolicy."""
    spec = {"podSelector": {"matchLabels": dict(labels)}, "ingress": list(rules)}
    return {"metadata": {"name": name, "namespace": NS}, "spec": spec}


def component(name: str) -> dict[str, str]:
    """Return the label of a part of ours."""
    return {"app.kubernetes.io/component": name}


AGENTS_ALONE = {
    "ports": [{"port": 5557}, {"port": 5558}],
    "from": [{"podSelector": {"matchLabels": component("agent")}}],
}
BOTH = {
    "ports": [{"port": 8000}],
    "from": [
        {"podSelector": {"matchLabels": component("agent")}},
        {"podSelector": {"matchLabels": component("coordinator")}},
    ],
}


def metrics(*lines: str, release: str = "0.1.0", clock: float = 100.05) -> str:
    """Return a page of one of our processes."""
    always = (f'lineside_build_info{{version="{release}"}} 1', f"lineside_clock_seconds {clock}")
    return "".join(f"{line}\n" for line in (*always, *lines))


def healthy() -> dict[str, Any]:
    """Return what a cluster answers that lacks nothing."""
    pods = [
        pod("lineside-coordinator-0", "coordinator"),
        pod("lineside-coordinator-1", "coordinator", node="node-b"),
        pod("lineside-agent-0", "agent"),
        vllm(),
    ]
    idle = (CASES / "metrics" / "idle.txt").read_text()
    ready = {"ready": True, "reasons": [], "degraded": []}
    other = f"{CORE}/pods/lineside-coordinator-1:9090/proxy"
    return {
        "/version": {"gitVersion": "v1.35.2"},
        CRDS: listed(*definition()),
        SETS: listed(
            {
                "metadata": {"name": "glm", "namespace": NS},
                "spec": {"selector": {"app": "vllm"}},
            }
        ),
        f"{CORE}/pods": listed(*pods),
        POLICIES: listed(
            policy("c", component("coordinator")),
            policy("a", component("agent")),
            policy("e", {"app": "vllm"}, AGENTS_ALONE, BOTH),
        ),
        f"/apis/apps/v1/namespaces/{NS}/deployments": listed(),
        f"/apis/apps/v1/namespaces/{NS}/daemonsets": listed(daemonset()),
        f"{COORDINATOR}/metrics": metrics(),
        f"{COORDINATOR}/readyz": ready,
        f"{other}/metrics": metrics(),
        f"{other}/readyz": ready,
        f"{AGENT}/metrics": metrics('lineside_agent_stream_up{coordinator="c"} 1'),
        f"{ENGINE}/metrics": idle,
        f"{ENGINE}/version": {"version": "0.32.0"},
        f"{ENGINE}/kv_event_sources": {
            "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "publisher": "zmq"}
        },
    }


def soon(days: float) -> datetime:
    """Return a moment so many days from now."""
    return NOW + timedelta(days=days)


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


async def one_thing_wrong(
    change: Callable[[dict[str, Any]], None], part: str, level: str, words: str, help: str
) -> None:
    """Assert that of this change alone the doctor says this; without a level, nothing."""
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
