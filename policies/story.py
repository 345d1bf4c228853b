"""What happens to one request while its routes are tried, put together for the record. Pure."""

from collections.abc import Iterable, Sequence

from policies.attempt import Attempt
from policies.drop import BoundDrop
from policies.stage import Columns
from policies.verdict import Chosen, Empty, Ranked, Source, Taken


class Story:
    """Written by the one who tries the routes, from the first to the one that leaves a target."""

    def __init__(self, meant: int, guards: tuple[Source, ...], unknown: Iterable[str]) -> None:
        self._guards = guards
        self._unknown = dict.fromkeys(unknown)  # a set in the order of meeting
        self._taken: list[Taken] = []
        self._refused: BoundDrop | None = None
        self._tried = meant
        """Targets that some route might have had."""
        self._seen = 0
        """Targets that are accounted for."""

    def drop(self, attempt: Attempt, columns: Columns, out: int) -> int:
        """Drop what the measurements say, and return what is left of a route."""
        self._tried |= attempt.candidates
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

    def chosen(self, attempt: Attempt, ranked: Sequence[Ranked]) -> Chosen:
        """Tell of a route that left a target."""
        self._rest(attempt)
        rule = attempt.rule
        return Chosen(
            source=rule.sources[ranked[0].stage],
            ranked=ranked,
            taken=tuple(self._taken),
            set=rule.set,
            guards=self._guards,
            unknown=tuple(self._unknown),
        )

    def empty(self, last: Attempt) -> Empty:
        """Tell why no route left a target."""
        self._rest(last)
        return Empty(
            source=self._refused.source if self._refused else last.rule.source,
            taken=tuple(self._taken),
            guards=self._guards,
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
        source = attempt.rule.source
        if aside := self._tried & ~attempt.candidates & ~self._seen:
            self._take(Taken(source, aside, "not considered"))
        if aside := attempt.unstaged & ~self._seen:
            self._take(Taken(source, aside, "in no stage"))
