"""A way to a forbidden target, tried for real: the evaluator runs, and says what it chose. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.compiled import CompiledRule
from policies.drop import BOUNDS
from policies.evaluate import Plan, PolicySet
from policies.facts import Inventory, Measured, Pools, RequestFacts, Target, Truth
from policies.masks import Masks
from policies.match import Asked
from policies.model import Drop, Measure
from policies.reach import is_measured, is_possible, number_within
from policies.verdict import Chosen, Denied, Source
from policies.worlds import Scene, backend_of

Numbers = Mapping[Measure, float]
"""What is measured of one target; what is not here is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    out: int = 0
    """Targets that cannot serve, as a bit mask: away, asleep or failing. It needs them to be so."""

    @property
    def target(self) -> Target:
        """What must not get the request."""
        return self.inventory.targets[self.place]


def reached(
    policies: PolicySet, rules: Sequence[CompiledRule], scene: Scene, facts: RequestFacts
) -> Reached | None:
    """Run the evaluator, other targets being dropped or out; `None`: it went elsewhere."""
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
        for verdict, out in _with_ever_more_out(plan, measured(numbers), place):
            for position, found in enumerate(verdict.ranked):
                if found.target == place:
                    source = Source(verdict.source.policy, verdict.source.rule, found.stage)
                    return Reached(
                        facts=facts,
                        inventory=inventory,
                        pools=pools,
                        measured=numbers,
                        place=place,
                        source=source,
                        position=position,
                        out=out,
                    )
    return None


def measured(numbers: Sequence[Numbers]) -> Measured:
    """Return fixed numbers in the shape that the evaluator asks for."""
    return Measured(
        column=lambda measure, places: [numbers[place].get(measure) for place in places],
        ranking=lambda places: [numbers[place].get(Measure.PREDICTED_TTFT) for place in places],
    )


def _with_ever_more_out(plan: Plan, given: Measured, place: int) -> Iterator[tuple[Chosen, int]]:
    """Yield what is chosen, and then what is while the backends chosen before cannot serve.

    The place's own backend is never out. Each turn one route more is left empty, so it ends.
    """
    targets = plan.inventory.targets
    own, out = backend_of(targets[place]), 0
    while isinstance(verdict := plan.decide(given, random.Random(0), out), Chosen):
        yield verdict, out
        chosen = {backend_of(targets[each.target]) for each in verdict.ranked} - {own}
        if not chosen:
            return
        out |= sum(1 << n for n, each in enumerate(targets) if backend_of(each) in chosen)


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
