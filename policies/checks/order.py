"""The rules of all policies together: which are never reached, and where a tag's requests go. Pure.

Asked of the formulas that `prove` searches, without the evaluator: a warning says what may be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from policies.checks.codes import Found
from policies.checks.words import listed, quoted
from policies.compiled import CompiledRule, in_order
from policies.facts import Inventory, Truth
from policies.formula import (
    Formula,
    Narrowed,
    OutOfSteps,
    Steps,
    answers,
    narrowed,
    negation,
)
from policies.mentions import mentions
from policies.model import (
    BackendSelector,
    BackendType,
    InferencePolicy,
    Match,
    Mode,
    Route,
    Rule,
)
from policies.open_world import OpenWorld
from policies.reach import RuleFormulas, Way, Ways
from policies.regions import TooMany
from policies.request import Request
from policies.worlds import KnownWorld, World

MAX_STEPS = 1_000_000
"""Parts of conditions looked at for a whole set, about two seconds. Beyond: `not-checked`."""

_PROVIDER = BackendSelector(type=BackendType.PROVIDER)


@dataclass(frozen=True, slots=True)
class InPolicy:
    """Something found in a policy, by its place among those that were checked."""

    policy: int
    found: Found


def check_order(
    policies: Sequence[InferencePolicy], inventory: Inventory | None
) -> Iterator[InPolicy]:
    """Check all policies that are in force, together."""
    enforced = [each for each in policies if each.spec.mode is Mode.ENFORCE]
    where = {
        id(rule): (number, ("spec", "rules", place))
        for number, policy in enumerate(policies)
        for place, rule in enumerate(policy.spec.rules)
    }
    rules = in_order(enforced)
    try:
        steps = Steps(MAX_STEPS)
        checked = _Rules(rules, enforced, inventory, steps)
        found = [*checked.unreachable(), *checked.falling()]
    except (TooMany, OutOfSteps):
        if rules:
            message = "which rules are reached was not checked: there are too many conditions"
            yield InPolicy(where[id(rules[0].rule)][0], Found(("spec",), "not-checked", message))
        found = []
    for compiled, each in (*found, *_last(rules)):
        number, path = where[id(compiled.rule)]
        yield InPolicy(number, Found((*path, *each.path), each.code, each.message, each.help))


InRule = tuple[CompiledRule, Found]


class _Rules:
    """All rules that are in force, as formulas over one request."""

    def __init__(
        self,
        rules: Sequence[CompiledRule],
        policies: Sequence[InferencePolicy],
        inventory: Inventory | None,
        steps: Steps,
    ) -> None:
        mentioned = mentions((*policies, _PROVIDER))
        self._world: World[Any] = (
            OpenWorld(mentioned) if inventory is None else KnownWorld(inventory, mentioned)
        )
        self._request = Request(mentioned, self._world)
        self._ways = Ways(rules, self._request, self._world)
        self._steps = steps

    def unreachable(self) -> Iterator[InRule]:
        """Find rules that never route, since others take or reject all that they match."""
        rules = self._ways.rules
        rejects = [each for each in rules if each.compiled.rule.reject is not None]
        open_ = self._so([negation(each.matched) for each in rejects])
        enders: list[RuleFormulas] = [*rejects]
        for rule in rules:
            compiled = rule.compiled
            if compiled.rule.route is None or compiled.rule.reject is not None:
                continue
            left = open_ is not None and self._can((rule.matched,), open_)
            if not left and not _only_guards(compiled) and self._can((rule.matched,)):
                yield compiled, self._shadowed(rule, enders)
            if not compiled.goes_on:
                enders.append(rule)
                open_ = open_ and self._so([negation(rule.matched)], open_)

    def falling(self) -> Iterator[InRule]:
        """Find rules that keep a tag's requests local, and do not where the tag is unknown."""
        rules = enumerate(self._ways.rules)
        tagged = {number: each for number, each in rules if _protects_a_tag(each.compiled.rule)}
        to_providers = self._to_providers() if tagged else []
        leaving = {way.number for _, way in to_providers}
        for number, rule in tagged.items():
            if number not in leaving:
                rejects = rule.compiled.rule.reject is not None
                ways = [each for each in to_providers if rejects or each[1].number > number]
                yield from self._fallen(rule.compiled, ways)

    def _fallen(self, rule: CompiledRule, ways: Sequence[tuple[Narrowed, Way]]) -> Iterator[InRule]:
        for place, match in enumerate(rule.rule.matches or ()):
            tags = _wanted(match)
            unknown = self._unknown(match, tags) if tags else []
            leaving = (way for common, way in ways if self._can((*unknown, *way.formulas), common))
            way = next(leaving, None) if tags else None
            if way is not None:
                message = (
                    f"while tag {listed(tags)} is unknown, {quoted(str(way.source))} can send the "
                    "request to a provider"
                )
                path = ("matches", place, "tag" if match.tag is not None else "tags")
                help_ = "exclude providers with an `if` on the tag, which holds while it is unknown"
                yield rule, Found(path, "tag-falls-through", message, help_)

    def _unknown(self, match: Match, tags: Sequence[str]) -> list[Formula]:
        """Say that a condition would hold, but for its tags, which are unknown."""
        lacks = match.tags.none if match.tags is not None else ()
        fields = {name: getattr(match, name) for name in match.__struct_fields__}
        rest = Match(**{**fields, "tag": None, "tags": None})
        return [
            self._request.holds(rest).true,
            *(self._request.tag(tag, Truth.UNKNOWN) for tag in tags),
            *(self._request.tag(tag, Truth.FALSE) for tag in lacks if tag not in tags),
        ]

    def _to_providers(self) -> list[tuple[Narrowed, Way]]:
        """Return the ways by which some request can reach a provider."""
        found: list[tuple[Narrowed, Way]] = []
        for subject in self._world.subjects:
            provider = subject.part(backend=_PROVIDER)
            common = self._so([provider, *self._ways.common(subject)])
            if common is not None:
                ways = self._ways.to(subject)
                found += ((common, way) for way in ways if self._can(way.formulas, common))
        return found

    def _shadowed(self, rule: RuleFormulas, enders: Sequence[RuleFormulas]) -> Found:
        by = next(
            (each for each in enders if not self._can((rule.matched, negation(each.matched)))), None
        )
        whose = "earlier rules" if by is None else quoted(str(by.compiled.source))
        verb = "take" if by is None else "rejects" if by.compiled.rule.reject else "takes"
        name = quoted(rule.compiled.rule.name)
        message = f"rule {name} never routes: {whose} {verb} all that it matches"
        guards = "its guards hold all the same" if rule.compiled.guards else ""
        return Found((), "unreachable-rule", message, guards)

    def _so(self, formulas: Sequence[Formula], after: Narrowed | None = None) -> Narrowed | None:
        begun = after or Narrowed({}, [])
        return narrowed((*begun.open, *formulas), begun.masks, self._steps)

    def _can(self, formulas: Sequence[Formula], after: Narrowed | None = None) -> bool:
        """Whether there is an answer to some formulas and those before them."""
        start = self._so(formulas, after)
        return start is not None and next(answers(start, self._steps), None) is not None


def _only_guards(rule: CompiledRule) -> bool:
    """Whether a route is there for its guards, which hold wherever it stands."""
    route = rule.rule.route
    carried = route is not None and route == Route(exclude=route.exclude)
    return carried and bool(rule.guards) and not rule.excludes


def _protects_a_tag(rule: Rule) -> bool:
    routes = rule.route is not None or rule.reject is not None
    return routes and any(_wanted(match) for match in rule.matches or ())


def _wanted(match: Match) -> list[str]:
    """Return the tags that a request must have."""
    single = [] if match.tag is None else [match.tag]
    more = [] if match.tags is None else [*match.tags.all, *match.tags.any]
    return list(dict.fromkeys((*single, *more)))


# --- what can be told without a search ------------------------------------------------------------


def _last(rules: Sequence[CompiledRule]) -> Iterator[InRule]:
    routes = [each for each in rules if each.rule.route is not None and each.rule.reject is None]
    if routes and routes[-1].goes_on:
        message = "no rule with a route comes after this one: the default route does"
        yield routes[-1], Found(("route", "onEmpty"), "next-rule-last", message)
