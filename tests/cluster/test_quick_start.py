"""The guide's quick start, command by command, in a small cluster and on a current API server."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.crd import definitions
from tests.cluster.quick_start import GUIDE, ROOT, WAYS, commands, readme_commands
from tests.cluster.servers import Api
from tests.cluster.test_doctor import parts_of
from tests.cluster.test_pods import without_rules
from tests.cluster.whole import NODES, Whole, until, whole_cluster

pytestmark = pytest.mark.cluster

COMMANDS = commands(GUIDE.read_text())

BEARABLE = """\
#!{python}
import sys, yaml
for each in yaml.safe_load_all(sys.stdin):
    if each and each["kind"] != "PodDisruptionBudget":
        pod = each.get("spec", {{}}).get("template", {{}}).get("spec", {{}})
        for container in pod.get("containers", ()):
            container["resources"]["requests"]["cpu"] = "50m"
        print("---")
        yaml.safe_dump(each, sys.stdout)
"""


def test_every_command_of_the_guide_has_its_way() -> None:
    assert list(WAYS) == COMMANDS
    for command, way in WAYS.items():
        assert (way.small == "as written") == (not way.why), command


def test_the_readme_s_commands_are_the_guide_s() -> None:
    first, *others = readme_commands((ROOT / "README.md").read_text())
    assert first == "export PATH=$PWD/.venv/bin:$PATH"
    guide = COMMANDS[: COMMANDS.index("lineside doctor --kubernetes") + 1]
    assert others == guide


@pytest.fixture(scope="module")
def clone(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer has: a clone, its programs on the path; and what the old cluster takes."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "deploy").symlink_to(ROOT / "deploy")
    programs = folder / "bin"
    programs.mkdir()
    for name in ("helm", "helm3", "kubectl"):
        (programs / name).symlink_to(tools / name)
    (programs / "lineside").symlink_to(Path(sys.executable).with_name("lineside"))
    shutil.copytree(ROOT / "deploy" / "charts" / "lineside", folder / "charts" / "lineside")
    chart = folder / "charts" / "lineside" / "Chart.yaml"
    kept = [line for line in chart.read_text().splitlines() if not line.startswith("kubeVersion")]
    chart.write_text("\n".join(kept))
    renderer = folder / "bearable"
    renderer.write_text(BEARABLE.format(python=sys.executable))
    renderer.chmod(0o755)
    made = [without_rules(each) for each in definitions()]
    listed = {"kind": "List", "apiVersion": "v1", "items": made}
    (folder / "without-rules.json").write_text(json.dumps(listed))
    return folder


@pytest.fixture(scope="module")
def own(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A cluster with GPU nodes, as far as labels and classes go."""
    with whole_cluster(tools, tmp_path_factory.mktemp("own")) as cluster:
        cluster.kubectl("label", "nodes", "--all", "nvidia.com/gpu.present=true")
        runtime = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "runc",
        }
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(runtime))
        yield cluster


