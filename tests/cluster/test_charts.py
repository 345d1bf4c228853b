"""The charts through two releases of Helm, and what they make against those of Kubernetes."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config import AgentConfig
from coordinator.config import Config
from coordinator.kube.pods import gateway_pool_of
from lineside.settings import read
from policies.lint import lint
from policies.load import load
from tests.chart_cases import GOOD, REFUSED
from tests.cluster.servers import MERGE, Api
from tests.generators import manifests

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
CHARTS = ROOT / "deploy" / "charts"
GENERATE = manifests()
HELMS = ("helm", "helm3")
SUPPORTED = [f"1.{minor}" for minor in range(25, 38)]
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "Certificate"}
"""Kinds whose schemas are not Kubernetes' own."""

CHECK = """\
import json, sys
import kubernetes_validate
documents, versions = json.load(sys.stdin)
wrong = []
for version in versions:
    for each in documents:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{version} {each['kind']}: {error.message[:300]}")
print(json.dumps(wrong))
"""


def template(
    tools: Path, folder: Path, values: Any, helm: str = "helm"
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    words = ("template", "lineside", CHARTS / "lineside", "-n", "inference", "-f", file)
    return subprocess.run((tools / helm, *words), capture_output=True, text=True)


def made(tools: Path, folder: Path, values: Any, helm: str = "helm") -> list[Any]:
    done = template(tools, folder, values, helm)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", ["lineside", "lineside-crds"])
def test_a_chart_lints(tools: Path, helm: str, chart: str) -> None:
    done = subprocess.run(
        (tools / helm, "lint", "--strict", CHARTS / chart), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_plain_manifests_are_the_rendered_ones(tools: Path) -> None:
    stale = [path.name for path, text in GENERATE.plain(tools / "helm") if path.read_text() != text]
    assert stale == [], "run `make manifests`"


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_both_releases_of_helm_make_the_same(tools: Path, tmp_path: Path, values: Any) -> None:
    def key(each: Any) -> tuple[str, str]:
        return each["kind"], each["metadata"]["name"]

    by_4, by_3 = (sorted(made(tools, tmp_path, values, helm), key=key) for helm in HELMS)
    assert by_4 == by_3


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_what_is_made_fits_every_release_of_kubernetes(
    tools: Path, tmp_path: Path, values: Any
) -> None:
    documents = [each for each in made(tools, tmp_path, values) if each["kind"] not in FOREIGN]
    assert wrong(tools, documents) == []


def test_the_definitions_fit_every_release_of_kubernetes(tools: Path) -> None:
    done = subprocess.run(
        (tools / "helm", "template", "crds", CHARTS / "lineside-crds"),
        capture_output=True,
        text=True,
        check=True,
    )
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len(documents) == 5
    assert all("helm.sh/resource-policy" in each["metadata"]["annotations"] for each in documents)
    assert wrong(tools, documents) == []


def test_the_schemas_find_what_is_wrong(tools: Path) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"prots": []},
    }
    assert len(wrong(tools, [service])) == len(SUPPORTED)


