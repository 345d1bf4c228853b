"""The rules of all policies together: which are never reached, and where a tag's requests go. Pure.

Asked of the formulas that `prove` searches, without the evaluator: a warning says what may be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from policies.checks.codes import Found
from policies.checks.words import listed, quoted
from policies.compiled import CompiledRule, in_order
from policies.facts import Inventory, Truth
from policies.formula import (
    ANYTHING,
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

MAX_STEPS = 3_000_000
"""Parts of conditions looked at for a whole set, a few seconds. Beyond: `not-checked`.

Two hundred policies of two rules each need half a million.
"""

MAX_ANSWERS = 20
"""Clusters tried for one question. Beyond, one is taken to exist."""

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


InRule: TypeAlias = tuple[CompiledRule, Found]


@dataclass(frozen=True, slots=True)
class _To:
    """A target, and what must be so for it in any case."""

    subject: Any
    so: Narrowed


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
        if not self._world.subjects:
            return
        anywhere = _To(self._world.subjects[0], ANYTHING)
        rules = self._ways.rules
        rejects = [each for each in rules if each.compiled.rule.reject is not None]
        rest = self._and(anywhere, [negation(each.matched) for each in rejects])
        enders: list[RuleFormulas] = [*rejects]
        for rule in rules:
            compiled = rule.compiled
            if compiled.rule.route is None or compiled.rule.reject is not None:
                continue
            left = rest is not None and self._can((rule.matched,), rest)
            if not left and not self._leaves_routing(rule, enders, anywhere):
                yield compiled, self._shadowed(rule, enders, anywhere)
            if not compiled.goes_on:
                enders.append(rule)
                rest = rest and self._and(rest, [negation(rule.matched)])

    def _leaves_routing(
        self, rule: RuleFormulas, enders: Sequence[RuleFormulas], anywhere: _To
    ) -> bool:
        """Whether a rule that never routes is as meant, or wrong for another reason.

        A policy of guards leaves the routing to others; one that matches nothing is told so.
        """
        if rule.compiled.guards:
            policy = rule.compiled.source.policy
            enders = [each for each in enders if each.compiled.source.policy == policy]
            others = [negation(each.matched) for each in enders]
            return _only_guards(rule.compiled) or self._can((rule.matched, *others), anywhere)
        return not self._can((rule.matched,), anywhere)

    def falling(self) -> Iterator[InRule]:
        """Find rules that keep a tag's requests local, and do not where the tag is unknown."""
        rules = enumerate(self._ways.rules)
        tagged = {number: each for number, each in rules if _protects_a_tag(each.compiled.rule)}
        to_providers = self._to_providers() if tagged else []
        leaving = {each.number for each, _ in to_providers}
        for number, rule in tagged.items():
            if number not in leaving:
                rejects = rule.compiled.rule.reject is not None
                ways = [each for each in to_providers if rejects or each[0].number > number]
                yield from self._fallen(rule.compiled, ways)

    def _fallen(self, rule: CompiledRule, ways: Sequence[tuple[Way, _To]]) -> Iterator[InRule]:
        for place, match in enumerate(rule.rule.matches or ()):
            tags = _wanted(match)
            unknown = self._unknown(match, tags) if tags else []
            leaving = (way for way, to in ways if self._can((*unknown, *way.formulas), to))
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

    def _to_providers(self) -> list[tuple[Way, _To]]:
        """Return the ways by which some request can reach a provider."""
        found: list[tuple[Way, _To]] = []
        for subject in self._world.subjects:
            provider = subject.part(backend=_PROVIDER)
            formulas = (provider, *self._ways.common(subject))
            to = self._and(_To(subject, ANYTHING), formulas)
            ways = () if to is None else self._ways.to(subject)
            found += ((way, to) for way in ways if to and self._can(way.formulas, to))
        return found

    def _shadowed(self, rule: RuleFormulas, enders: Sequence[RuleFormulas], anywhere: _To) -> Found:
        """Name the rule that takes it all; where it takes several, none is named."""
        beside = ((each, (rule.matched, negation(each.matched))) for each in enders)
        by = next((each for each, left in beside if not self._can(left, anywhere)), None)
        whose = "earlier rules" if by is None else quoted(str(by.compiled.source))
        verb = "take" if by is None else "rejects" if by.compiled.rule.reject else "takes"
        name = quoted(rule.compiled.rule.name)
        message = f"rule {name} never routes: {whose} {verb} all that it matches"
        guards = "its guards hold all the same" if rule.compiled.guards else ""
        return Found((), "unreachable-rule", message, guards)

    def _and(self, to: _To, formulas: Sequence[Formula]) -> _To | None:
        so = narrowed(to.so, formulas, self._steps)
        return None if so is None else _To(to.subject, so)

    def _can(self, formulas: Sequence[Formula], to: _To) -> bool:
        """Whether there is a cluster in which some formulas hold, and those of the target."""
        start = narrowed(to.so, formulas, self._steps)
        if start is None:
            return False
        for number, masks in enumerate(answers(start, self._steps)):
            if number >= MAX_ANSWERS or self._world.scene(to.subject, masks) is not None:
                return True
        return False


def _only_guards(rule: CompiledRule) -> bool:
    """Whether a route says nothing else than its guards, which hold wherever it stands."""
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
