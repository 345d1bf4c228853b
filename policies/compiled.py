"""Rules in the order in which they count, their conditions compiled. Pure; knows no inventory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.match import TRUE, UNKNOWN, Asked, Condition
from policies.model import Drop, InferencePolicy, Mode, OnEmpty, Rule
from policies.verdict import Source


@dataclass(frozen=True, slots=True)
class CompiledDrop:
    """An exclude: a guard where it has a condition."""

    source: Source
    drop: Drop
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule and where it is from."""

    source: Source
    priority: int
    mode: Mode
    rule: Rule
    matches: tuple[Condition, ...] | None
    """`None`: it matches whatever comes."""
    guards: tuple[CompiledDrop, ...]
    excludes: tuple[CompiledDrop, ...]

    @property
    def protects(self) -> bool:
        """Whether it counts even where another rule routes."""
        return bool(self.guards) or self.rule.reject is not None

    @property
    def goes_on(self) -> bool:
        """Whether the next rule gets the request where this one has no target."""
        return self.rule.route is not None and self.rule.route.on_empty is OnEmpty.NEXT_RULE

    def holds(self, asked: Asked, unknown: dict[str, None]) -> bool:
        """Say whether the rule matches, and note what was not known: it does not match then."""
        if self.matches is None:
            return True
        open_ = []
        for condition in self.matches:
            truth = condition.truth(asked)
            if truth is TRUE:
                return True
            if truth is UNKNOWN:
                open_.append(condition)
        for condition in open_:
            unknown.update(dict.fromkeys(condition.unknown(asked)))
        return False

    def concerns(self, asked: Asked) -> bool:
        """Whether it can match any request of this one's tenant, API and kind of answer."""
        return self.matches is None or any(each.concerns(asked) for each in self.matches)

    def conditions(self) -> Iterator[Condition]:
        """Return every condition in it."""
        yield from self.matches or ()
        yield from (guard.condition for guard in self.guards if guard.condition is not None)


def in_order(policies: Sequence[InferencePolicy]) -> list[CompiledRule]:
    """Compile all rules and sort them.

    Priority, highest first; then rules with `matches` before those without; then namespace and name
    of the policy; then as written.
    """
    ordered = sorted(policies, key=lambda each: (each.metadata.namespace, each.metadata.name))
    rules = [compile_rule(policy, rule) for policy in ordered for rule in policy.spec.rules]
    return sorted(rules, key=lambda rule: (-rule.priority, rule.matches is None))  # stable


def compile_rule(policy: InferencePolicy, rule: Rule) -> CompiledRule:
    """Compile one rule."""
    drops = [
        CompiledDrop(
            Source(policy.key, rule.name, exclude.name),
            exclude.drop,
            None if exclude.if_ is None else Condition(exclude.if_),
        )
        for exclude in (rule.route.exclude if rule.route else ())
    ]
    return CompiledRule(
        source=Source(policy.key, rule.name),
        priority=policy.spec.priority,
        mode=policy.spec.mode,
        rule=rule,
        matches=None if rule.matches is None else tuple(map(Condition, rule.matches)),
        guards=tuple(drop for drop in drops if drop.condition is not None),
        excludes=tuple(drop for drop in drops if drop.condition is None),
    )
