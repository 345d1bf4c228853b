"""One request's way through the rules: which it meets, and which route leaves a target. Pure.

`follow` takes every step that needs no measurement. `Course.run` measures and ranks the rest.
"""

from collections.abc import Iterable, Sequence

import msgspec

from policies.attempt import Attempt, BoundRule, attempts
from policies.drop import BoundDrop
from policies.facts import Measured, places
from policies.match import Asked
from policies.ranking import Ranking
from policies.stage import Columns
from policies.story import Story
from policies.verdict import Chosen, Denied, Empty, Source


class Course(msgspec.Struct, frozen=True):
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
        story = Story(self.meant, self.guards, self.unknown)
        for attempt in self.attempts:
            columns = Columns(measured, places(attempt.alive & ~out), len(ties))
            alive = story.drop(attempt, columns, out)
            if alive:
                stages = attempt.rule.stages
                return story.chosen(attempt, Ranking(stages, alive, columns, ties, conversation))
        return story.empty(self.attempts[-1])


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
        attempts=tuple(attempts(routes, guards, asked.meant.targets)),
        meant=asked.meant.targets,
        guards=tuple(guard.source for guard in guards),
        unknown=tuple(unknown),
    )
