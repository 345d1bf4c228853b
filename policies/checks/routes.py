"""One rule by itself: its excludes, stages and rewrites. Pure.

What a selector can take is asked of a target that may be anything: `open_world`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from lineside.schema import Path
from policies.checks.codes import Found
from policies.checks.matches import TOKEN, check_match
from policies.checks.words import quoted
from policies.drop import BOUNDS
from policies.formula import ANYTHING, Formula, OutOfSteps, Steps, answers, narrowed, negation
from policies.mentions import mentions
from policies.model import (
    BackendType,
    Drop,
    Exclude,
    Measure,
    Route,
    Rule,
    SetFields,
    Share,
    Stage,
    Threshold,
)
from policies.open_world import OpenSubject, OpenWorld
from policies.reach import considered, covers, in_stage, is_measured, number_within
from policies.regions import TooMany
from policies.reserved import HEADERS, PARAMETERS

MAX_STEPS = 20_000
"""Parts of conditions looked at for one rule. Beyond, its stages are taken to be reached."""

MAX_ANSWERS = 20
"""Clusters tried for one question. Beyond, one is taken to exist."""

_FRACTIONS = frozenset({Measure.KV_CACHE_USAGE, Measure.GPU_UTILIZATION})

_WORTH_MORE = frozenset({Measure.CACHED_TOKENS})
_WORTH_LESS = frozenset(
    {
        Measure.PREDICTED_TTFT,
        Measure.PREDICTED_E2E,
        Measure.QUEUED_PROMPTS,
        Measure.UNCACHED_TOKENS,
        Measure.COST,
        Measure.FRESHNESS,
    }
)
"""The rest is used to fill few engines as well as to spread over many."""


def check_rule(path: Path, rule: Rule) -> Iterator[Found]:
    """Check one rule of a policy."""
    for place, match in enumerate(rule.matches or ()):
        yield from check_match((*path, "matches", place), match)
    if rule.matches == ():
        message = f"rule {quoted(rule.name)} matches nothing: `matches` is empty"
        help_ = "without `matches` it would match every request"
        yield Found((*path, "matches"), "no-effect", message, help_)
    if rule.route is None and rule.reject is None and not rule.limits:
        message = f"rule {quoted(rule.name)} does nothing with the requests that it matches"
        yield Found(path, "no-effect", message, "give it a `route`, `reject` or `limits`")
    if rule.route is not None and rule.reject is not None:
        message = f"rule {quoted(rule.name)} rejects its requests, and its route is never used"
        yield Found((*path, "route"), "reject-and-route", message)
    yield from _limits(path, rule)
    if rule.route is not None:
        yield from _route((*path, "route"), rule.route)
        yield from _provider_first((*path, "route", "select"), rule, rule.route)


def _provider_first(path: Path, rule: Rule, route: Route) -> Iterator[Found]:
    """Find a stage of providers that takes requests although local engines may have room."""
    types = [stage.type for stage in route.select]
    if BackendType.PROVIDER not in types or _minds_load(rule, route):
        return
    first = types.index(BackendType.PROVIDER)
    if BackendType.LOCAL in types[first:]:
        later = types.index(BackendType.LOCAL, first)
        message = (
            f"`select[{first}]` sends requests to providers before the local engines of "
            f"`select[{later}]` are tried"
        )
        help_ = "put the local stage first, or exclude providers while the pool is not saturated"
        yield Found((*path, first), "provider-first", message, help_)


def _minds_load(rule: Rule, route: Route) -> bool:
    """Whether the rule, or an exclude that is about providers, asks how busy anything is."""
    asked = [match.pool is not None for match in rule.matches or ()]
    about = [
        each
        for each in route.exclude
        if each.drop.backend is None or each.drop.backend.type is not BackendType.LOCAL
    ]
    guarded = any(
        is_measured(each.drop) or (each.if_ is not None and each.if_.pool is not None)
        for each in about
    )
    return guarded or (bool(asked) and all(asked))


def _limits(path: Path, rule: Rule) -> Iterator[Found]:
    for place, limit in enumerate(rule.limits):
        here = (*path, "limits", place)
        numbers = (
            limit.requests,
            limit.input_tokens,
            limit.output_tokens,
            limit.uncached_tokens,
            limit.total_tokens,
            limit.concurrent,
        )
        if all(number is None for number in numbers):
            yield Found(here, "empty-limit", "a limit limits nothing: it has no number")
        yield Found(here, "limit-not-enforced", "limits are read and not yet enforced")


def _route(path: Path, route: Route) -> Iterator[Found]:
    for place, exclude in enumerate(route.exclude):
        yield from _exclude((*path, "exclude", place), exclude)
    for place, stage in enumerate(route.select):
        yield from _stage((*path, "select", place), stage)
    yield from _candidates(path, route)
    if route.set is not None:
        yield from _set((*path, "set"), route.set)


# --- excludes -------------------------------------------------------------------------------------


def _exclude(path: Path, exclude: Exclude) -> Iterator[Found]:
    if exclude.if_ is not None:
        yield from check_match((*path, "if"), exclude.if_)
    drop, here, name = exclude.drop, (*path, "drop"), quoted(exclude.name)
    for field, (written, measure) in BOUNDS.items():
        threshold: Threshold | None = getattr(drop, field)
        if threshold is None:
            continue
        if threshold == Threshold():
            message = f"`{written}` has no bound, so that it holds for every number that is known"
            yield Found((*here, written), "empty-condition", message)
        elif not _is_possible(threshold, measure):
            message = f"exclude {name} drops nothing: no number is within the bounds of `{written}`"
            yield Found((*here, written), "never-drops", message)
    asked = _Asked.of(drop)
    if asked is None:
        return
    taken = covers(asked.subject, drop)
    if asked.never((taken,)):
        message = f"exclude {name} drops nothing: no backend is as `drop` says"
        yield Found(here, "never-drops", message)
    # With an `if`, one that says `names: ['*']` is meant: it refuses while a tag is unknown too.
    all_ = drop == Drop() or (exclude.if_ is None and asked.never((negation(taken),)))
    if all_ and not is_measured(drop):
        message = f"exclude {name} drops every backend"
        yield Found(here, "drops-everything", message, "say which backends it is about")


def _is_possible(threshold: Threshold, measure: Measure) -> bool:
    if measure in _FRACTIONS:
        most = 1.0 if threshold.at_most is None else min(1.0, threshold.at_most)
        threshold = structs.replace(threshold, at_most=most)
    return number_within(threshold) is not None


# --- candidates -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """A target that may be anything, and the search for what it would have to be."""

    world: OpenWorld
    subject: OpenSubject

    @classmethod
    def of(cls, part: Drop | Route) -> "_Asked | None":
        """Return what to ask of a part; `None`: it has too many names to tell apart."""
        try:
            world = OpenWorld(mentions((part,)))
        except TooMany:
            return None
        return cls(world, world.subjects[0])

    def never(self, formulas: Sequence[Formula]) -> bool:
        """Whether no target can be so, as far as it can be told."""
        steps = Steps(MAX_STEPS)
        try:
            start = narrowed(ANYTHING, formulas, steps)
            for number, masks in enumerate(answers(start, steps) if start else ()):
                found = self.world.scene(self.subject, masks) is not None
                if found or number >= MAX_ANSWERS:
                    return False
        except OutOfSteps:
            return False
        return True


def _candidates(path: Path, route: Route) -> Iterator[Found]:
    """Check whom the route considers, and whom its stages can take of them."""
    asked = _Asked.of(route)
    if asked is None:
        return
    candidate = considered(asked.subject, route)
    if route.consider is not None and asked.never((candidate,)):
        yield Found((*path, "consider"), "nothing-considered", "no backend can be considered")
        return
    drops = [each.drop for each in route.exclude if each.if_ is None]
    kept = [negation(covers(asked.subject, drop)) for drop in drops if not is_measured(drop)]
    before: list[Formula] = []
    for place, stage in enumerate(route.select):
        taken = in_stage(asked.subject, stage)
        switched_off = stage.split is not None and not any(each.weight for each in stage.split)
        if not switched_off and asked.never((candidate, *kept, taken, *before)):
            by_itself = asked.never((candidate, *kept, taken))
            why = (
                "no candidate can be in it" if by_itself else "earlier stages take all that it can"
            )
            message = f"`select[{place}]` is never reached: {why}"
            yield Found((*path, "select", place), "unreachable-stage", message)
        before.append(negation(taken))


# --- stages ---------------------------------------------------------------------------------------


def _stage(path: Path, stage: Stage) -> Iterator[Found]:
    ways = {
        "minimize": stage.minimize,
        "maximize": stage.maximize,
        "order": stage.order,
        "split": stage.split,
    }
    given = [name for name, way in ways.items() if way is not None]
    if len(given) > 1:
        words = ", ".join(f"`{name}`" for name in given)
        message = f"a stage ranks in one way, and this one has {words}"
        yield Found((*path, given[1]), "several-rankings", message)
    if stage.minimize in _WORTH_MORE:
        message = f"the fewest {quoted(stage.minimize.value)} come first"
        yield Found((*path, "minimize"), "ranking-direction", message, "maximize it")
    if stage.maximize in _WORTH_LESS:
        message = f"the most {quoted(stage.maximize.value)} comes first"
        yield Found((*path, "maximize"), "ranking-direction", message, "minimize it")
    for place, name in enumerate(stage.order or ()):
        if name in (stage.order or ())[:place]:
            message = f"{quoted(name)} is in the order twice"
            yield Found((*path, "order", place), "named-twice", message)
    yield from _split((*path, "split"), stage.split or ())
    if stage.split is not None and not any(share.weight for share in stage.split):
        message = "no share of the split has a weight"
        yield Found((*path, "split"), "split-zero", message)


def _split(path: Path, split: Sequence[Share]) -> Iterator[Found]:
    for place, share in enumerate(split):
        if (share.backend is None) == (share.model is None):
            both = "neither a backend nor a model" if share.backend is None else "both"
            message = f"a share is of a backend or of a model, and this one names {both}"
            yield Found((*path, place), "split-share", message)


# --- rewrites -------------------------------------------------------------------------------------


_MAX_TOKENS = frozenset({"max_tokens", "max_completion_tokens"})
"""What bodies call the cap on their output."""


def _set(path: Path, given: SetFields) -> Iterator[Found]:
    parameters: dict[str, Mapping[str, Any]] = {
        "defaults": given.defaults or {},
        "parameters": given.parameters or {},
    }
    for field, those in parameters.items():
        for name in those:
            if name in PARAMETERS:
                message = f"parameter {quoted(name)} is the gateway's own"
                yield Found((*path, field, name), "reserved-parameter", message)
    for name in parameters["defaults"].keys() & parameters["parameters"].keys():
        message = f"parameter {quoted(name)} has a default and a value that nobody may change"
        yield Found((*path, "defaults", name), "set-twice", message)
    for field, those in parameters.items() if given.max_tokens is not None else ():
        for name in sorted(those.keys() & _MAX_TOKENS):
            message = f"`maxTokens` caps the output, and {quoted(name)} says how much it is"
            yield Found((*path, field, name), "set-max-tokens", message)
    for name, value in (given.headers or {}).items():
        if not TOKEN.match(name):
            message = f"no header can be called {quoted(name)}"
            yield Found((*path, "headers", name), "unsendable-header", message)
        if value != value.strip() or not value.isprintable():
            message = f"the value of header {quoted(name)} cannot be sent as it is"
            yield Found((*path, "headers", name), "unsendable-header", message)
        if name.strip().lower() in HEADERS:
            message = f"header {quoted(name)} is the gateway's own"
            yield Found((*path, "headers", name), "reserved-header", message)
