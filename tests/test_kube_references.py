"""Names in resources that nothing bears at the moment."""

import pytest

from coordinator.kube.references import unresolved
from policies.facts import Inventory
from policies.inventory import EngineFacts, inventory_of
from policies.load import Loaded, load
from policies.model import InferencePool, InferenceProvider, InferenceWorkerSet

HEAD = (
    "apiVersion: kinference.buoyant.io/v1alpha1\nkind: {}\nmetadata: {{ name: {}, namespace: n }}\n"
)


RULE = "spec: {{ rules: [ {{ name: r, route: {{ {} }} }} ] }}"


def loaded(*documents: tuple[str, str, str]) -> Loaded:
    found = load(
        [
            (f"{kind} n/{name}", (HEAD.format(kind, name) + spec).encode())
            for kind, name, spec in documents
        ]
    )
    assert found.findings == ()
    return found


def inventory(found: Loaded) -> Inventory:
    resources = [each.resource for each in found.resources]
    return inventory_of(
        [each for each in resources if isinstance(each, InferencePool)],
        [each for each in resources if isinstance(each, InferenceWorkerSet)],
        [each for each in resources if isinstance(each, InferenceProvider)],
        [EngineFacts("10.0.0.1:8000", "http://10.0.0.1:8000", ("qwen",), {"app": "vllm"}, "n")],
    )


SET = ("InferenceWorkerSet", "h200", "spec: { selector: { app: vllm } }")
POOL = ("InferencePool", "glm", "spec: { workerSets: [ h200, 'any-*' ] }")


def told(
    *documents: tuple[str, str, str], selecting: frozenset[str] = frozenset({"n/h200"})
) -> list[str]:
    found = loaded(*documents)
    missing = unresolved(found.resources, inventory(found), (), selecting)
    return [str(each) for ident in sorted(missing) for each in missing[ident]]


def test_what_is_there_is_not_told_of() -> None:
    policy = RULE.format("select: [ { names: [ glm ], models: { names: [ qwen ] } } ]")
    backend = ("GatewayBackend", "b", "spec: { pool: glm }")
    assert told(SET, POOL, ("InferencePolicy", "p", policy), backend) == []


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        pytest.param(
            ("InferencePool", "p", "spec: { workerSets: [ h20 ] }"),
            "InferencePool n/p: spec.workerSets[0]: warning: unknown-worker-set: there is no worker"
            " set `h20`\n  help: did you mean `h200`?",
            id="a worker set",
        ),
        pytest.param(
            ("GatewayBackend", "b", "spec: { pool: gml }"),
            "GatewayBackend n/b: spec.pool: warning: unknown-backend: no pool of the inventory is"
            " called `gml`\n  help: did you mean `glm`?",
            id="a pool",
        ),
        pytest.param(
            (
                "InferencePolicy",
                "p",
                RULE.format("select: [ { order: [ bedrock ] } ]"),
            ),
            "InferencePolicy n/p: spec.rules[0].route.select[0].order[0]: warning: unknown-backend:"
            " no backend of the inventory is called `bedrock`",
            id="a provider",
        ),
        pytest.param(
            (
                "InferencePolicy",
                "p",
                RULE.format("consider: [ { models: { names: [ m ] } } ]"),
            ),
            "InferencePolicy n/p: spec.rules[0].route.consider[0].models.names[0]: warning:"
            " unknown-model: no model of the inventory is called `m`",
            id="a model",
        ),
    ],
)
def test_what_is_not_there_is_told_with_its_field(
    document: tuple[str, str, str], finding: str
) -> None:
    assert told(SET, POOL, document) == [finding]


def test_a_worker_set_that_selects_no_pod_is_told() -> None:
    (found,) = told(SET, POOL, selecting=frozenset({"other/h200"}))
    assert found.startswith("InferenceWorkerSet n/h200: spec.selector: warning: no-pods: ")


def test_what_stands_beside_counts() -> None:
    found = loaded(("InferencePool", "p", "spec: { workerSets: [ h200 ] }"))
    others = [each.resource for each in loaded(SET).resources]
    assert unresolved(found.resources, inventory(found), others, set()) == {}