def wrong(tools: Path, documents: list[Any]) -> list[str]:
    done = subprocess.run(
        (tools / "validate" / "bin" / "python", "-W", "ignore", "-c", CHECK),
        input=json.dumps([documents, SUPPORTED]),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_processes_take_what_the_chart_writes(tools: Path, tmp_path: Path, values: Any) -> None:
    documents = made(tools, tmp_path, values)
    files = dict(_files(documents))
    coordinator = read(Config, files["coordinator.yaml"].encode(), "coordinator.yaml")
    assert isinstance(coordinator, Config), coordinator
    if "agent.yaml" in files:
        agent = read(AgentConfig, files["agent.yaml"].encode(), "agent.yaml")
        assert isinstance(agent, AgentConfig), agent
    for pod in _pods(documents):
        mounted = [mount["mountPath"] for c in pod["containers"] for mount in c["volumeMounts"]]
        named = {volume["name"] for volume in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == named
        assert len(set(mounted)) == len(mounted)
    for path in _paths(json.loads(json.dumps(yaml.safe_load(files["coordinator.yaml"])))):
        assert any(path.startswith(f"{mount}/") or path == mount for mount in _mounts(documents)), (
            path
        )


def test_the_examples_are_taken(tools: Path, tmp_path: Path) -> None:
    examples = ROOT / "deploy" / "examples"
    servers = list(yaml.safe_load_all((examples / "vllm.yaml").read_text()))
    assert wrong(tools, servers) == []
    values = [
        yaml.safe_load((examples / f"{n}.yaml").read_text()) for n in ("values", "gateway-values")
    ]
    together = {
        **values[0],
        "coordinator": values[1]["coordinator"],
        "networkPolicies": {
            **values[1]["networkPolicies"],
            "engines": {
                **values[0]["networkPolicies"]["engines"],
                **values[1]["networkPolicies"]["engines"],
            },
        },
    }
    for said in (values[0], together):
        documents = made(tools, tmp_path, said)
        assert wrong(tools, documents) == []
        files = dict(_files(documents))
        coordinator = read(Config, files["coordinator.yaml"].encode(), "coordinator.yaml")
        assert isinstance(coordinator, Config), coordinator
    assert coordinator.route == "0.0.0.0:9002"
    (service,) = (
        each
        for each in documents
        if each["kind"] == "Service" and each["metadata"]["name"] == "lineside"
    )
    assert 9002 in [port["port"] for port in service["spec"]["ports"]]


def test_the_example_s_resources_have_no_finding() -> None:
    text = (ROOT / "deploy" / "examples" / "resources.yaml").read_bytes()
    resources = load([("resources.yaml", text)])
    assert resources.findings == () and lint(resources.resources) == []
    (servers,) = yaml.safe_load_all((ROOT / "deploy" / "examples" / "vllm.yaml").read_text())
    chosen = next(each for each in yaml.safe_load_all(text) if each["kind"] == "InferenceWorkerSet")
    labels = servers["spec"]["template"]["metadata"]["labels"]
    assert chosen["spec"]["selector"].items() <= labels.items()


def test_what_is_others_kind_fits_their_schemas(tools: Path, tmp_path: Path) -> None:
    documents = [
        each
        for values in (*GOOD.values(), {"monitoring": {"enabled": True}})
        for each in made(tools, tmp_path, values)
        if each["kind"] in FOREIGN
    ]
    gateway = (ROOT / "deploy" / "examples" / "gateway.yaml").read_text()
    documents += [each for each in yaml.safe_load_all(gateway) if each["kind"] != "InferencePool"]
    assert {each["kind"] for each in documents} == FOREIGN | {"Gateway", "HTTPRoute"}
    assert foreign_wrong(tools, documents) == []
    (route,) = (each for each in documents if each["kind"] == "HTTPRoute")
    route["spec"]["rules"][0]["timeouts"]["request"] = "for ever"
    route["spec"]["rules"][0]["backendRefz"] = []
    assert len(foreign_wrong(tools, [route])) == 2


def foreign_wrong(tools: Path, documents: list[Any]) -> list[str]:
    """Return what is wrong with resources of the Gateway API, cert-manager and the operator."""
    done = subprocess.run(
        ("node", Path(__file__).with_name("foreign.mjs"), tools / "foreign" / "node_modules"),
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


POOL = {
    "selector": {"matchLabels"},
    "targetPorts": {"number"},
    "endpointPickerRef": {"name", "port", "failureMode", "group", "kind"},
    "appProtocol": set(),
}
"""What an `InferencePool` of the Inference Extension has, v1; no package has its schema."""


def test_the_example_s_pool_is_one_of_the_inference_extension() -> None:
    gateway = (ROOT / "deploy" / "examples" / "gateway.yaml").read_text()
    (pool,) = (each for each in yaml.safe_load_all(gateway) if each["kind"] == "InferencePool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    spec = pool["spec"]
    assert spec.keys() <= POOL.keys() and {"selector", "targetPorts"} <= spec.keys()
    assert spec["selector"].keys() == {"matchLabels"}
    assert all(each.keys() == {"number"} for each in spec["targetPorts"])
    picker = spec["endpointPickerRef"]
    assert picker.keys() <= POOL["endpointPickerRef"]
    assert (picker["name"], picker["port"]) == ("lineside", {"number": 9002})
    assert picker["failureMode"] in ("FailOpen", "FailClose")
    found = gateway_pool_of(pool)
    assert found is not None and found.http == (8000,)


def _files(documents: list[Any]) -> Iterator[tuple[str, str]]:
    for each in documents:
        if each["kind"] == "ConfigMap":
            yield from each["data"].items()


def _pods(documents: list[Any]) -> Iterator[Any]:
    for each in documents:
        if each["kind"] in ("Deployment", "DaemonSet"):
            yield each["spec"]["template"]["spec"]


def _mounts(documents: list[Any]) -> set[str]:
    return {
        mount["mountPath"]
        for pod in _pods(documents)
        for container in pod["containers"]
        for mount in container["volumeMounts"]
    }


def _paths(value: Any) -> Iterator[str]:
    """Yield every path of a file in a configuration."""
    if isinstance(value, str):
        path = value.removeprefix("sqlite:")
        if path.startswith("/"):
            yield path
    elif isinstance(value, list):
        for each in value:
            yield from _paths(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _paths(each)


def test_definitions_of_another_product_are_not_overwritten(tools: Path, api: Api) -> None:
    def rendered(chart: str, *options: str) -> str:
        words = ("--dry-run=server", "--kubeconfig", str(api.kubeconfig), *options)
        command = (str(tools / "helm"), "template", "c", str(CHARTS / chart), *words)
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    (ours, *_) = (yaml.safe_load(text) for path, text in GENERATE.crds() if path.name[0] == "g")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    of_ours = f"{path}/{ours['metadata']['name']}"
    try:
        api.ask("DELETE", of_ours)
        del ours["metadata"]["labels"]
        until_made(api, path, ours)
        said = f"{ours['metadata']['name']} is there already and is not Lineside's"
        assert said in rendered("lineside-crds") and said in rendered("lineside")
        assert said not in rendered("lineside", "--set", "coordinator.kubernetes.enabled=false")
        asked_for = rendered("lineside-crds", "--set", "replaceForeign=true")
        assert said not in asked_for and "invalid ownership metadata" in asked_for  # Helm's own
        label = {"metadata": {"labels": {"app.kubernetes.io/part-of": "lineside"}}}
        assert api.ask("PATCH", of_ours, label, MERGE).status == 200
        assert said not in rendered("lineside-crds") and said not in rendered("lineside")
    finally:
        api.ask("DELETE", of_ours)


def until_made(api: Api, path: str, document: Any) -> None:
    """Create a definition, once an earlier one of its name has gone."""
    until = time.monotonic() + 20
    while (answer := api.ask("POST", path, document)).status != 201:
        assert time.monotonic() < until, answer.message
        time.sleep(0.2)


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(
    tools: Path, tmp_path: Path, helm: str, values: Any, words: str
) -> None:
    done = template(tools, tmp_path, values, helm)
    assert done.returncode != 0 and words in done.stderr, done.stderr


def test_the_overlay_of_the_plain_agent_is_what_the_chart_makes(
    tools: Path, tmp_path: Path
) -> None:
    overlay = ROOT / "deploy" / "examples" / "pod-resources"
    words = (tools / "kubectl", "kustomize", overlay)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    plain = list(yaml.safe_load_all(done.stdout))
    assert wrong(tools, plain) == []
    chart = made(tools, tmp_path, {"agent": {"gpu": {"podResources": True}}})
    ours, theirs = (
        next(pod for pod in _pods(documents) if pod["containers"][0]["name"] == "agent")
        for documents in (plain, chart)
    )
    socket = {each["name"]: each.get("value") for each in ours["containers"][0]["env"]}
    assert socket["LINESIDE_POD_RESOURCES"] in dict(_files(chart))["agent.yaml"]
    for said in (ours, theirs):
        said["volumes"].sort(key=lambda each: each["name"])
        said["containers"][0]["volumeMounts"].sort(key=lambda each: each["name"])
    assert ours["securityContext"] == theirs["securityContext"]
    assert ours["volumes"] == theirs["volumes"]
    assert ours["containers"][0]["volumeMounts"] == theirs["containers"][0]["volumeMounts"]
