"""Which targets are candidates, what drops them, and in which order stages try what is left."""

from random import Random

import pytest

from lineside.ids import ModelName
from policies.evaluate import Plan, compile_
from policies.facts import Inventory, Measured, Model, RequestFacts, Target
from policies.model import BackendType, Measure, Share
from policies.stage import stable_order
from policies.verdict import Chosen, Denied, Dropped, Ranked, Source
from tests.policy_scenes import CLUSTER, measured, policy, request, said, verdict

QUEUED = Measure.QUEUED_PROMPTS
ALL = "e0 e1 e2 bedrock databricks databricks/qwen"


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        pytest.param("{}", "e0 e1 bedrock databricks", id="whatever serves the requested model"),
        pytest.param("{consider: []}", "refused by n/p/r", id="a union of nothing is nothing"),
        pytest.param("{consider: [{}]}", ALL, id="no field: everything"),
        pytest.param(
            "{consider: [{models: {names: [qwen-3.6-27b]}}]}",
            "e2 databricks/qwen",
            id="it replaces the requested model",
        ),
        pytest.param(
            "{consider: [{models: {names: [cheap]}}]}",
            "e2 databricks/qwen",
            id="names mean aliases too",
        ),
        pytest.param(
            "{consider: [{models: {names: [open]}}]}",
            "refused by n/p/r",
            id="names do not mean classes",
        ),
        pytest.param(
            "{consider: [{models: {classes: [open]}}]}", "e2 databricks/qwen", id="classes do"
        ),
        pytest.param(
            "{consider: [{models: {names: ['glm*'], classes: [open]}}]}", ALL, id="names or classes"
        ),
        pytest.param(
            "{consider: [{models: {names: ['*'], labels: {family: qwen}}}]}",
            "e2 databricks/qwen",
            id="and labels",
        ),
        pytest.param(
            "{consider: [{models: {labels: {family: x}}}]}",
            "refused by n/p/r",
            id="labels that no model has",
        ),
        pytest.param(
            "{consider: [{backend: {type: Provider}}]}",
            "bedrock databricks databricks/qwen",
            id="backends by type",
        ),
        pytest.param(
            "{consider: [{backend: {names: ['e*', bedrock]}}]}",
            "e0 e1 e2 bedrock",
            id="backends by name",
        ),
        pytest.param(
            "{consider: [{backend: {names: [main]}}]}",
            "e0 e1",
            id="a pool's name names its engines",
        ),
        pytest.param(
            "{consider: [{backend: {names: []}}]}",
            "refused by n/p/r",
            id="a list of no names takes nothing",
        ),
        pytest.param(
            "{consider: [{backend: {type: Local, labels: {zone: b}}}]}", "e1", id="type and labels"
        ),
        pytest.param("{consider: [{pools: ['s*']}]}", "e2", id="pools by glob"),
        pytest.param(
            "{consider: [{pools: ['e0']}]}", "refused by n/p/r", id="pools are not engines"
        ),
        pytest.param(
            "{consider: [{pools: [side]}, {backend: {names: [bedrock]}}]}",
            "e2 bedrock",
            id="entries are united",
        ),
    ],
)
def test_a_route_considers(route: str, expected: str) -> None:
    assert said(verdict([policy(f"[{{name: r, route: {route}}}]")], request())) == expected


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        pytest.param("{backend: {type: Provider}}", "e0 e1", id="an exclude drops by type"),
        pytest.param("{pools: [main]}", "bedrock databricks", id="by pool"),
        pytest.param("{models: {classes: [large]}}", "refused by n/p/r/x", id="by model"),
        pytest.param("{backend: {labels: {zone: b}}}", "e0 bedrock", id="by label"),
        pytest.param(
            "{backend: {labels: {zone: b}}, pools: [main]}",
            "e0 bedrock databricks",
            id="all conditions of a drop must hold",
        ),
        pytest.param("{}", "refused by n/p/r/x", id="a drop without conditions drops everything"),
        pytest.param(
            "{queuedPrompts: {greaterThan: 2}}",
            "e0 bedrock databricks",
            id="by a measurement; an unknown one keeps",
        ),
        pytest.param(
            "{queuedPrompts: {greaterThan: 3}}",
            "e0 e1 bedrock databricks",
            id="greaterThan does not mean equal",
        ),
        pytest.param("{queuedPrompts: {atLeast: 3}}", "e0 bedrock databricks", id="atLeast does"),
        pytest.param(
            "{queuedPrompts: {lessThan: 3}}",
            "e1 bedrock databricks",
            id="lessThan does not mean equal",
        ),
        pytest.param("{queuedPrompts: {atMost: 3}}", "bedrock databricks", id="atMost does"),
        pytest.param(
            "{backend: {type: Provider}, queuedPrompts: {greaterThan: 0}}",
            "e0 e1 bedrock databricks",
            id="type and measurement must both hold",
        ),
        pytest.param(
            "{queuedPrompts: {greaterThan: 2}, cost: {greaterThan: 0}}",
            "e0 e1 bedrock databricks",
            id="one of two measurements unknown: kept",
        ),
    ],
)
def test_an_exclude_drops(drop: str, expected: str) -> None:
    now = measured({QUEUED: [0, 3, 9, None, None, None]})
    rules = f"[{{name: r, route: {{exclude: [{{name: x, drop: {drop}}}]}}}}]"
    assert said(verdict([policy(rules)], request(), now)) == expected


