"""What policies mean for a request, taken together: order, guards, routes, fallbacks, records.

Single fields are in `test_policy_match` and `test_policy_select`; random policies, against a slow
reference, in `test_policy_properties`.
"""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from random import Random

import msgspec
import pytest
import yaml

from policies.evaluate import compile_
from policies.facts import Inventory, Measured
from policies.model import InferencePolicy, Measure, SetFields
from policies.verdict import Chosen, Denied, Dropped, Empty, Ranked, Source
from tests.policy_scenes import CLUSTER, GLM, QWEN, measured, policy, request, said, verdict

QUEUED = Measure.QUEUED_PROMPTS
IDLE = measured({QUEUED: [0, 0, 0, None, None, None]})
BUSY = measured({QUEUED: [5, 5, 5, None, None, None]})


# --- the order of rules, and the route ------------------------------------------------------------

TO = "[{{name: {0}, route: {{select: [{{names: [{0}]}}]}}}}]"
MATCHED = "[{{name: {0}, matches: [{{}}], route: {{select: [{{names: [{0}]}}]}}}}]"


@pytest.mark.parametrize(
    ("policies", "winner"),
    [
        pytest.param(
            [policy(TO.format("e0"), "a"), policy(TO.format("e1"), "b", priority=1)],
            "e1",
            id="the higher priority comes first",
        ),
        pytest.param(
            [policy(MATCHED.format("e0"), "a"), policy(TO.format("e1"), "b", priority=1)],
            "e1",
            id="priority comes before having matches",
        ),
        pytest.param(
            [policy(TO.format("e0"), "a"), policy(MATCHED.format("e1"), "b")],
            "e1",
            id="rules with matches come before those without, whatever their policies are called",
        ),
        pytest.param(
            [policy(TO.format("e0")[:-1] + "," + MATCHED.format("e1")[1:])],
            "e1",
            id="so too within one policy",
        ),
        pytest.param(
            [policy(TO.format("e0"), "b"), policy(TO.format("e1"), "a")],
            "e1",
            id="names decide among equals",
        ),
        pytest.param(
            [policy(TO.format("e0"), "a", "n-1"), policy(TO.format("e1"), "z", "n")],
            "e1",
            id="namespaces come before names, as a pair and not as one text",
        ),
        pytest.param(
            [policy(TO.format("e0")[:-1] + "," + TO.format("e1")[1:])],
            "e0",
            id="at last the order in which they are written",
        ),
        pytest.param(
            [policy("[{limits: [{window: 1m, requests: 1}]}]", "a"), policy(TO.format("e1"), "b")],
            "e1",
            id="a rule without a route does not route",
        ),
        pytest.param(
            [
                policy("[{matches: [], route: {select: [{names: [e0]}]}}]", "a"),
                policy(TO.format("e1"), "b"),
            ],
            "e1",
            id="a list of no entries matches nothing",
        ),
    ],
)
def test_the_first_matching_rule_with_a_route_routes(
    policies: list[InferencePolicy], winner: str
) -> None:
    assert said(verdict(policies, request())) == winner
    assert said(verdict(policies[::-1], request())) == winner


@pytest.mark.parametrize(
    ("rules", "model", "expected"),
    [
        pytest.param(
            "[{matches: [{tenant: x}], route: {}}]", GLM, "e0 e1", id="engines of the model alone"
        ),
        pytest.param("[{matches: [{tenant: x}], route: {}}]", "chat", "e0 e1", id="by an alias"),
        pytest.param(
            "[{matches: [{tenant: x}], route: {}}]",
            "large",
            "e0 e1 e2",
            id="by a class, of all its models",
        ),
        pytest.param(
            "[{matches: [{tenant: x}], route: {}}]",
            "x",
            "refused by default/default",
            id="nothing serves it",
        ),
        pytest.param(
            "[{route: {}}]", GLM, "e0 e1 bedrock databricks", id="a route considers providers too"
        ),
        pytest.param(
            "[{matches: [{stream: true}], route: {exclude: [{name: x, if: {}, drop: {}}]}}]",
            GLM,
            "e0 e1",
            id="guards of rules that do not match are not met",
        ),
        pytest.param(
            "[{matches: [{tenant: x}]}, {reject: {message: sorry}, matches: [{tag: pii}]}]",
            GLM,
            "e0 e1",
            id="a tag that is unknown does not reject",
        ),
    ],
)
def test_the_default_route(rules: str, model: str, expected: str) -> None:
    assert said(verdict([policy(rules)], request(model))) == expected


