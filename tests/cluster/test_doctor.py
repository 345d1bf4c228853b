"""`lineside doctor --kubernetes` against real API servers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from policies.crd import definitions
from tests.cluster.servers import MERGE, Api
from tests.cluster.whole import NODES, Whole, until

pytestmark = pytest.mark.cluster

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def doctor(whole: Whole, *words: str) -> tuple[int, dict[str, list[tuple[str, str, str]]]]:
    """Return the exit code, and level, code and message of each part's findings."""
    command = (Path(sys.executable).with_name("lineside"), "doctor", "--kubernetes", "--json")
    done = whole.run(*command, *words)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, parts_of(done.stdout)


def parts_of(text: str) -> dict[str, list[tuple[str, str, str]]]:
    return {
        part["part"]: [(each["level"], each["code"], each["message"]) for each in part["checks"]]
        for part in json.loads(text)["parts"]
    }


def test_a_cluster_with_nothing_in_it_is_told_what_lacks(whole: Whole) -> None:
    code, parts = doctor(whole, "-n", "nowhere")
    assert code == 1
    assert [each for each in parts["cluster"] if each[1] == "kubernetes"] == [
        (
            "problem",
            "kubernetes",
            "Kubernetes v1.20.2: definitions have rules in CEL, which it does not know",
        )
    ]
    absent = ("problem", "absent", "Lineside is not installed in nowhere")
    assert parts == {"cluster": parts["cluster"], "coordinators": [absent]}


def test_manifests_that_were_applied_are_found_and_judged(applied: Whole) -> None:
    agents = "app.kubernetes.io/part-of=lineside"
    until(
        lambda: applied.listed("pods", "-n", "lineside", "-l", agents),
        lambda pods: [pod["status"]["phase"] for pod in pods] == ["Running"] * (NODES + 1),
    )
    code, parts = doctor(applied, "-n", "lineside")
    assert code == 1  # no process runs in hollow pods
    assert ("ok", "policies", "a NetworkPolicy is about the agents") in parts["network"]
    assert parts["rights"] == [
        (
            "ok",
            "rights",
            "coordinators may do what they need in the cluster, and no more; agents nothing",
        )
    ]
    assert [(level, said.partition(" ")[0]) for level, _, said in parts["certificates"]] == [
        ("ok", "lineside-agents-tls/ca.crt"),
        ("ok", "lineside-agents-tls/tls.crt"),
    ]
    ((level, _, said),) = parts["agents"]
    assert (level, said) == ("problem", f"lineside-agent: 0 of {NODES} agents are ready")
    assert not [each for each in parts["cluster"] if each[1] == "blind"]


def test_who_may_not_look_is_told_what_to_allow(applied: Whole, tmp_path: Path) -> None:
    applied.kubectl("create", "serviceaccount", "looker", "-n", "default")
    file = tmp_path / "kubeconfig"
    token = applied.login("default", "looker", file)
    code, parts = doctor(applied, "--kubeconfig", str(file), "-n", "lineside")
    assert code == 1
    assert {message for level, check, message in parts["cluster"] if check == "blind"} >= {
        "could not look at pods of lineside: not allowed",
        "could not look at NetworkPolicies: not allowed",
        "could not look at the definitions of kinds: not allowed",
    }
    assert token not in json.dumps(parts)


def test_definitions_of_ours_are_known_and_those_of_others_are_refused(
    api: Api,
) -> None:
    def asked() -> list[tuple[str, str, str]]:
        command = (Path(sys.executable).with_name("lineside"), "doctor", "--kubernetes", "--json")
        done = subprocess.run(
            (*command, "--kubeconfig", api.kubeconfig), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1, done.stderr
        return parts_of(done.stdout)["definitions"]

    made = list(definitions())
    for each in made:
        api.ask("POST", CRDS, each)
    try:
        found = until(asked, lambda found: not [each for each in found if each[1] == "established"])
        assert found == [("ok", "definitions", "all 5 kinds are defined, by Lineside")]
        name = made[0]["metadata"]["name"]
        theirs = {"metadata": {"labels": {"app.kubernetes.io/part-of": "somebody"}}}
        assert api.ask("PATCH", f"{CRDS}/{name}", theirs, MERGE).status == 200
        assert (
            "problem",
            "foreign",
            f"another product has {name}: it is not Lineside's",
        ) in asked()
    finally:
        for each in made:
            api.ask("DELETE", f"{CRDS}/{each['metadata']['name']}")
