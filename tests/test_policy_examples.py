"""Each published example has cases, and all of them pass; together they are one set of policies."""

from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from cli.policy_test import run
from cli.resources import Given, given
from policies.cases import RequestSpec
from policies.model import BackendType, InferencePolicy
from policies.state import Change, changed, cluster_of
from policies.trial import tried

EXAMPLES = Path(__file__).parent.parent / "policies" / "examples"
POLICIES = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name != "cluster.yaml")
CASES = sorted((EXAMPLES / "tests").glob("*.yaml"))

PUBLISHED = ("burst-policy", "pii-stays-local", "smart-semantic-routing")


def test_every_example_has_a_case_file_of_its_name() -> None:
    assert {path.name for path in POLICIES} | {"three-together.yaml"} == {p.name for p in CASES}
    assert len(POLICIES) >= 11


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
def test_the_cases_of_an_example_pass(file: Path) -> None:
    ran, findings = run(given([str(file)]))
    assert findings == []
    assert [(each.judged.case.note, each.judged.differences) for each in ran] == [
        (each.judged.case.note, ()) for each in ran
    ]
    assert len(ran) >= 2


def test_all_examples_load_together_as_one_set() -> None:
    assert given([str(EXAMPLES)]).findings == ()


def _published() -> Given:
    names = [str(EXAMPLES / f"{name}.yaml") for name in (*PUBLISHED, "cluster")]
    return given(names)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("tag", ["present", "unknown"])
def test_personal_data_never_leaves_whatever_the_policies_are_called(
    order: tuple[int, ...], tag: str
) -> None:
    said = _published()
    policies = [_renamed(said.policies[at], f"p{name}") for name, at in enumerate(order)]
    request = RequestSpec(model="glm-5.3", tags={"pii-detected": tag, "complexity-low": tag})  # type: ignore[dict-item]
    busy = {
        f"glm-{name}": Change(queued_prompts=9) for name in ("a", "b", "canary", "long", "acme")
    }
    for changes in ({}, busy, {**busy, "qwen-a": Change(available=False)}):
        cluster = cluster_of(said.resources, changed(said.states[0], changes, {}))
        trial = tried(policies, cluster, request.facts())
        assert trial.refusal or trial.ranked
        assert BackendType.PROVIDER not in {each.target.type for each in trial.ranked}


def _renamed(policy: InferencePolicy, name: str) -> InferencePolicy:
    return msgspec.structs.replace(
        policy, metadata=msgspec.structs.replace(policy.metadata, name=name)
    )
