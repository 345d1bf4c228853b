"""Which form of each object is in force."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.kube import judging
from coordinator.kube.judging import NOTHING, Judgement, judge
from coordinator.kube.settings import Kubernetes
from coordinator.kube.written import Ident, Written, written
from lineside.findings import Finding
from policies.lint import lint
from policies.load import Located

KEYS = Kubernetes(key_variables=("ALLOWED",))


def an(
    kind: str,
    name: str,
    spec: Any,
    generation: int = 1,
    uid: str = "",
    created: str = "1",
    **more: Any,
) -> Written:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": uid or f"{kind}-{name}",
        "generation": generation,
        "creationTimestamp": created,
        "annotations": more.pop("annotations", {}),
    }
    return written(kind, {"metadata": metadata, "spec": spec, **more})


def policy(name: str, generation: int = 1, **more: Any) -> Written:
    spec = {"priority": generation, "rules": [{"name": "r", "route": {}}]}
    return an("InferencePolicy", name, spec, generation, **more)


def bad(name: str, generation: int = 2, **more: Any) -> Written:
    """A policy that the cluster takes and lint does not."""
    rule = {"name": "r", "route": {}}
    return an("InferencePolicy", name, {"rules": [rule, rule]}, generation, **more)


def provider(name: str, generation: int = 1, **more: Any) -> Written:
    spec = {"type": "OpenAI", "models": [{"name": "m"}], **more}
    return an("InferenceProvider", name, spec, generation)


def pool(name: str, created: str = "1") -> Written:
    return an("InferencePool", name, {}, created=created)


def judged(before: Judgement, *objects: Written) -> Judgement:
    return judge(before.in_force, objects, KEYS)


def generations(judgement: Judgement) -> dict[str, int]:
    return {f"{kind}/{name}": f.generation for (kind, _, name), f in judgement.in_force.items()}


def codes(judgement: Judgement) -> dict[str, list[str]]:
    return {name: [f.code for f in found] for (_, _, name), found in judgement.findings.items()}


def test_what_is_good_is_in_force() -> None:
    now = judged(NOTHING, policy("a"), provider("p"), pool("l"))
    assert generations(now) == {
        "InferencePolicy/a": 1,
        "InferenceProvider/p": 1,
        "InferencePool/l": 1,
    }
    assert now.refused == frozenset() and now.all_findings == ()
    assert [each.metadata.name for each in now.resources.policies] == ["a"]


def test_a_bad_change_leaves_the_form_before_in_force() -> None:
    before = judged(NOTHING, policy("a"), policy("b"))
    now = judged(before, bad("a"), policy("b", 2))
    assert generations(now) == {"InferencePolicy/a": 1, "InferencePolicy/b": 2}
    assert now.refused == {("InferencePolicy", "n", "a")}
    assert [str(each) for each in now.all_findings] == [
        "InferencePolicy n/a: spec.rules[1].name: duplicate-name: there are two rules called `r`"
    ]
    assert generations(judged(now, bad("a", 3), policy("b", 2)))["InferencePolicy/a"] == 1
    assert judged(now, policy("a", 4), policy("b", 2)).refused == frozenset()


def test_what_cannot_be_read_keeps_only_itself_out() -> None:
    broken = an("InferencePolicy", "a", {"rules": "none"})
    now = judged(NOTHING, broken, policy("b"))
    assert generations(now) == {"InferencePolicy/b": 1}
    assert codes(now) == {"a": ["wrong-value"]}


def test_a_bad_form_goes_with_its_object() -> None:
    before = judged(judged(NOTHING, policy("a")), bad("a"))
    assert generations(before) == {"InferencePolicy/a": 1}
    assert judged(before) == NOTHING


def test_a_new_object_of_the_name_inherits_nothing() -> None:
    before = judged(NOTHING, policy("a"))
    assert generations(judged(before, bad("a", uid="another"))) == {}


def test_a_start_takes_the_form_that_the_status_keeps() -> None:
    kept = {
        "inForce": {
            "generation": 1,
            "spec": {"rules": [{"name": "k", "route": {}}]},
        }
    }
    now = judged(NOTHING, bad("a", status=kept))
    assert generations(now) == {"InferencePolicy/a": 1}
    assert now.resources.policies[0].spec.rules[0].name == "k"
    assert now.refused == {("InferencePolicy", "n", "a")}


def test_who_was_there_first_keeps_a_name() -> None:
    before = judged(NOTHING, pool("x"))
    now = judged(before, pool("x"), provider("x"))
    assert generations(now) == {"InferencePool/x": 1}
    assert codes(now) == {"x": ["duplicate-name"]}


def test_a_newcomer_that_makes_another_wrong_is_the_one_that_is_refused() -> None:
    """Lint names the provider; but the pool, which is new, is what changed."""
    before = judged(NOTHING, provider("x"))
    now = judged(before, provider("x"), pool("x"))
    assert generations(now) == {"InferenceProvider/x": 1}
    assert now.refused == {("InferencePool", "n", "x")}
    (found,) = now.findings["InferencePool", "n", "x"]
    assert str(found).startswith("InferenceProvider n/x: metadata.name: duplicate-name")


def test_of_changes_that_are_wrong_together_the_innocent_are_taken() -> None:
    before = judged(NOTHING, provider("x"), policy("a"))
    now = judged(before, provider("x", 2, timeoutSeconds=5), policy("a", 2), pool("x"), bad("b"))
    assert generations(now) == {"InferenceProvider/x": 2, "InferencePolicy/a": 2}
    assert now.refused == {("InferencePool", "n", "x"), ("InferencePolicy", "n", "b")}


PROVE = {"lineside.dev/prove": "tag=pii never=Provider"}
GUARD = {
    "rules": [
        {
            "name": "g",
            "route": {
                "exclude": [
                    {
                        "name": "x",
                        "if": {"tag": "pii"},
                        "drop": {"backend": {"type": "Provider"}},
                    }
                ]
            },
        }
    ]
}


def test_what_a_deletion_made_wrong_stays_in_force_and_is_told() -> None:
    claim = policy("claims", annotations=PROVE)
    before = judged(NOTHING, claim, an("InferencePolicy", "guards", GUARD))
    assert before.all_findings == ()
    now = judged(before, claim)
    assert generations(now) == {"InferencePolicy/claims": 1} and now.refused == frozenset()
    assert now.wrong == {("InferencePolicy", "n", "claims")}
    assert codes(now) == {"claims": ["proof-failed", "proof-vacuous"]}


def test_what_stands_there_wrong_keeps_no_other_change_out() -> None:
    claim = policy("claims", annotations=PROVE)
    before = judged(NOTHING, claim, an("InferencePolicy", "guards", GUARD))
    wrong = judged(before, claim)
    now = judged(wrong, claim, policy("b"), bad("c"))
    assert generations(now) == {"InferencePolicy/claims": 1, "InferencePolicy/b": 1}
    assert now.refused == {("InferencePolicy", "n", "c")}
    healed = judged(now, claim, policy("b"), an("InferencePolicy", "guards", GUARD))
    assert healed.refused == frozenset() and "proof-failed" not in codes(healed)["claims"]


def test_warnings_keep_nothing_out() -> None:
    spec = {"rules": [{"name": "r", "route": {}, "limits": [{"window": "1m", "requests": 5}]}]}
    now = judged(NOTHING, an("InferencePolicy", "a", spec))
    assert now.refused == frozenset() and codes(now) == {"a": ["limit-not-enforced"]}


@pytest.mark.parametrize(
    ("credentials", "field"),
    [
        pytest.param({"file": "/etc/passwd"}, "file", id="a file of the system"),
        pytest.param({"file": "/etc/lineside/secrets/../x"}, "file", id="a way out"),
        pytest.param({"file": "/etc/lineside/secretsx/k"}, "file", id="a folder called alike"),
        pytest.param({"file": "key"}, "file", id="a file of the working directory"),
        pytest.param({"variable": "LINESIDE_ADMIN_TOKEN"}, "variable", id="a variable of ours"),
    ],
)
def test_no_resource_makes_a_coordinator_send_what_it_may_read(
    credentials: dict[str, str], field: str
) -> None:
    now = judged(NOTHING, provider("p", credentials=credentials))
    assert now.in_force == {}
    (found,) = now.all_findings
    assert found.code == "key-not-allowed"
    assert found.place.source == f"InferenceProvider n/p: spec.credentials.{field}"


def test_a_key_that_may_not_be_named_any_more_is_not_used_whatever_a_status_says() -> None:
    made = provider("p", credentials={"variable": "ONCE_ALLOWED"})
    said = replace(made, is_accepted=True)
    later = replace(provider("p", 2), kept=made.form)
    now = judged(NOTHING, said, policy("a"))
    assert (generations(now), codes(now)) == ({"InferencePolicy/a": 1}, {"p": ["key-not-allowed"]})
    assert generations(judged(NOTHING, later)) == {"InferenceProvider/p": 2}


@pytest.mark.parametrize(
    "credentials",
    [{"file": "/etc/lineside/secrets/openai/key"}, {"variable": "ALLOWED"}],
    ids=["a file of the folder", "a variable that is listed"],
)
def test_keys_that_may_be_named(credentials: dict[str, str]) -> None:
    assert judged(NOTHING, provider("p", credentials=credentials)).all_findings == ()


@pytest.mark.parametrize(
    ("key", "is_allowed"),
    [
        pytest.param({}, False, id="the environment's"),
        pytest.param({"file": "/root/.aws/credentials"}, False, id="somebody's file"),
        pytest.param({"file": "/etc/lineside/secrets/aws/credentials"}, True, id="a mounted file"),
    ],
)
def test_access_keys_are_held_to_the_same(key: dict[str, str], is_allowed: bool) -> None:
    made = provider("p", type="Bedrock", region="eu-west-1", credentials={"accessKey": key})
    assert bool(judged(NOTHING, made).in_force) == is_allowed


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["good", "bad", "broken", "delete"])),
    max_size=12,
)


@given(CHANGES)
@settings(max_examples=60, deadline=None)
def test_the_last_good_form_of_each_object_is_in_force(steps: list[tuple[str, str]]) -> None:
    objects: dict[str, Written] = {}
    expected: dict[str, int] = {}
    judgement, lives = NOTHING, 0
    for generation, (name, what) in enumerate(steps, start=1):
        uid = objects[name].form.uid if name in objects else f"{name}{(lives := lives + 1)}"
        match what:
            case "delete":
                objects.pop(name, None)
                expected.pop(name, None)
            case "good":
                objects[name] = policy(name, generation, uid=uid)
                expected[name] = generation
            case "bad":
                objects[name] = bad(name, generation, uid=uid)
            case "broken":
                objects[name] = an("InferencePolicy", name, {"rules": 1}, generation, uid=uid)
        judgement = judged(judgement, *objects.values())
        assert generations(judgement) == {f"InferencePolicy/{n}": g for n, g in expected.items()}
        refused: Mapping[Ident, Any] = dict.fromkeys(judgement.refused)
        assert {n for _, _, n in refused} == {
            n for n, each in objects.items() if each.form.generation != expected.get(n)
        }
        assert set(refused) <= set(judgement.findings)  # others may have warnings


ACCEPTED = {"conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 1}]}


def elsewhere(each: Written, namespace: str, **status: Any) -> Written:
    """The same object in another namespace."""
    kind, _, name = each.ident
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "generation": each.form.generation,
        "creationTimestamp": each.created,
    }
    return written(kind, {"metadata": metadata, "spec": {}, "status": status})


def test_a_name_is_not_taken_over_by_a_restart() -> None:
    """However namespaces and times sort: who comes second is refused by whoever looks."""
    first, second = pool("x", "2"), elsewhere(pool("x", "3"), "a")
    running = judged(judged(NOTHING, first), second, first)
    assert running.refused == {second.ident}
    assert judged(NOTHING, second, first).in_force == running.in_force, "by age"
    older = elsewhere(pool("x", "1"), "a")
    accepted = an("InferencePool", "x", {}, status=ACCEPTED)
    assert judged(NOTHING, older, accepted).refused == {older.ident}, "by its status"


def test_what_a_status_keeps_and_cannot_be_read_is_not_in_force() -> None:
    kept = {"inForce": {"generation": 1, "spec": {"rules": "none"}}}
    assert generations(judged(NOTHING, bad("a", status=kept))) == {}
    unreadable = an("InferencePolicy", "a", {"rules": "none"}, status=ACCEPTED)
    now = judged(NOTHING, unreadable)
    assert generations(now) == {} and now.refused == {unreadable.ident}


def test_an_accepted_form_that_others_made_wrong_outlives_a_restart() -> None:
    before = judged(NOTHING, provider("x"))
    clash = an("InferencePool", "x", {}, created="0")
    assert judged(before, provider("x"), clash).refused == {clash.ident}
    spec = {"type": "OpenAI", "models": [{"name": "m"}]}
    accepted = an("InferenceProvider", "x", spec, status=ACCEPTED)
    assert judged(NOTHING, accepted, clash).refused == {clash.ident}


def test_one_bad_change_among_many_costs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counting(located: Sequence[Located]) -> list[Finding]:
        looks.append(len(located))
        return lint(located)

    monkeypatch.setattr(judging, "lint", counting)
    before = judged(NOTHING, provider("x"))
    policies = [policy(f"p{number}") for number in range(32)]
    now = judged(before, provider("x"), pool("x"), *policies)
    assert now.refused == {("InferencePool", "n", "x")} and len(now.in_force) == 33
    assert len(looks) < 20