@pytest.mark.parametrize(
    ("field", "measure"),
    [
        ("queuedPrompts", Measure.QUEUED_PROMPTS),
        ("runningPrompts", Measure.RUNNING_PROMPTS),
        ("kvCacheUsage", Measure.KV_CACHE_USAGE),
        ("gpuUtilization", Measure.GPU_UTILIZATION),
        ("predictedTTFT", Measure.PREDICTED_TTFT),
        ("predictedE2E", Measure.PREDICTED_E2E),
        ("uncachedTokens", Measure.UNCACHED_TOKENS),
        ("cost", Measure.COST),
        ("freshness", Measure.FRESHNESS),
    ],
)
def test_a_bound_is_about_its_own_measurement(field: str, measure: Measure) -> None:
    rules = f"[{{name: r, route: {{exclude: [{{name: x, drop: {{{field}: {{atLeast: 0.5}}}}}}]}}}}]"
    found = verdict([policy(rules)], request(), measured({measure: [0.25, 0.5, 1, 0, None, 1]}))
    assert isinstance(found, Chosen)
    assert said(found) == "e0 bedrock databricks"
    source = Source("n/p", "r", "x")
    assert found.dropped == (Dropped(1, source, f"{field} 0.5 >= 0.5"),)
    assert found.unknown == (field,)


@pytest.mark.parametrize(
    ("drop", "why"),
    [
        pytest.param("{}", "everything", id="no condition"),
        pytest.param(
            "{backend: {type: Local, names: [main, x], labels: {zone: b}}}",
            "type Local, names main x, labels zone=b",
            id="a backend",
        ),
        pytest.param(
            "{models: {names: ['glm*'], classes: [y], labels: {family: glm}}}",
            "models glm* y family=glm",
            id="a model",
        ),
        pytest.param("{pools: [main]}", "pools main", id="a pool"),
        pytest.param(
            "{queuedPrompts: {greaterThan: 2}}", "queuedPrompts 5 > 2", id="a measurement"
        ),
        pytest.param(
            "{pools: [main], cost: {atLeast: 0.1, lessThan: 1000000}}",
            "pools main, cost 0.123457 >= 0.1 and < 1000000",
            id="two bounds, and a pool",
        ),
        pytest.param(
            "{uncachedTokens: {greaterThan: 1.5}, queuedPrompts: {atMost: 5}}",
            "queuedPrompts 5 <= 5, uncachedTokens 12345678 > 1.5",
            id="two measurements",
        ),
    ],
)
def test_a_reason_is_in_the_policys_own_words(drop: str, why: str) -> None:
    rules = f"[{{name: r, route: {{exclude: [{{name: x, drop: {drop}}}]}}}}]"
    now = measured(
        {
            QUEUED: [0, 5, 0, 0, 0, 0],
            Measure.COST: [0, 0.123456789, 0, 0, 0, 0],
            Measure.UNCACHED_TOKENS: [0, 12345678, 0, 0, 0, 0],
        }
    )
    found = verdict([policy(rules)], request(), now)
    assert not isinstance(found, Denied)
    assert [each for each in found.dropped if each.target == 1] == [
        Dropped(1, Source("n/p", "r", "x"), why)
    ]


