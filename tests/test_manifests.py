"""The plain manifests and the chart's values, as committed; what needs Helm is in tests/cluster."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config import AgentConfig
from cli.kube.needs import of_coordinators
from coordinator.config import Config
from lineside.schema import settings_of
from lineside.settings import read
from policies.crd import NAMINGS
from tests.generators import manifests

ROOT = Path(__file__).parent.parent
GENERATE = manifests()
CHART = ROOT / "deploy" / "charts" / "lineside"
RENDERED = [
    ROOT / "deploy" / "coordinator.yaml",
    ROOT / "deploy" / "monitoring" / "coordinator.yaml",
    ROOT / "daemonset" / "agent.yaml",
    ROOT / "daemonset" / "monitoring" / "agent.yaml",
]
SETTINGS: dict[str, Any] = {"coordinator": Config, "agent": AgentConfig}


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def pods() -> Iterator[tuple[str, Any]]:
    """Yield each component with its pod template's spec."""
    for path, component in ((RENDERED[0], "coordinator"), (RENDERED[2], "agent")):
        for each in documents(path):
            if each["kind"] in ("Deployment", "DaemonSet"):
                yield component, each["spec"]["template"]["spec"]


PODS = dict(pods())


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_plain_manifests_are_of_this_chart(path: Path) -> None:
    head = f"{GENERATE.WRITTEN}{GENERATE.RENDERED}{GENERATE.chart_digest()}.\n"
    assert path.read_text().startswith(head), "run `make manifests`"