def test_a_default_route_says_so_in_full() -> None:
    assert verdict([], request()) == Chosen(
        source=Source("default", "default", "default"),
        ranked=(Ranked(0, "default"), Ranked(1, "default")),
        taken=verdict([], request()).taken,
    )
    assert verdict([], request()).dropped == tuple(
        Dropped(place, Source("default", "default"), "not considered") for place in (3, 4)
    )


# --- guards ---------------------------------------------------------------------------------------

GUARD = """
- name: guard
  matches: [{stream: false}]
  route:
    exclude: [{name: stay, if: {tag: pii}, drop: {backend: {type: Provider}}}]
    select: [{names: [nobody]}]
"""
REJECT = "[{matches: [{tag: pii}], reject: {status: 451, message: sorry}}]"
OUT = "[{name: out, route: {select: [{type: Provider, order: [bedrock]}, {type: Local}]}}]"


@pytest.mark.parametrize(
    ("policies", "tags", "expected"),
    [
        pytest.param(
            [policy(OUT), policy(GUARD, "g", priority=-5)],
            "pii",
            "e0 e1",
            id="a guard holds whichever rule routes",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD, "g", priority=-5)],
            "",
            "e0 e1",
            id="an unknown tag satisfies an if",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD, "g", priority=-5)],
            "-pii",
            "bedrock | e0 e1",
            id="an absent one does not",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD.replace("if: {tag: pii}, ", ""), "g", priority=-5)],
            "pii",
            "bedrock | e0 e1",
            id="an exclude without an if is its own route's alone",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD.replace("stream: false", "stream: true"), "g", priority=-5)],
            "pii",
            "bedrock | e0 e1",
            id="the guard's rule must match",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD.replace("stream: false", "tag: low"), "g", priority=-5)],
            "pii",
            "bedrock | e0 e1",
            id="and does not by an unknown tag",
        ),
        pytest.param(
            [policy(OUT), policy(GUARD, "g", priority=-5, mode="Shadow")],
            "pii",
            "bedrock | e0 e1",
            id="a shadow policy guards nothing",
        ),
        pytest.param(
            [
                policy(OUT),
                policy(REJECT, "g", priority=-5),
            ],
            "pii",
            "451 by n/g/r0",
            id="a reject holds whichever rule would route",
        ),
        pytest.param(
            [
                policy(OUT),
                policy(REJECT, "g", priority=-5),
            ],
            "",
            "bedrock | e0 e1",
            id="a reject by an unknown tag does not",
        ),
        pytest.param(
            [
                policy("[{reject: {message: b}}]", "b"),
                policy("[{reject: {message: a, status: 400}}]", "a"),
            ],
            "",
            "400 by n/a/r0",
            id="the first reject in order wins",
        ),
        pytest.param(
            [policy("[{reject: {message: b}}]", "b", mode="Shadow"), policy(OUT)],
            "-pii",
            "bedrock | e0 e1",
            id="a shadow policy rejects nothing",
        ),
        pytest.param(
            [policy("[{limits: [{window: 1m, requests: 1}]}]"), policy(OUT, "o")],
            "",
            "bedrock | e0 e1",
            id="limits are not enforced yet",
        ),
    ],
)
def test_guards_hold_whichever_rule_routes(
    policies: list[InferencePolicy], tags: str, expected: str
) -> None:
    assert said(verdict(policies, request(tags=tags))) == expected


def test_a_refusal_by_a_guard_says_all_that_led_to_it() -> None:
    found = verdict(
        [policy(GUARD, "g"), policy(OUT, priority=1)],
        request(),
        inventory=Inventory(CLUSTER.targets[3:], CLUSTER.models),
    )
    stay = Source("n/g", "guard", "stay")
    assert found == Empty(stay, found.taken, (stay,), ("tag pii",))
    assert found.dropped == (Dropped(0, stay, "type Provider"), Dropped(1, stay, "type Provider"))


def test_a_reject_carries_its_message() -> None:
    rules = "[{name: gone, matches: [{model: large}], reject: {status: 410, message: gone}}]"
    assert verdict([policy(rules)], request("large")) == Denied(Source("n/p", "gone"), 410, "gone")


# --- when nothing is left -------------------------------------------------------------------------

AFTER = (
    "{name: after, route: {consider: [{backend: {}}], select: [{type: Provider}, {type: Local}]}}"
)


def going_on(exclude: str, select: str = "{names: [nobody]}", after: str = AFTER) -> str:
    """Return a rule that leaves nothing, and what comes after it."""
    route = f"{{exclude: [{exclude}], select: [{select}], onEmpty: NextRule}}"
    return f"[{{name: first, route: {route}}}, {after}]"