def test_each_target_is_accounted_for_once() -> None:
    rules = """
    - name: r
      route:
        consider: [{models: {names: [glm-5.3]}}, {pools: [side]}]
        exclude:
        - {name: busy, drop: {queuedPrompts: {greaterThan: 2}}}
        - {name: zone, drop: {backend: {type: Provider, labels: {zone: b}}}}
        select: [{names: [main, databricks]}]
    """
    found = verdict([policy(rules)], request("cheap"), measured({QUEUED: [0, 3, 0, 0, 9, 0]}))
    assert isinstance(found, Chosen)
    assert found.ranked == (Ranked(0, "select[0]"),)
    assert set(found.dropped) == {
        Dropped(1, Source("n/p", "r", "busy"), "queuedPrompts 3 > 2"),
        Dropped(2, Source("n/p", "r"), "in no stage"),
        Dropped(3, Source("n/p", "r"), "in no stage"),
        Dropped(4, Source("n/p", "r", "zone"), "type Provider, labels zone=b"),
        Dropped(5, Source("n/p", "r"), "not considered"),
    }


# --- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        pytest.param(
            "[]", "e1 e0 databricks bedrock", id="none: all by predicted time to first token"
        ),
        pytest.param("[{}]", "e1 e0 databricks bedrock", id="a stage without a way to rank, too"),
        pytest.param(
            "[{type: Provider}, {type: Local}]", "databricks bedrock | e1 e0", id="stages in order"
        ),
        pytest.param(
            "[{names: [e0]}, {type: Local}]", "e0 | e1", id="a target is in its first stage alone"
        ),
        pytest.param(
            "[{names: [nobody]}, {type: Local}]", "e1 e0", id="a stage without a survivor"
        ),
        pytest.param("[{labels: {zone: a}}]", "e0 bedrock", id="by label"),
        pytest.param(
            "[{type: Local, labels: {zone: b}, names: ['*']}]", "e1", id="all filters must hold"
        ),
        pytest.param("[{models: {classes: [open]}}, {names: [main]}]", "e1 e0", id="by model"),
        pytest.param(
            "[{minimize: QueuedPrompts}]",
            "e0 databricks e1 bedrock",
            id="the least; unmeasured last",
        ),
        pytest.param(
            "[{maximize: QueuedPrompts}]",
            "e1 databricks e0 bedrock",
            id="the most; unmeasured last",
        ),
        pytest.param("[{minimize: PredictedTTFT}]", "e1 e0 databricks bedrock", id="by what ranks"),
        pytest.param(
            "[{maximize: PredictedTTFT}]", "e0 e1 bedrock databricks", id="by the prediction itself"
        ),
        pytest.param(
            "[{order: [databricks, e0]}]", "databricks e0", id="only what the order names"
        ),
        pytest.param(
            "[{order: [main, databricks]}]", "e1 e0 databricks", id="ranked within a position"
        ),
        pytest.param("[{order: [e0, main]}]", "e0 e1", id="a target has its first position"),
        pytest.param("[{order: []}]", "refused by n/p/r", id="an empty order names nothing"),
        pytest.param(
            "[{order: [e0], type: Provider}]", "refused by n/p/r", id="filters hold in an order"
        ),
        pytest.param(
            "[{split: [{backend: main, weight: 1}]}]", "e1 e0", id="only what shares name"
        ),
        pytest.param(
            "[{split: [{model: chat, weight: 1}]}]",
            "e1 e0 databricks bedrock",
            id="a model's share, by alias",
        ),
        pytest.param(
            "[{split: [{model: large, weight: 1}]}]", "refused by n/p/r", id="not by class"
        ),
        pytest.param(
            "[{split: [{backend: e0, weight: 0}, {backend: bedrock, weight: 1}]}]",
            "bedrock",
            id="a share without weight is off",
        ),
        pytest.param("[{split: []}]", "refused by n/p/r", id="a split into nothing"),
        pytest.param("[{split: [{weight: 1}]}]", "refused by n/p/r", id="a share of nothing"),
    ],
)
def test_stages_order_the_survivors(select: str, expected: str) -> None:
    columns = {
        QUEUED: [1, 4, 0, None, 2, 0],
        Measure.PREDICTED_TTFT: [9, 8, 7, 6, 5, 4],
    }
    now = measured(columns, ranking=[2, 1, 0, 6, 5, 0])
    rules = f"[{{name: r, route: {{select: {select}}}}}]"
    assert said(verdict([policy(rules)], request(), now)) == expected


