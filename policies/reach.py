"""When a request can reach a target: every way through the rules, as formulas. Pure.

Follows `course` step by step. What is measured is free: a bound never has to drop the subject,
since a number may be unknown; and it can drop any other target, unless no number is within it.
Every other backend may be away, asleep or failing, so that any rule can be left without it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from policies.compiled import CompiledDrop, CompiledRule
from policies.drop import BOUNDS
from policies.formula import TRUE, Formula, every, negation, some
from policies.match import in_bounds
from policies.model import BackendSelector, BackendType, Drop, Route, Stage, Threshold
from policies.request import Request
from policies.verdict import DEFAULT, Source
from policies.worlds import Subject, World


@dataclass(frozen=True, slots=True)
class Way:
    """One rule by which a subject could get a request, and all that must be so for it."""

    number: int
    """The rule's, in order; the default route comes after all."""
    source: Source
    formulas: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class RuleFormulas:
    """A rule, and when it matches."""

    compiled: CompiledRule
    matched: Formula
    guards: tuple[tuple[CompiledDrop, Formula], ...]
    """Each with when it is in force."""


class Ways:
    """The ways through some rules, which are in order and in force."""

    def __init__(self, rules: Sequence[CompiledRule], request: Request, world: World[Any]) -> None:
        self._world = world
        self.rules = [_with_formulas(rule, request) for rule in rules]
        self._guards = [guard for rule in self.rules for guard in rule.guards]

    def common(self, subject: Subject) -> list[Formula]:
        """Return what must be so on every way: nothing rejects, no guard forbids the subject."""
        rejects = [each for each in self.rules if each.compiled.rule.reject is not None]
        forbids = [
            every((in_force, covers(subject, guard.drop)))
            for guard, in_force in self._guards
            if not is_measured(guard.drop)
        ]
        return [*(negation(each.matched) for each in rejects), *map(negation, forbids)]

    def to(self, subject: Subject) -> Iterator[Way]:
        """Yield every rule that could send a request to the subject, the default route last."""
        before: list[Formula] = []
        carried: list[RuleFormulas] = []
        for number, rule in enumerate(self.rules):
            route = rule.compiled.rule.route
            if route is None or rule.compiled.rule.reject is not None:
                continue
            kept = _kept(subject, rule.compiled)
            taken = every((considered(subject, route), staged(subject, route)))
            yield Way(number, rule.compiled.source, (*before, rule.matched, kept, taken))
            goes_by = negation(rule.matched)
            if rule.compiled.goes_on:
                carried.append(rule)
                empty = self._emptied(subject, rule.compiled, route, carried)
                goes_by = some((goes_by, every((kept, negation(taken), *empty))))
            before.append(goes_by)
        local = subject.part(backend=BackendSelector(type=BackendType.LOCAL))
        yield Way(len(self.rules), DEFAULT, (*before, local, subject.meant()))

    def _emptied(
        self,
        subject: Subject,
        rule: CompiledRule,
        route: Route,
        carried: Sequence[RuleFormulas],
    ) -> Iterator[Formula]:
        """Say for each target that is there with the subject when a rule is left without it."""
        drops = [guard for guard in self._guards if is_possible(guard[0].drop)]
        for before in carried:
            in_force = TRUE if before.compiled is rule else before.matched
            excludes = before.compiled.excludes
            drops += [(drop, in_force) for drop in excludes if is_possible(drop.drop)]
        for other in self._world.beside(subject):
            taken = every((considered(other, route), staged(other, route)))
            dropped = (every((in_force, covers(other, drop.drop))) for drop, in_force in drops)
            yield some((negation(taken), *dropped))


def covers(subject: Subject, drop: Drop) -> Formula:
    """Say when a drop is about the subject, whatever is measured."""
    return subject.part(drop.backend, drop.models, drop.pools)


def considered(subject: Subject, route: Route) -> Formula:
    """Say when a route considers the subject."""
    if route.consider is None:
        return subject.meant()
    return some(subject.part(each.backend, each.models, each.pools) for each in route.consider)


def staged(subject: Subject, route: Route) -> Formula:
    """Say when the subject is in a stage of a route."""
    return some(in_stage(subject, stage) for stage in route.select or (Stage(),))


def in_stage(subject: Subject, stage: Stage) -> Formula:
    """Say when a stage takes the subject."""
    backend = BackendSelector(type=stage.type, names=stage.names, labels=stage.labels)
    parts = [subject.part(backend=backend, models=stage.models)]
    if stage.order is not None:
        parts.append(some(subject.share(name, None) for name in stage.order))
    if stage.split is not None:
        shares = [share for share in stage.split if share.weight]
        parts.append(some(subject.share(share.backend, share.model) for share in shares))
    return every(parts)


def thresholds(drop: Drop) -> Iterator[Threshold]:
    """Yield the bounds of a drop."""
    for attribute in BOUNDS:
        threshold: Threshold | None = getattr(drop, attribute)
        if threshold is not None:
            yield threshold


def is_measured(drop: Drop) -> bool:
    """Whether a drop has a bound, which an unknown number is never within."""
    return any(True for _ in thresholds(drop))


def is_possible(drop: Drop) -> bool:
    """Whether there are numbers within all bounds of a drop."""
    return all(number_within(each) is not None for each in thresholds(drop))


def number_within(threshold: Threshold) -> float | None:
    """Return a number that is within bounds, a small round one where there is; `None`: none is."""
    low = max(threshold.greater_than or 0.0, threshold.at_least or 0.0)
    highs = [high for high in (threshold.less_than, threshold.at_most) if high is not None]
    high = min(highs, default=low + 2)
    tests = (low, low + 1, high, (low + high) / 2)
    return next(filter(in_bounds(threshold), tests), None)


def _kept(subject: Subject, rule: CompiledRule) -> Formula:
    """Say when a rule's own excludes leave the subject, whatever is measured."""
    excludes = [each.drop for each in rule.excludes if not is_measured(each.drop)]
    return every(negation(covers(subject, drop)) for drop in excludes)


def _with_formulas(rule: CompiledRule, request: Request) -> RuleFormulas:
    matches = rule.rule.matches
    matched = TRUE if matches is None else some(request.holds(each).true for each in matches)
    excludes = rule.rule.route.exclude if rule.rule.route else ()
    conditions = [each.if_ for each in excludes if each.if_ is not None]
    guards = zip(rule.guards, conditions, strict=True)
    return RuleFormulas(
        rule,
        matched,
        tuple((guard, every((matched, request.holds(if_).not_false))) for guard, if_ in guards),
    )
