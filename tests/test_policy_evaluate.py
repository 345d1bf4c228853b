"""What policies mean for a request, taken together: order, routes, guards.

Single fields are in `test_policy_match` and `test_policy_select`, what follows where nothing is
left in `test_policy_fallthrough`, records in `test_policy_verdict`; random policies, against a slow
reference, in `test_policy_properties`.
"""

from typing import Any

import pytest

from policies.evaluate import Plan, compile_
from policies.facts import Inventory
from policies.model import InferencePolicy
from policies.verdict import Chosen, Denied, Dropped, Empty, Ranked, Source
from tests.policy_scenes import CLUSTER, GLM, policy, request, said, verdict

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


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        pytest.param("tenant: t", {"tenant": "t"}, {"tenant": "u"}, id="tenant"),
        pytest.param("api: chat", {"api": "chat"}, {"api": "responses"}, id="API"),
        pytest.param("stream: true", {"stream": True}, {"stream": False}, id="kind of answer"),
    ],
)
def test_rules_that_concern_one_request_are_not_taken_for_those_of_another(
    field: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    rules = f"[{{name: r, matches: [{{{field}}}], reject: {{status: 410, message: m}}}}]"
    bound = compile_([policy(rules)]).bind(CLUSTER)
    for _ in range(2):
        assert isinstance(bound.plan(request(**other), {}), Plan)
        assert isinstance(bound.plan(request(**one), {}), Denied)


def test_a_reject_carries_its_message() -> None:
    rules = "[{name: gone, matches: [{model: large}], reject: {status: 410, message: gone}}]"
    assert verdict([policy(rules)], request("large")) == Denied(Source("n/p", "gone"), 410, "gone")