@pytest.fixture(scope="module")
def done(own: Whole, clone: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """All that can be run, in the guide's order; what came of each."""
    path = {"PATH": f"{clone / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    found = {}
    for command in COMMANDS:
        if said := WAYS[command].small:
            text = command if said == "as written" else said
            words = ("bash", "-o", "pipefail", "-c", text)
            found[command] = own.run(*words, environ=path, cwd=clone, timeout_s=120)
    return found


def test_every_step_works(done: dict[str, subprocess.CompletedProcess[str]]) -> None:
    failed = {
        command: each.stderr
        for command, each in done.items()
        if each.returncode and command != "lineside doctor --kubernetes"
    }
    assert failed == {}


def test_the_secrets_are_what_pods_mount(own: Whole, done: Any) -> None:
    secrets = {
        each["metadata"]["name"]: set(each["data"])
        for each in own.listed("secrets", "-n", "lineside")
    }
    assert secrets["lineside-agents-tls"] == {"ca.crt", "tls.crt", "tls.key"}
    assert (secrets["lineside-tokens"], secrets["vllm"]) == ({"admin-token"}, {"key"})
    named = {
        volume["secret"]["secretName"]
        for pod in own.listed("pods", "-n", "lineside")
        for volume in pod["spec"]["volumes"]
        if "secret" in volume and "-token-" not in volume["secret"]["secretName"]
    }
    assert named == {"lineside-agents-tls", "vllm"}


def test_an_agent_runs_on_every_node_and_a_coordinator_on_one(own: Whole, done: Any) -> None:
    def running() -> list[str]:
        pods = own.listed("pods", "-n", "lineside", "-l", "app.kubernetes.io/part-of=lineside")
        component = "app.kubernetes.io/component"
        return sorted(
            pod["metadata"]["labels"][component]
            for pod in pods
            if pod["status"]["phase"] == "Running"
        )

    until(running, lambda found: found == ["agent"] * NODES + ["coordinator"])


def test_the_notes_say_how_to_go_on(done: Any) -> None:
    (notes,) = (each.stdout for command, each in done.items() if "charts/lineside -n" in command)
    assert "Clients: http://lineside.lineside.svc:80/v1" in notes
    assert "lineside doctor --kubernetes -n lineside" in notes
    assert "no definitions" not in notes


def test_the_servers_and_their_resources_are_there(own: Whole, done: Any) -> None:
    pods = own.listed("pods", "-n", "lineside", "-l", "app=vllm")
    assert len(pods) == 2
    shown = done["kubectl -n lineside get lineside"].stdout
    for name in ("inferenceworkerset", "inferencepool", "inferencepolicy"):
        assert f"{name}.kinference.buoyant.io/" in shown
    token = own.kubectl(
        *("-n", "lineside", "get", "secret", "lineside-tokens"),
        *("-o", "jsonpath={.data.admin-token}"),
    )
    assert len(token) == 88  # 64 hex digits


def test_the_doctor_finds_what_hollow_pods_lack_and_nothing_else(
    own: Whole, clone: Path, done: Any
) -> None:
    assert done["lineside doctor --kubernetes"].returncode == 1
    environ = {"PATH": f"{clone / 'bin'}:/usr/bin:/bin"}
    said = own.run("bash", "-c", "lineside doctor --kubernetes --json", environ=environ, cwd=clone)
    parts = parts_of(said.stdout)
    wrong = {
        (part, level, code)
        for part, checks in parts.items()
        for level, code, _ in checks
        if level not in ("ok", "note")
    }
    engines = {part for part in parts if part.startswith("engine ")}
    assert len(engines) == 2
    assert wrong == {
        ("cluster", "problem", "kubernetes"),
        ("coordinators", "problem", "ready"),
        ("agents", "problem", "agents"),
        *((engine, "problem", "ready") for engine in engines),
    }
    assert parts["definitions"] == [
        ("ok", "definitions", f"all {len(list(definitions()))} kinds are defined, by Lineside")
    ]


def test_kinds_and_resources_are_taken_by_a_current_release(api: Api, clone: Path) -> None:
    path = f"{clone / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    environ = {"PATH": path, "KUBECONFIG": str(api.kubeconfig), "HOME": str(clone)}
    try:
        established = ("--for=condition=Established", "--timeout=30s", "crd", "--all")
        for command, way in WAYS.items():
            if way.current:
                words = ("bash", "-o", "pipefail", "-c", way.current)
                ran = subprocess.run(
                    words, cwd=clone, env=environ, capture_output=True, text=True, timeout=120
                )
                assert ran.returncode == 0, (command, ran.stderr)
                assert api.kubectl("wait", *established).returncode == 0
        # A category has its kinds a moment after they are in force.
        until(
            lambda: api.kubectl("-n", "lineside", "get", "lineside").stdout,
            lambda shown: shown.count("kinference.buoyant.io/") == 3,
        )
    finally:
        for each in definitions():
            api.kubectl("delete", "crd", each["metadata"]["name"], "--wait=true")


def test_the_manifests_for_kubectl_are_those_of_the_guide() -> None:
    guide = GUIDE.read_text()
    for folder in ("deploy/crds", "deploy", "daemonset"):
        assert (ROOT / folder / "kustomization.yaml").exists()
        assert f"`{folder}`" in guide or f"kubectl apply -k {folder}" in guide
    assert yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())["resources"]
