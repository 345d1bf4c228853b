"""What follows where a rule leaves nothing: the next one, or a refusal that names what took all."""

import pytest

from policies.model import Measure
from policies.verdict import Dropped, Empty, Source
from tests.policy_scenes import measured, policy, request, said, verdict

QUEUED = Measure.QUEUED_PROMPTS
BUSY = measured({QUEUED: [5, 5, 5, None, None, None]})


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
