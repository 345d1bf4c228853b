"""A way to a forbidden target, tried for real: the evaluator runs, and says what it chose. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.compiled import CompiledRule
from policies.drop import BOUNDS
from policies.evaluate import PolicySet
from policies.facts import Inventory, Measured, Pools, RequestFacts, Target, Truth
from policies.masks import Masks
from policies.match import Asked
from policies.model import Drop, Measure
from policies.reach import is_measured, is_possible, number_within
from policies.verdict import Chosen, Denied, Source
from policies.worlds import Scene

Numbers = Mapping[Measure, float]
"""What is measured of one target; what is not here is unknown."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A request, a cluster, and a target in it that the evaluator would send the request to."""

    facts: RequestFacts
    inventory: Inventory
    pools: Pools
    measured: Sequence[Numbers]
    """By place in the inventory."""
    place: int
    source: Source
    """Policy, rule and stage."""
    position: int
    """0: the winner; else which fallback."""

    @property
    def target(self) -> Target:
        """What must not get the request."""
        return self.inventory.targets[self.place]


def reached(
    policies: PolicySet, rules: Sequence[CompiledRule], scene: Scene, facts: RequestFacts
) -> Reached | None:
    """Run the evaluator, other targets being dropped where they can; `None`: it went elsewhere."""
    inventory, pools, place = scene.inventory, scene.pools, scene.place
    plan = policies.bind(inventory).plan(facts, pools)
    if isinstance(plan, Denied):
        return None
    masks = Masks(inventory)
    drops = list(_in_force(rules, Asked(facts, pools, masks.meant(facts.model))))
    for own in _OWN:
        numbers = [
            own if each == place else _dropping(each, drops, masks)
            for each in range(len(inventory.targets))
        ]
        verdict = plan.decide(measured(numbers), random.Random(0))
        ranked = verdict.ranked if isinstance(verdict, Chosen) else ()
        for position, found in enumerate(ranked):
            if found.target == place:
                source = Source(verdict.source.policy, verdict.source.rule, found.stage)
                return Reached(facts, inventory, pools, numbers, place, source, position)
    return None


def measured(numbers: Sequence[Numbers]) -> Measured:
    """Return fixed numbers in the shape that the evaluator asks for."""
    return Measured(
        column=lambda measure, places: [numbers[place].get(measure) for place in places],
        ranking=lambda places: [numbers[place].get(Measure.PREDICTED_TTFT) for place in places],
    )


_OWN: tuple[Numbers, ...] = (
    {Measure.QUEUED_PROMPTS: 0.0, Measure.RUNNING_PROMPTS: 0.0},
    {Measure.QUEUED_PROMPTS: 1e6, Measure.RUNNING_PROMPTS: 1e6},
    {},
)
"""What is measured of the target itself: idle, else busy, else nothing, which no bound drops."""


def _in_force(rules: Sequence[CompiledRule], asked: Asked) -> Iterator[Drop]:
    """Yield every drop with a bound that is in force, the one that is earliest so first.

    Guards hold on every attempt; a rule's excludes hold on its own and on those after it.
    """
    matched = [rule for rule in rules if rule.holds(asked, {})]
    guards = [guard for rule in matched for guard in rule.guards]
    excludes = [exclude for rule in matched for exclude in rule.excludes]
    for each in (*guards, *excludes):
        holds = each.condition is None or each.condition.truth(asked) is not Truth.FALSE
        if holds and is_measured(each.drop) and is_possible(each.drop):
            yield each.drop


def _dropping(place: int, drops: Sequence[Drop], masks: Masks) -> Numbers:
    """Return numbers that drop a target; where no drop is about it, nothing is measured."""
    for drop in drops:
        if masks.part(drop.backend, drop.models, drop.pools) >> place & 1:
            bounds = [(measure, getattr(drop, field)) for field, (_, measure) in BOUNDS.items()]
            found = {measure: number_within(t) for measure, t in bounds if t is not None}
            return {measure: number for measure, number in found.items() if number is not None}
    return {}
