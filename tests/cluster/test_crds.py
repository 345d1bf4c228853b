"""The definitions and resources before a real API server."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.crd import GROUP, NAMINGS, VERSION
from tests.cluster.servers import MERGE, Answer, Api
from tests.crd_cases import GOOD, REFUSED_BY_RULE, REFUSED_BY_SCHEMA, policy, resource

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def cluster(api: Api) -> Api:
    """The API server with the definitions, as the quick start applies them."""
    applied = api.kubectl("apply", "-k", ROOT / "deploy" / "crds")
    assert applied.returncode == 0, applied.stderr
    assert applied.stderr == ""  # no warning of a schema that is not structural
    waited = api.kubectl(
        "wait", "--for=condition=Established", "--timeout=30s", "crd", "-l",
        "app.kubernetes.io/part-of=lineside",
    )  # fmt: skip
    assert waited.returncode == 0, waited.stderr
    return api


def collection(document: Any) -> str:
    return (
        f"/apis/{GROUP}/{VERSION}/namespaces/{document['metadata'].get('namespace', 'default')}"
        f"/{NAMINGS[document['kind']].plural}"
    )


def created(cluster: Api, document: Any) -> Answer:
    """Create a resource as `kubectl` does: strictly, and without keeping it."""
    query = "?fieldValidation=Strict&dryRun=All"
    return cluster.ask("POST", collection(document) + query, document)


def resources(path: Path) -> list[Any]:
    documents = yaml.safe_load_all(path.read_text())
    return [each for each in documents if each["kind"] in NAMINGS]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_and_published_policies_are_taken_unchanged(cluster: Api, path: Path) -> None:
    for document in resources(path):
        answer = created(cluster, document)
        assert answer.status == 201, answer.message
        assert answer.body["spec"] == document["spec"]  # no default is written into it


@pytest.mark.parametrize(
    ("code", "document"),
    [pytest.param(code, document, id=name) for name, code, document in REFUSED_BY_RULE],
)
def test_a_rule_refuses_in_the_words_of_lint(cluster: Api, code: str, document: Any) -> None:
    answer = created(cluster, document)
    assert answer.status == 422 and f"{code}: " in answer.message, answer


@pytest.mark.parametrize(
    ("words", "document"),
    [pytest.param(words, document, id=name) for name, words, document in REFUSED_BY_SCHEMA],
)
def test_the_schema_refuses(cluster: Api, words: str, document: Any) -> None:
    answer = created(cluster, document)
    assert answer.status in (400, 422) and words in answer.message, answer


@pytest.mark.parametrize("document", [pytest.param(document, id=name) for name, document in GOOD])
def test_what_is_good_is_taken(cluster: Api, document: Any) -> None:
    answer = created(cluster, document)
    assert answer.status == 201, answer.message
    assert answer.body["spec"] == document["spec"]


def test_status_is_written_apart_from_the_spec(cluster: Api) -> None:
    made = resource("GatewayBackend", {"pool": "glm"}, name="with-status")
    path = f"{collection(made)}/with-status"
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    assert cluster.ask("POST", collection(made), made).status == 201
    said = {"spec": {"pool": "other"}, "status": {"conditions": [condition]}}
    assert cluster.ask("PATCH", f"{path}/status", said, MERGE).status == 200
    kept = cluster.ask("GET", path).body
    assert (kept["spec"], kept["status"]) == ({"pool": "glm"}, {"conditions": [condition]})
    assert kept["metadata"]["generation"] == 1
    assert cluster.ask("PATCH", path, {"spec": {"pool": "b"}, "status": {}}, MERGE).status == 200
    changed = cluster.ask("GET", path).body
    assert changed["status"] == {"conditions": [condition]}
    assert changed["metadata"]["generation"] == 2


def test_lists_show_what_matters(cluster: Api) -> None:
    made = policy(route={})
    made["metadata"]["name"] = "shown"
    made["spec"] |= {"priority": 7, "mode": "Shadow"}
    applied = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    assert applied.returncode == 0, applied.stderr
    listed = cluster.kubectl("get", "ipol", "-n", "inference").stdout.splitlines()
    assert listed[0].split() == ["NAME", "PRIORITY", "MODE", "ACCEPTED", "AGE"]
    assert listed[1].split()[:3] == ["shown", "7", "Shadow"]
    every = cluster.kubectl("get", "lineside", "-n", "inference", "-o", "name").stdout
    assert f"inferencepolicy.{GROUP}/shown" in every
    explained = cluster.kubectl("explain", "inferencepolicy.spec.rules.route.select").stdout
    assert "Tried in order" in explained