@pytest.mark.parametrize(
    ("rules", "tags", "expected"),
    [
        pytest.param(
            "[{name: a, route: {select: [{names: [nobody]}]}}, {name: b, route: {}}]",
            "",
            "refused by n/p/a",
            id="a rule that says nothing refuses",
        ),
        pytest.param(
            going_on(""),
            "",
            "bedrock databricks databricks/qwen | e0 e1 e2",
            id="NextRule: the next matching rule routes",
        ),
        pytest.param(
            going_on("", after=AFTER.replace("after, ", "after, matches: [{stream: true}], ")),
            "",
            "e0 e1",
            id="a rule that does not match is passed over, and the default route comes last",
        ),
        pytest.param(
            going_on("", after="{name: last, reject: {message: sorry}}"),
            "",
            "403 by n/p/last",
            id="a reject further down is met first of all",
        ),
        pytest.param(
            going_on("{name: x, drop: {backend: {type: Provider}}}"),
            "",
            "e0 e1 e2",
            id="its excludes hold for what only the next rule considers",
        ),
        pytest.param(
            going_on("{name: x, drop: {queuedPrompts: {greaterThan: 2}}}"),
            "",
            "bedrock databricks databricks/qwen",
            id="so do those that measure",
        ),
        pytest.param(
            going_on("{name: x, if: {tag: pii}, drop: {backend: {type: Provider}}}"),
            "pii",
            "e0 e1 e2",
            id="so do its guards",
        ),
        pytest.param(
            going_on("{name: x, drop: {backend: {type: Local}}}", after="{name: after}"),
            "",
            "refused by n/p/first/x",
            id="and for the default route, which names what took its last target",
        ),
        pytest.param(
            going_on("{name: x, drop: {pools: [main]}}, {name: y, drop: {pools: ['*']}}"),
            "",
            "bedrock databricks databricks/qwen",
            id="all of its excludes do",
        ),
        pytest.param(
            going_on(
                "{name: x, drop: {pools: ['*']}}",
                after=AFTER.replace(
                    "select", "onEmpty: NextRule, exclude: [{name: y, drop: {}}], select"
                ),
            ),
            "",
            "refused by n/p/first/x",
            id="after the last rule it is the default route's engines that are missing",
        ),
    ],
)
def test_what_a_rule_leaves_to_the_next(rules: str, tags: str, expected: str) -> None:
    assert said(verdict([policy(rules)], request(tags=tags), BUSY)) == expected


@pytest.mark.parametrize(
    ("excludes", "refused"),
    [
        pytest.param("", "n/p/r", id="no target was there: the route"),
        pytest.param(
            "{name: a, drop: {}}, {name: b, drop: {}}", "n/p/r/a", id="the one that took it"
        ),
        pytest.param(
            "{name: a, drop: {pools: [main]}}, {name: b, drop: {backend: {type: Provider}}}",
            "n/p/r/b",
            id="the last of several that took some",
        ),
        pytest.param(
            "{name: g, if: {}, drop: {pools: [main]}},{name: b, drop: {backend: {type: Provider}}}",
            "n/p/r/g",
            id="a guard before an exclude, however they are written",
        ),
        pytest.param(
            "{name: g, if: {}, drop: {backend: {type: Provider}}},"
            "{name: b, drop: {queuedPrompts: {greaterThan: 2}}}",
            "n/p/r/g",
            id="a guard before an exclude that measures",
        ),
        pytest.param(
            "{name: a, drop: {backend: {names: [e0, e1, bedrock]}}},"
            "{name: b, drop: {backend: {names: [databricks]}}}",
            "n/p/r/b",
            id="whether or not a stage would have had the others",
        ),
    ],
)
def test_a_refusal_names_what_took_the_last_target(excludes: str, refused: str) -> None:
    select = "[{names: [nobody]}]" if not excludes else "[{type: Local}, {type: Provider}]"
    rules = f"[{{name: r, route: {{exclude: [{excludes}], select: {select}}}}}]"
    assert said(verdict([policy(rules)], request(), BUSY)) == f"refused by {refused}"


def test_an_exclude_that_took_what_no_stage_wanted_is_not_to_blame() -> None:
    exclude = "[{name: x, drop: {pools: [main]}}]"
    rules = f"[{{name: r, route: {{exclude: {exclude}, select: [{{names: [nobody]}}]}}}}]"
    assert said(verdict([policy(rules)], request())) == "refused by n/p/r"


