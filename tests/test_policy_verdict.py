"""What a verdict carries beside its choice, and what shadow policies would have made of it."""

from collections.abc import Sequence
from random import Random

import pytest

from policies.evaluate import compile_
from policies.facts import Measured
from policies.model import Measure, SetFields
from policies.verdict import Chosen, Denied, Dropped, Empty, Source
from tests.policy_scenes import CLUSTER, GLM, QWEN, measured, policy, request, said, verdict

QUEUED = Measure.QUEUED_PROMPTS


# --- what a verdict carries -----------------------------------------------------------------------


def test_only_the_rule_that_routes_rewrites() -> None:
    rules = """
    - {name: a, route: {select: [{names: [nobody]}], onEmpty: NextRule, set: {maxTokens: 1}}}
    - {name: b, route: {set: {maxTokens: 2}}}
    - {name: c, route: {set: {maxTokens: 3}}}
    """
    found = verdict([policy(rules)], request())
    assert isinstance(found, Chosen)
    assert (found.source, found.set) == (Source("n/p", "b", "default"), SetFields(max_tokens=2))


def test_guards_and_unknowns_are_told() -> None:
    rules = """
    - {name: m, matches: [{tag: low, inputTokens: {atLeast: 1}}, {tag: code}], route: {}}
    - name: s
      matches: [{pool: {saturated: true}}, {pool: {name: side, saturated: true}}]
      route: {}
    - {name: o, matches: [{model: open}], route: {}}
    - name: g
      route:
        exclude:
        - {name: held, if: {tag: pii}, drop: {backend: {names: [nobody]}}}
        - {name: maybe, if: {tags: {any: [a, b]}}, drop: {backend: {names: [nobody]}}}
        - {name: free, if: {tag: free}, drop: {}}
        - {name: busy, drop: {gpuUtilization: {greaterThan: 0.5}, cost: {greaterThan: 1}}}
    """
    late = policy("[{matches: [{tag: late}], route: {}}]", "late", priority=-1)
    facts = request("large", tags="pii -a -code -free")
    now = measured({Measure.COST: [0, 0, 0, 0, 0, 0]})
    found = verdict([policy(rules), late], facts, now)
    assert isinstance(found, Chosen)
    assert found.guards == (Source("n/p", "g", "held"), Source("n/p", "g", "maybe"))
    assert found.unknown == ("tag low", "inputTokens", "pool", "pool side", "model", "tag b")
    found = verdict([policy(rules)], facts, measured({Measure.COST: [0, 2, 0, 0, 0, 0]}))
    assert isinstance(found, Chosen)
    assert found.unknown[-1] == "gpuUtilization"


@pytest.mark.parametrize(
    ("rules", "models", "targets"),
    [
        pytest.param("[{route: {}}]", {GLM}, (0, 1, 3, 4), id="what serves the requested model"),
        pytest.param(
            "[{route: {exclude: [{name: x, drop: {backend: {type: Provider}}}]}}]",
            {GLM},
            (0, 1),
            id="without what is excluded unmeasured",
        ),
        pytest.param(
            "[{route: {exclude: [{name: x, drop: {queuedPrompts: {atLeast: 0}}}]}}]",
            {GLM},
            (0, 1, 3, 4),
            id="with what must be measured first",
        ),
        pytest.param(
            "[{route: {consider: [{backend: {}}], select: [{names: [e0, side]}]}}]",
            {GLM, QWEN},
            (0, 2),
            id="only what is in a stage",
        ),
        pytest.param(
            "[{route: {select: [{names: [e0]}], onEmpty: NextRule}},"
            " {matches: [{tenant: x}], route: {}}, {route: {consider: [{pools: [side]}]}}]",
            {GLM, QWEN},
            (0, 2),
            id="for every rule that may come to route",
        ),
    ],
)
def test_a_plan_says_what_must_be_known(
    rules: str, models: set[str], targets: tuple[int, ...]
) -> None:
    plan = compile_([policy(rules)]).bind(CLUSTER).plan(request(), {})
    assert not isinstance(plan, Denied)
    assert (plan.models, plan.targets) == (models, targets)


def test_only_what_conditions_need_is_measured() -> None:
    asked: list[tuple[str, list[int]]] = []
    given = measured({QUEUED: [0, 9, 0, 0, 0, 0]})
    rules = """
    - route:
        exclude:
        - {name: a, drop: {backend: {type: Provider}}}
        - {name: b, drop: {queuedPrompts: {greaterThan: 5}}}
        - {name: c, drop: {queuedPrompts: {greaterThan: 7}, kvCacheUsage: {atLeast: 1}}}
        - {name: d, drop: {pools: [side], cost: {atLeast: 1}}}
        select: [{minimize: QueuedPrompts}]
    """
    plan = compile_([policy(rules)]).bind(CLUSTER).plan(request(), {})
    assert not isinstance(plan, Denied)

    def column(measure: Measure, places: Sequence[int]) -> list[float | None]:
        asked.append((measure.value, list(places)))
        return list(given.column(measure, places))

    found = plan.decide(Measured(column, given.ranking), Random(1))
    assert said(found) == "e0"
    assert asked == [("QueuedPrompts", [0, 1])]


