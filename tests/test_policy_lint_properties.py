"""What lint calls unreachable, no request ever reaches; what it says never drops, never does."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.checks.order import check_order
from policies.checks.routes import check_rule
from policies.evaluate import compile_
from policies.model import InferencePolicy, Measure
from policies.verdict import Chosen, Denied
from tests import policy_strategies as drawn

Said = set[tuple[str, str, str]]
"""Policy, rule, and an exclude or a stage."""


def unreached(policies: list[InferencePolicy]) -> dict[str, Said]:
    """Return what lint says is never reached or never drops, by code."""
    said: dict[str, Said] = {}
    for policy in policies:
        for rule in policy.spec.rules:
            for found in check_rule((), rule):
                match found.path:
                    case ("route", "exclude", int(place), *_) if rule.route:
                        part = rule.route.exclude[place].name
                    case ("route", "select", int(place), *_):
                        part = f"select[{place}]"
                    case _:
                        part = ""
                said.setdefault(found.code, set()).add((policy.key, rule.name, part))
    for each in check_order(policies, None):
        if each.found.code == "unreachable-rule":
            policy = policies[each.policy]
            place = each.found.path[2]
            assert isinstance(place, int)
            rule_name = policy.spec.rules[place].name
            said.setdefault(each.found.code, set()).add((policy.key, rule_name, ""))
    return said


def reached(policies: list[InferencePolicy], rng: Random, tries: int) -> dict[str, Said]:
    """Return what random requests reach: routes, stages, and excludes that drop."""
    routes: Said = set()
    stages: Said = set()
    drops: Said = set()
    compiled = compile_(policies)
    for _ in range(tries):
        inventory = drawn.inventory(rng)
        plan = compiled.bind(inventory).plan(drawn.request(rng), drawn.pools(rng))
        if isinstance(plan, Denied):
            continue
        for attempt in plan.course.attempts:
            source = attempt.rule.source
            routes.add((source.policy, source.rule, ""))
        verdict = plan.decide(_fractions(drawn.state(rng, inventory)).measured(), rng)
        for each in verdict.dropped:
            drops.add((each.source.policy, each.source.rule, each.source.part))
        if isinstance(verdict, Chosen):
            source = verdict.source
            stages |= {(source.policy, source.rule, each.stage) for each in verdict.ranked}
    return {"unreachable-rule": routes, "unreachable-stage": stages, "never-drops": drops}


def _fractions(state: drawn.State) -> drawn.State:
    """Bring what is a part of a whole below one: lint takes no other number to be possible."""
    columns = dict(state.columns)
    for measure in (Measure.KV_CACHE_USAGE, Measure.GPU_UTILIZATION):
        columns[measure] = [None if value is None else value / 3 for value in columns[measure]]
    return replace(state, columns=columns)


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_nothing_reaches_what_lint_says_is_never_reached(seed: int) -> None:
    rng = Random(seed)
    policies = drawn.policies(rng)
    said = unreached(policies)
    for code, those in reached(policies, rng, tries=10).items():
        assert said.get(code, set()) & those == set()


def test_random_policies_earn_each_of_these() -> None:
    """Else the property would hold for want of cases."""
    said = [unreached(drawn.policies(Random(seed))) for seed in range(60)]
    earned = {code for each in said for code in each}
    assert {"unreachable-rule", "unreachable-stage", "never-drops"} <= earned