def test_a_guard_is_to_blame_even_where_the_default_route_found_only_busy_engines() -> None:
    rules = """
    - name: r
      route:
        exclude:
        - {name: stay, if: {tag: pii}, drop: {backend: {type: Provider}}}
        - {name: busy, drop: {queuedPrompts: {greaterThan: 2}}}
        select: [{type: Provider}]
        onEmpty: NextRule
    """
    found = verdict([policy(rules)], request(tags="pii"), BUSY)
    assert isinstance(found, Empty)
    stay, busy = Source("n/p", "r", "stay"), Source("n/p", "r", "busy")
    assert found.source == stay
    assert set(found.dropped) == {
        Dropped(0, busy, "queuedPrompts 5 > 2"),
        Dropped(1, busy, "queuedPrompts 5 > 2"),
        Dropped(3, stay, "type Provider"),
        Dropped(4, stay, "type Provider"),
    }


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


# --- the published examples -----------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[1] / "policies" / "examples"


def published(name: str, called: str = "") -> InferencePolicy:
    """Return a published example, perhaps under another name."""
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["metadata"]["name"] = called or name
    return msgspec.convert(document, InferencePolicy)


BURST, PII, SMART = "burst-policy", "pii-stays-local", "smart-semantic-routing"


@pytest.mark.parametrize(
    ("names", "tags", "now", "expected"),
    [
        pytest.param(
            [BURST], "", IDLE, "e0 e1 | bedrock databricks", id="burst: local while it can"
        ),
        pytest.param([BURST], "", BUSY, "bedrock databricks", id="burst: out when overloaded"),
        pytest.param(
            [PII], "-pii-detected", BUSY, "databricks | e0 e1", id="pii: out, if surely none"
        ),
        pytest.param([PII], "pii-detected", BUSY, "e0 e1", id="pii: stays"),
        pytest.param([PII], "", BUSY, "e0 e1", id="pii: stays, if it is not known"),
        pytest.param(
            [SMART],
            "complexity-low",
            BUSY,
            "e0 e1 e2 bedrock databricks databricks/qwen",
            id="smart: the small model as well",
        ),
        pytest.param([SMART], "-complexity-low", BUSY, "e0 e1", id="smart: not what is complex"),
        pytest.param([SMART], "", BUSY, "e0 e1", id="smart: nor what may be"),
        pytest.param(
            [BURST, PII, SMART],
            "pii-detected complexity-low",
            BUSY,
            "e0 e1 e2",
            id="all: pii of low complexity stays, on either model",
        ),
        pytest.param([BURST, PII, SMART], "pii-detected", IDLE, "e0 e1", id="all: pii stays"),
        pytest.param(
            [BURST, PII, SMART],
            "pii-detected",
            BUSY,
            "refused by inference/pii-stays-local/serve/pii-never-leaves-cluster",
            id="all: pii is refused under overload, and by name",
        ),
        pytest.param(
            [BURST, PII, SMART],
            "-pii-detected",
            BUSY,
            "bedrock databricks",
            id="all: other requests go out",
        ),
    ],
)
def test_the_published_examples(names: list[str], tags: str, now: Measured, expected: str) -> None:
    assert said(verdict([published(name) for name in names], request(tags=tags), now)) == expected


@pytest.mark.parametrize(
    "tags", ["pii-detected", "", "pii-detected complexity-low", "complexity-low"]
)
@pytest.mark.parametrize("now", [IDLE, BUSY], ids=["idle", "overloaded"])
def test_pii_never_leaves_whatever_the_policies_are_called(tags: str, now: Measured) -> None:
    for names in permutations(["a", "b", "c"]):
        named = [published(*pair) for pair in zip((BURST, PII, SMART), names, strict=True)]
        for policies in permutations(named):
            found = verdict(policies, request(tags=tags), now)
            assert not isinstance(found, Denied)
            if isinstance(found, Chosen):
                assert {each.target for each in found.ranked} <= {0, 1, 2}
            else:
                assert found.source.part == "pii-never-leaves-cluster"


def test_pii_is_refused_where_there_is_no_engine() -> None:
    away = Inventory(CLUSTER.targets[3:], CLUSTER.models)
    for names in permutations(["a", "b", "c"]):
        policies = [published(*pair) for pair in zip((BURST, PII, SMART), names, strict=True)]
        found = verdict(policies, request(tags="pii-detected"), inventory=away)
        assert isinstance(found, Empty)
        assert found.source.part == "pii-never-leaves-cluster"