def test_fallbacks_are_those_of_the_moment_that_decided() -> None:
    rules = "- {route: {select: [{type: Local}, {type: Provider, minimize: Cost}]}}"
    cost: list[float | None] = [None, None, None, 1.0, 2.0, None]
    found = verdict([policy(rules)], request(), measured({Measure.COST: cost}))
    cost[3] = 3.0
    assert said(found) == "e0 e1 | bedrock databricks"


def test_a_target_that_cannot_serve_is_neither_chosen_nor_measured_nor_said_to_be_dropped() -> None:
    rules = """
    - route:
        exclude: [{name: busy, drop: {queuedPrompts: {greaterThan: 2}}}]
        select: [{type: Local}, {type: Provider, order: [bedrock]}]
    """
    plan = compile_([policy(rules)]).bind(CLUSTER).plan(request(), {})
    assert not isinstance(plan, Denied)
    busy, unstaged = Source("n/p", "r0", "busy"), Dropped(4, Source("n/p", "r0"), "in no stage")
    now = measured({QUEUED: [0, 9, 0, 0, 0, 0]})
    found = plan.decide(now, Random(1), out=0b00001)
    assert (said(found), found.unknown) == ("bedrock", ())
    assert found.dropped == (Dropped(1, busy, "queuedPrompts 9 > 2"), unstaged)
    found = plan.decide(now, Random(1), out=0b01011)
    assert (said(found), found.dropped) == ("refused by n/p/r0", (unstaged,))


# --- shadow policies ------------------------------------------------------------------------------

TO_E0 = "[{name: r, route: {select: [{names: [e0]}]}}]"


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        pytest.param(TO_E0, "the same", id="the same backend"),
        pytest.param(
            "[{name: s, route: {select: [{names: [e1]}]}}]",
            "would choose `e1` with `glm-5.3` by n/a/s/select[0] rather than `e0` with `glm-5.3`",
            id="another backend",
        ),
        pytest.param(
            "[{name: s, route: {set: {maxTokens: 1}}}]",
            "the same, rewritten by n/a/s/default",
            id="the same backend, rewritten",
        ),
        pytest.param(
            "[{name: s, reject: {message: sorry}}]",
            "would deny it with 403 by n/a/s",
            id="a reject",
        ),
        pytest.param(
            "[{name: s, route: {select: [{names: [nobody]}]}}]",
            "would refuse it by n/a/s",
            id="no target left",
        ),
        pytest.param(
            "[{name: s, matches: [{tenant: x}], route: {exclude: [{name: x, if: {}, drop: {}}]}}]",
            "the same",
            id="a rule that does not match",
        ),
    ],
)
def test_a_shadow_policy_is_told_of_and_changes_nothing(rules: str, told: str) -> None:
    real = policy(TO_E0, "m")
    found = verdict([policy(rules, "a", mode="Shadow"), real], request())
    assert isinstance(found, Chosen)
    assert found.shadow == {"n/a": told}
    assert said(found) == said(verdict([real], request()))


def test_each_shadow_policy_is_told_of_by_itself() -> None:
    shadows = [
        policy(TO_E0.replace("e0", "e1"), "a", mode="Shadow", priority=2),
        policy(TO_E0, "b", mode="Shadow", priority=1),
    ]
    found = verdict([*shadows, policy(TO_E0, "m")], request())
    assert isinstance(found, Chosen)
    other = "would choose `e1` with `glm-5.3` by n/a/r/select[0] rather than `e0` with `glm-5.3`"
    assert found.shadow == {"n/a": other, "n/b": "the same"}


def test_a_refusal_tells_of_shadow_policies_too() -> None:
    shadows = [
        policy(TO_E0, "a", mode="Shadow"),
        policy("[{name: s, route: {select: [{names: [nobody]}]}}]", "b", mode="Shadow"),
    ]
    found = verdict([*shadows, policy(TO_E0.replace("e0", "nobody"), "m")], request())
    assert isinstance(found, Empty)
    assert found.shadow == {
        "n/a": "would choose `e0` with `glm-5.3` by n/a/r/select[0] rather than refuse it",
        "n/b": "the same",
    }


def test_a_tie_is_not_told_as_a_difference() -> None:
    shadow = policy("[{name: s, route: {select: [{type: Local}]}}]", "a", mode="Shadow")
    told = set()
    for seed in range(20):
        found = verdict([shadow], request(), measured(ranking=[1] * 6), seed=seed)
        assert isinstance(found, Chosen)
        told |= {found.shadow["n/a"]}
    assert told == {"the same"}


def test_targets_of_shadow_policies_are_measured_but_their_models_are_not_chosen() -> None:
    shadow = policy("[{route: {consider: [{backend: {type: Provider}}]}}]", "a", mode="Shadow")
    plan = compile_([shadow]).bind(CLUSTER).plan(request(), {})
    assert not isinstance(plan, Denied)
    assert (plan.models, plan.targets) == ({GLM}, (0, 1, 3, 4, 5))
