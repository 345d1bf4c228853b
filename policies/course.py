"""One request's way through the rules: what it meets, what is excluded, what is tried. Pure.

`follow` takes every step that needs no measurement. `Course.run` measures and ranks the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.compiled import CompiledDrop, CompiledRule
from policies.drop import BoundDrop
from policies.facts import Measured, places
from policies.masks import Masks
from policies.match import Asked
from policies.model import Stage
from policies.stage import BoundStage, Columns
from policies.verdict import Chosen, Denied, Empty, Ranked, Source, Taken

DEFAULT = Source("default", "default")
"""The route where no rule has one: engines that serve the requested model, and no providers."""


class BoundRule:
    """A rule over one inventory; without a rule, the default route."""

    def __init__(self, compiled: CompiledRule | None, masks: Masks) -> None:
        self.compiled = compiled
        self.source = compiled.source if compiled else DEFAULT
        route = compiled.rule.route if compiled else None
        self.protects = compiled is not None and compiled.protects
        self.routes = route is not None
        self.guards = _bound(compiled.guards, masks) if compiled else ()
        self.excludes = _bound(compiled.excludes, masks) if compiled else ()
        self.set = route.set if route else None
        self.considered: int | None = None
        """`None`: what the request means."""
        if route and route.consider is not None:
            self.considered = masks.consider(route.consider)
        self.within = masks.all if compiled else masks.local
        written = (
            [(f"select[{place}]", each) for place, each in enumerate(route.select)] if route else []
        )
        self.stages = tuple(
            BoundStage(name, stage, masks) for name, stage in written or [("default", Stage())]
        )
        self.staged = 0
        for stage in self.stages:
            self.staged |= stage.mask

    def candidates(self, meant: int) -> int:
        """Return the targets that its route is about."""
        return meant & self.within if self.considered is None else self.considered


@dataclass(frozen=True, slots=True)
class Attempt:
    """One route to try, after all that is excluded without measuring."""

    rule: BoundRule
    drops: tuple[BoundDrop, ...]
    """The excludes met so far, then the guards that hold."""
    candidates: int
    taken: tuple[tuple[int, int], ...]
    """What is excluded already: the number of the drop, and its targets."""
    unstaged: int
    """What is not excluded, but in no stage."""
    alive: int
    """What is left."""


@dataclass(frozen=True, slots=True)
class Course:
    """The routes to try in turn, and what was met on the way to them."""

    attempts: tuple[Attempt, ...]
    """Never empty."""
    meant: int
    guards: tuple[Source, ...]
    unknown: tuple[str, ...]

    @property
    def alive(self) -> int:
        """What may still be chosen."""
        mask = 0
        for attempt in self.attempts:
            mask |= attempt.alive
        return mask

    def run(
        self, measured: Measured, ties: Sequence[float], conversation: str, out: int = 0
    ) -> Chosen | Empty:
        """Try the routes; return the first that leaves a target, or why none does.

        `out`: targets that cannot serve now, whatever policies say.
        """
        story = _Story(self)
        for attempt in self.attempts:
            columns = Columns(measured, places(attempt.alive & ~out), len(ties))
            alive = story.drop(attempt, columns, out)
            if alive:
                ranked: list[Ranked] = []
                for stage in attempt.rule.stages:
                    ranked += stage.rank(alive, columns, ties, conversation)
                    alive &= ~stage.mask
                return story.chosen(attempt, tuple(ranked))
        return story.empty()


def follow(rules: Iterable[BoundRule], default: BoundRule, asked: Asked) -> Course | Denied:
    """Take every step for one request that needs no measurement."""
    guards: list[BoundDrop] = []
    routes: list[BoundRule] = []
    unknown: dict[str, None] = {}  # a set in the order of meeting
    routing = True
    for rule in rules:
        if not (rule.protects or (routing and rule.routes)):
            continue  # nothing depends on it any more
        compiled = rule.compiled
        if compiled is None or not compiled.holds(asked, unknown):
            continue
        if (reject := compiled.rule.reject) is not None:
            return Denied(compiled.source, reject.status, reject.message)
        for guard in rule.guards:
            if guard.holds(asked, unknown):
                guards.append(guard)  # noqa: PERF401
        if routing and rule.routes:
            routes.append(rule)
            routing = compiled.goes_on
    if routing:
        routes.append(default)
    return Course(
        attempts=tuple(_attempts(routes, guards, asked.meant.targets)),
        meant=asked.meant.targets,
        guards=tuple(guard.source for guard in guards),
        unknown=tuple(unknown),
    )


def _attempts(
    routes: Iterable[BoundRule], guards: list[BoundDrop], meant: int
) -> Iterable[Attempt]:
    excludes: list[BoundDrop] = []
    for rule in routes:
        excludes += rule.excludes  # carried on to the routes after it
        drops = (*excludes, *guards)
        candidates = left = rule.candidates(meant)
        taken = []
        for number, drop in enumerate(drops):
            hits = 0 if drop.measures else left & drop.mask
            if hits:
                left &= ~hits
                taken.append((number, hits))
        alive = left & rule.staged
        yield Attempt(rule, drops, candidates, tuple(taken), left & ~alive, alive)


def _bound(drops: Iterable[CompiledDrop], masks: Masks) -> tuple[BoundDrop, ...]:
    return tuple(BoundDrop(drop, masks) for drop in drops)


class _Story:
    """What is met while routes are tried, for the record."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._unknown = dict.fromkeys(course.unknown)
        self._taken: list[Taken] = []
        self._seen = 0
        self._refused: BoundDrop | None = None

    def drop(self, attempt: Attempt, columns: Columns, out: int) -> int:
        """Drop what the measurements say, and return what is left."""
        alive = attempt.alive & ~out
        taken: list[tuple[int, int, Columns | None]]
        taken = [(number, hits, None) for number, hits in attempt.taken]
        for number, drop in enumerate(attempt.drops):
            if drop.measures and alive & drop.mask:
                hits, unknown = drop.measure(alive, columns)
                self._unknown.update(dict.fromkeys(unknown))
                if hits:
                    alive &= ~hits
                    taken.append((number, hits, columns))
        for number, hits, values in taken:
            self._take(attempt.drops[number].taken(hits & ~self._seen, values))
        if not alive:
            self._blame(
                attempt, sorted(number for number, hits, _ in taken if hits & attempt.rule.staged)
            )
        return alive

    def chosen(self, attempt: Attempt, ranked: tuple[Ranked, ...]) -> Chosen:
        """Tell of a route that left a target."""
        self._rest(attempt)
        rule = attempt.rule
        return Chosen(
            source=Source(rule.source.policy, rule.source.rule, ranked[0].stage),
            ranked=ranked,
            taken=tuple(self._taken),
            set=rule.set,
            guards=self._course.guards,
            unknown=tuple(self._unknown),
        )

    def empty(self) -> Empty:
        """Tell why no route left a target."""
        last = self._course.attempts[-1]
        self._rest(last)
        return Empty(
            source=self._refused.source if self._refused else last.rule.source,
            taken=tuple(self._taken),
            guards=self._course.guards,
            unknown=tuple(self._unknown),
        )

    def _take(self, taken: Taken) -> None:
        if taken.targets:
            self._taken.append(taken)
            self._seen |= taken.targets

    def _blame(self, attempt: Attempt, numbers: Iterable[int]) -> None:
        """Remember who took the last target; where a guard did so, no exclude takes its place.

        A person who asks why nothing serves a request must read of the rule that forbids it, rather
        than of the engines' being busy, which is why it came to matter.
        """
        for number in numbers:
            drop = attempt.drops[number]
            if drop.condition or not (self._refused and self._refused.condition):
                self._refused = drop

    def _rest(self, attempt: Attempt) -> None:
        """Account for what the last route left aside."""
        tried = self._course.meant
        for each in self._course.attempts:
            tried |= each.candidates
            if each is attempt:
                break
        source = attempt.rule.source
        self._take(Taken(source, tried & ~attempt.candidates & ~self._seen, "not considered"))
        self._take(Taken(source, attempt.unstaged & ~self._seen, "in no stage"))