@pytest.mark.parametrize(
    ("path", "text"), list(GENERATE.bills()), ids=lambda e: getattr(e, "name", "")
)
def test_images_are_made_of_the_lock(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make manifests`"


@pytest.mark.parametrize("extra", ["agent", "coordinator"])
def test_an_image_holds_what_its_process_needs_and_no_more(extra: str) -> None:
    held = set(
        re.findall(r"^(\S+)==", (ROOT / "deploy/images" / f"{extra}.lock").read_text(), re.M)
    )
    other = {
        "agent": {"tokenizers", "fastokens", "jinja2"},
        "coordinator": {"pyzmq", "nvidia-ml-py"},
    }
    own = {"agent": {"pyzmq", "nvidia-ml-py"}, "coordinator": {"tokenizers", "jinja2", "botocore"}}
    assert own[extra] | {"grpcio", "msgspec", "aiohttp"} <= held
    assert not held & (other[extra] | {"pytest", "rich", "mypy", "grpcio-tools"})


def test_a_kustomization_names_what_lies_beside_it() -> None:
    for folder in (
        "deploy",
        "deploy/crds",
        "deploy/monitoring",
        "daemonset",
        "daemonset/monitoring",
    ):
        (said,) = documents(ROOT / folder / "kustomization.yaml")
        beside = {p.name for p in (ROOT / folder).glob("*.yaml")} - {"kustomization.yaml"}
        assert set(said["resources"]) == beside


@pytest.mark.parametrize("component", SETTINGS)
def test_a_process_takes_its_configuration(component: str) -> None:
    path = RENDERED[0] if component == "coordinator" else RENDERED[2]
    (said,) = (each["data"] for each in documents(path) if each["kind"] == "ConfigMap")
    ((name, text),) = said.items()
    environ = {each["name"]: "x" for each in PODS[component]["containers"][0]["env"]}
    config = read(SETTINGS[component], text.encode(), name, environ)
    assert isinstance(config, SETTINGS[component]), config
    ports = {str(each["containerPort"]) for each in PODS[component]["containers"][0]["ports"]}
    listening = {text.rpartition(":")[2] for text in _listeners(config)}
    assert listening == ports


def _listeners(config: Any) -> Iterator[str]:
    for name in ("http", "grpc", "admin", "route", "metrics"):
        if address := getattr(config, name, None):
            yield address


@pytest.mark.parametrize("component", SETTINGS)
def test_a_container_has_no_more_rights_than_it_needs(component: str) -> None:
    pod = PODS[component]
    assert pod["automountServiceAccountToken"] is (component == "coordinator")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"] and container["resources"]["limits"]


@pytest.mark.parametrize("component", SETTINGS)
def test_variables_are_settings(component: str) -> None:
    known = {setting.variable for setting in settings_of(SETTINGS[component])}
    env = [each["name"] for each in PODS[component]["containers"][0]["env"]]
    ours = {name for name in env if name.startswith("LINESIDE_")}
    assert ours and ours <= known


def test_a_coordinator_may_do_what_it_needs_and_no_more() -> None:
    made = [each for each in documents(RENDERED[0]) if each["kind"] in ("Role", "ClusterRole")]
    granted = {
        f"{verb} {resource}.{group}".rstrip(".")
        for role in made
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {str(need) for need in of_coordinators()}
    bound = [each for each in documents(RENDERED[0]) if each["kind"].endswith("RoleBinding")]
    account = {"kind": "ServiceAccount", "name": "lineside-coordinator", "namespace": "lineside"}
    assert [each["subjects"] for each in bound] == [[account], [account]]
    assert {each["roleRef"]["name"] for each in bound} == {
        each["metadata"]["name"] for each in made
    }
    agents = {each["kind"] for each in documents(RENDERED[2])}
    assert not [kind for kind in agents if "Role" in kind]


def test_the_chart_knows_every_kind() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for naming in NAMINGS.values():
        assert templates.count(f'"{naming.plural}"') == 1  # looked for before an installation


def test_there_is_time_to_drain() -> None:
    config = Config(transport="plaintext")
    stop = PODS["coordinator"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    needed = int(stop[1]) + config.drain_s + config.gateways.leave_s
    assert PODS["coordinator"]["terminationGracePeriodSeconds"] > needed


def test_the_metric_to_scale_by_exists() -> None:
    scaled = re.search(
        r"metric: \{ name: (\w+) \}", (CHART / "templates/coordinator.yaml").read_text()
    )
    assert scaled and f"`{scaled[1]}`" in (ROOT / "docs" / "operations.md").read_text()


def test_the_example_server_has_the_flags_that_the_readme_has() -> None:
    (server,) = documents(ROOT / "deploy" / "examples" / "vllm.yaml")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    flags = dict(flag.partition("=")[::2] for flag in container["args"])
    readme = (ROOT / "README.md").read_text()
    (asked,) = re.findall(r"vllm serve MODEL (.+?) \\\n +'(.+)'", readme)
    assert set(asked[0].split()) <= flags.keys()
    assert json.loads(flags["--kv-events-config"]) == json.loads(asked[1])


def test_the_example_server_keeps_nothing_in_a_home() -> None:
    (server,) = documents(ROOT / "deploy" / "examples" / "vllm.yaml")
    pod = server["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {env["HF_HOME"], "/dev/shm"}
    stop = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(stop[1])


def _values(node: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each value's path; free-form mappings are one value."""
    if isinstance(node, dict) and node and at not in FREE:
        for key, inner in node.items():
            yield from _values(inner, (*at, key))
    else:
        yield at


FREE = {("coordinator", "resourceRequests"), ("agent", "resourceRequests")}
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_every_value_has_its_meaning_above_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for path in _values(VALUES):
        pattern = re.compile(rf"^{'  ' * (len(path) - 1)}{path[-1]}:")
        found = [n for n, line in enumerate(lines) if pattern.match(line)]
        assert found and all(lines[n - 1].strip().startswith("#") for n in found), path


def test_the_page_of_values_is_the_generated_one_and_has_all_of_them() -> None:
    ((path, text),) = GENERATE.values()
    assert path.read_text() == text, "run `make manifests`"
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*)` \| (.+) \|$", text, re.M)
    leaves = {".".join(path) for path in _values(VALUES)} - GROUPS
    assert {path for path, *_ in rows} == leaves | {
        f"{group}.{part}" for group in GROUPS for part in ("requests", "limits")
    }
    for path, default, meaning in rows:
        value = VALUES
        for name in path.split("."):
            value = value[name]
        assert yaml.safe_load(default) == value, path
        assert meaning.endswith((".", ")")) or ":" in meaning, path


GROUPS = {"coordinator.resourceRequests", "agent.resourceRequests"}
"""Whose comments are about two lines below."""


def test_the_schema_knows_every_value_and_no_other() -> None:
    def known(schema: Any, node: Any, at: tuple[str, ...]) -> None:
        if schema.get("additionalProperties") is False:
            assert node.keys() == schema["properties"].keys() - {"global"}, at
            for key, inner in node.items():
                known(schema["properties"][key], inner, (*at, key))
        else:
            assert at in {path[: len(at)] for path in _values(VALUES)}

    known(SCHEMA, VALUES, ())