def test_ties_and_the_unmeasured_are_in_no_order() -> None:
    now, firsts, lasts = measured(ranking=[1, 1, 0, None, None, None]), set(), set()
    for seed in range(50):
        found = verdict([policy("[{route: {}}]")], request(), now, seed=seed)
        assert isinstance(found, Chosen)
        firsts |= {tuple(each.target for each in found.ranked[:2])}
        lasts |= {tuple(each.target for each in found.ranked[2:])}
    assert firsts == {(0, 1), (1, 0)}
    assert lasts == {(3, 4), (4, 3)}


def test_the_same_numbers_give_the_same_order() -> None:
    now = measured(ranking=[1] * 6)
    assert len({said(verdict([], request(), now, seed=7)) for _ in range(5)}) == 1


# --- splits ---------------------------------------------------------------------------------------

SPLIT = (
    "[{name: r, route: {select: [{split: [{backend: e0, weight: 3}, {backend: e1, weight: 1}]}]}}]"
)


def split(conversation: str, seed: int = 1, inventory: Inventory = CLUSTER) -> str:
    """Return the first choice of a split three to one, and its fallback."""
    facts = request(conversation=conversation)
    return said(verdict([policy(SPLIT)], facts, inventory=inventory, seed=seed))


def test_a_split_is_stable_per_conversation_and_keeps_its_weights() -> None:
    choices = [split(f"c{number}") for number in range(400)]
    assert choices == [split(f"c{number}", seed=2) for number in range(400)]
    assert set(choices) == {"e0 e1", "e1 e0"}
    assert 270 < choices.count("e0 e1") < 330  # 300, and more than three deviations either way


def test_without_a_conversation_a_split_keeps_its_weights() -> None:
    choices = [split("", seed=seed) for seed in range(400)]
    assert 270 < choices.count("e0 e1") < 330


def test_a_share_without_a_survivor_leaves_its_conversations_to_the_others() -> None:
    without = Inventory(CLUSTER.targets[1:], CLUSTER.models)
    found = verdict([policy(SPLIT)], request(conversation="c1"), inventory=without)
    assert isinstance(found, Chosen)
    assert found.ranked == (Ranked(0, "select[0]"),)


def test_a_share_that_is_taken_away_moves_only_its_own_conversations() -> None:
    shares = [Share(backend=name, weight=weight) for name, weight in (("a", 1), ("b", 2), ("c", 3))]
    for number in range(100):
        before = stable_order(shares, f"c{number}")
        after = stable_order(shares[:2], f"c{number}")
        assert after == [share for share in before if share != 2]


def test_a_conversation_may_be_any_text() -> None:
    assert sorted(stable_order([Share(backend="a", weight=1)] * 2, "\udce4\0")) == [0, 1]


def test_a_conversation_stays_on_one_model_of_a_share() -> None:
    """Engine `e0` is the share, with two models that the request means: ties never flip them."""
    glm, mini = ModelName("glm"), ModelName("mini")
    models = {name: Model(name, classes=frozenset({"any"})) for name in (glm, mini)}
    names = frozenset({"e0"})
    targets = tuple(Target("e0", BackendType.LOCAL, name, names, {}) for name in models)
    spec = "[{name: r, route: {select: [{split: [{backend: e0, weight: 1}]}]}}]"
    bound = compile_([policy(spec)]).bind(Inventory(targets, models))
    nothing = Measured(lambda _, places: [None] * len(places), lambda places: [None] * len(places))

    def model(conversation: str, seed: int) -> str:
        plan = bound.plan(RequestFacts(model="any", conversation=conversation), {})
        assert isinstance(plan, Plan)
        verdict = plan.decide(nothing, Random(seed))
        assert isinstance(verdict, Chosen)
        return targets[verdict.ranked[0].target].model

    chosen = {c: {model(c, seed) for seed in range(8)} for c in map(str, range(40))}
    assert {len(each) for each in chosen.values()} == {1}
    assert {name for each in chosen.values() for name in each} == {"glm", "mini"}
