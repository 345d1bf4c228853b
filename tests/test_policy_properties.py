"""Evaluation against the slow reference, and what must hold for any policies, on random scenes."""

from dataclasses import replace
from random import Random

import msgspec
from hypothesis import given, settings

from policies.evaluate import compile_
from policies.model import Mode
from policies.verdict import Chosen, Denied, Empty
from tests.policy_reference import Answer, Evaluation
from tests.policy_strategies import Scene, scenes

ROUNDS = settings(max_examples=150, deadline=None)
FEWER = settings(max_examples=50, deadline=None)


def evaluated(scene: Scene) -> Chosen | Empty | Denied:
    """Return the verdict."""
    plan = compile_(scene.policies).bind(scene.inventory).plan(scene.request, scene.pools)
    if isinstance(plan, Denied):
        return plan
    verdict = plan.decide(scene.state.measured(), Random(1), sum(1 << at for at in scene.out))
    if isinstance(verdict, Chosen):
        assert {each.target for each in verdict.ranked} <= set(plan.targets)
        first = scene.inventory.targets[verdict.ranked[0].target]
        assert first.model in plan.models
    return verdict


def expected(scene: Scene) -> Answer:
    """Return what the reference says."""
    known = (scene.inventory, scene.request, scene.pools, scene.state, scene.out)
    return Evaluation(*known).answer(scene.policies)


def told(verdict: Chosen | Empty | Denied, answer: Answer) -> Answer:
    """Put a verdict into the reference's words; what ties, as the reference has it."""
    if isinstance(verdict, Denied):
        return Answer(str(verdict.source), status=verdict.status)
    ranked = list(verdict.ranked) if isinstance(verdict, Chosen) else []
    assert not isinstance(verdict, Chosen) or verdict.ranked[0] == ranked[0]
    groups: list[tuple[str, set[int]]] = []
    for _, tied in answer.ranked:
        part, ranked = ranked[: len(tied)], ranked[len(tied) :]
        groups.append((part[0].stage if part else "", {each.target for each in part}))
        assert len({each.stage for each in part}) == 1
    assert not ranked
    places = [dropped.target for dropped in verdict.dropped]
    assert len(places) == len(set(places))
    return Answer(
        source=str(verdict.source),
        ranked=groups,
        dropped={
            each.target: f"{each.source} {each.why}"
            if each.why in ("in no stage", "not considered")
            else str(each.source)
            for each in verdict.dropped
        },
        guards=[str(guard) for guard in verdict.guards],
        unknown=set(verdict.unknown),
        set=verdict.set if isinstance(verdict, Chosen) else None,
    )


@ROUNDS
@given(scenes())
def test_evaluation_says_what_the_reference_says(scene: Scene) -> None:
    answer = expected(scene)
    assert told(evaluated(scene), answer) == answer


@FEWER
@given(scenes(modes=(Mode.ENFORCE, Mode.SHADOW)))
def test_shadow_policies_change_nothing_and_each_is_told_of(scene: Scene) -> None:
    enforced = [each for each in scene.policies if each.spec.mode is Mode.ENFORCE]
    shadows = {each.key for each in scene.policies if each.spec.mode is Mode.SHADOW}
    found, without = evaluated(scene), evaluated(replace(scene, policies=enforced))
    if not isinstance(found, Denied):
        assert set(found.shadow) == shadows
        found = msgspec.structs.replace(found, shadow={})
    assert found == without


@FEWER
@given(scenes())
def test_the_order_in_which_policies_come_does_not_matter(scene: Scene) -> None:
    turned = replace(scene, policies=scene.policies[::-1])
    assert evaluated(turned) == evaluated(scene)
