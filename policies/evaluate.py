"""What may serve a request by all policies together: every rule's guards, then one route. Pure.

Policies are compiled once per change and bound once per inventory. For a request `Bound.plan` takes
each step that needs no measurement; `Plan.decide` measures the targets that are left, ranks them.
Nothing here waits, reads a clock, or draws a number but from the given generator.

Guards: every rule that matches gives its excludes that have an `if`, whichever rule routes; the
first with a `reject` ends it. Route: the first rule that matches and has a `route`; where it leaves
no target and says `NextRule`, the next one. What was excluded on the way stays so: excludes are
carried on as predicates, and hold for targets that only a later rule considers.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from lineside.ids import ModelName
from policies.attempt import BoundRule
from policies.compiled import CompiledRule, in_order
from policies.course import Course, follow
from policies.facts import Inventory, Measured, Pools, RequestFacts, Target, places
from policies.masks import Masks
from policies.match import Asked
from policies.model import InferencePolicy, Match, Mode
from policies.verdict import Chosen, Denied, Empty

CONCERNED = 1000
"""Tenants, APIs and kinds of answer whose rules are kept; all are forgotten when there are more."""


class Plan(msgspec.Struct, frozen=True):
    """All that could be said of a request without measuring anything."""

    inventory: Inventory
    facts: RequestFacts
    course: Course
    shadows: tuple[tuple[str, Course | Denied], ...] = ()
    """What each shadow policy would make of it."""

    @property
    def models(self) -> frozenset[ModelName]:
        """Models that may still be chosen."""
        return frozenset(self.inventory.targets[place].model for place in places(self.course.alive))

    @property
    def mask(self) -> int:
        """The targets to be measured, for shadow policies too, as a bit mask."""
        mask = self.course.alive
        for _, course in self.shadows:
            if isinstance(course, Course):
                mask |= course.alive
        return mask

    @property
    def targets(self) -> tuple[int, ...]:
        """Their places."""
        return places(self.mask)

    def decide(self, measured: Measured, rng: random.Random, out: int = 0) -> Chosen | Empty:
        """Drop by what was measured, rank what is left, and say all that led to it.

        `out`: targets that cannot serve now (away, asleep, failing), as a bit mask.
        """
        # Each target has one number in all stages and for all shadow policies. Two that are worlds
        # apart in nothing but a tie then choose the same.
        draw = rng.random
        ties = [draw() for _ in self.inventory.targets]
        # Without a conversation there is nothing to be stable over; shares still get their part.
        conversation = self.facts.conversation or f"{rng.getrandbits(64):x}"
        verdict = self.course.run(measured, ties, conversation, out)
        if not self.shadows:
            return verdict
        told = {
            policy: self._told(
                verdict, c if isinstance(c, Denied) else c.run(measured, ties, conversation, out)
            )
            for policy, c in self.shadows
        }
        return replace(verdict, shadow=told)

    def _told(self, real: Chosen | Empty, other: Chosen | Empty | Denied) -> str:
        """Say what another verdict would have changed."""
        match other:
            case Denied():
                return f"would deny it with {other.status} by {other.source}"
            case Empty():
                return (
                    "the same" if isinstance(real, Empty) else f"would refuse it by {other.source}"
                )
        chosen = other.ranked[0].target
        name = _name(self.inventory.targets[chosen])
        if isinstance(real, Empty):
            return f"would choose {name} by {other.source} rather than refuse it"
        if real.ranked[0].target != chosen:
            instead = _name(self.inventory.targets[real.ranked[0].target])
            return f"would choose {name} by {other.source} rather than {instead}"
        return "the same" if real.set == other.set else f"the same, rewritten by {other.source}"


class Bound:
    """Policies over one inventory. Remembers what it worked out, and nothing else."""

    def __init__(self, rules: Sequence[CompiledRule], inventory: Inventory) -> None:
        self.inventory = inventory
        self._masks = Masks(inventory)
        self._default = BoundRule(None, self._masks)
        bound = [BoundRule(rule, self._masks) for rule in rules]
        self._enforced = _in_force(bound)
        shadows = {rule.source.policy for rule in rules if rule.mode is Mode.SHADOW}
        # Each by itself beside what is in force, so that what it would change is its own doing.
        self._shadows = tuple((policy, _in_force(bound, policy)) for policy in sorted(shadows))
        self._concerned: dict[tuple[str, str, bool], Concerned] = {}

    def meant(self, requested: str) -> int:
        """Return the targets that serve what a requested name means, as a bit mask."""
        return self._masks.meant(requested).targets

    def plan(self, facts: RequestFacts, pools: Pools) -> Plan | Denied:
        """Take every step for a request that needs no measurement."""
        asked = Asked(facts, pools, self._masks.meant(facts.model))
        enforced, shadows = self._rules_for(asked)
        course = follow(enforced, self._default, asked)
        if isinstance(course, Denied):
            return course
        others = [(name, follow(rules, self._default, asked)) for name, rules in shadows]
        return Plan(self.inventory, facts, course, tuple(others))

    def _rules_for(self, asked: Asked) -> "Concerned":
        """Return the rules that can match a request by who sends it where: few of many."""
        key = asked.facts.tenant, asked.facts.api, asked.facts.stream
        found = self._concerned.get(key)
        if found is None:
            if len(self._concerned) >= CONCERNED:
                self._concerned.clear()
            shadows = ((name, _concerning(rules, asked)) for name, rules in self._shadows)
            found = _concerning(self._enforced, asked), tuple(shadows)
            self._concerned[key] = found
        return found


class PolicySet:
    """Policies that are in force together. Immutable."""

    def __init__(self, rules: tuple[CompiledRule, ...]) -> None:
        self.rules = rules
        """All rules in the order in which they count, those of shadow policies too."""
        conditions = (condition for rule in rules for condition in rule.conditions())
        self.names_headers = frozenset(name for each in conditions for name in each.headers)
        """Headers that conditions ask for, by lower-case name."""
        stages = (s for each in rules if each.rule.route for s in each.rule.route.select)
        self.has_splits = any(stage.split for stage in stages)
        """Whether it matters which conversation a request belongs to."""
        self.asks_pools = any(m.pool for each in rules for m in _asked(each))
        """Whether it matters how full pools are."""

    def bind(self, inventory: Inventory) -> Bound:
        """Resolve all selectors against an inventory."""
        return Bound(self.rules, inventory)


def compile_(policies: Sequence[InferencePolicy]) -> PolicySet:
    """Compile policies, whatever order they come in."""
    return PolicySet(tuple(in_order(policies)))


Concerned: TypeAlias = tuple[tuple[BoundRule, ...], tuple[tuple[str, tuple[BoundRule, ...]], ...]]
"""Rules in force, and those beside each shadow policy."""


def _concerning(rules: Iterable[BoundRule], asked: Asked) -> tuple[BoundRule, ...]:
    return tuple(rule for rule in rules if rule.compiled and rule.compiled.concerns(asked))


def _in_force(rules: Sequence[BoundRule], shadow: str = "") -> tuple[BoundRule, ...]:
    return tuple(
        rule
        for rule in rules
        if rule.compiled
        and (rule.compiled.mode is Mode.ENFORCE or rule.compiled.source.policy == shadow)
    )


def _asked(rule: CompiledRule) -> Iterator[Match]:
    yield from rule.rule.matches or ()
    for exclude in rule.rule.route.exclude if rule.rule.route else ():
        if exclude.if_ is not None:
            yield exclude.if_


def _name(target: Target) -> str:
    return f"`{target.id}` with `{target.model}`"
