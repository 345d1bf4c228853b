"""A plan and what was measured to a decision: the policies rank, and say why not others. Pure.

Nothing is remembered here: the caller accounts it. Candidates are made for those who look at one:
the winner, its fallbacks, a record that is read.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coordinator.candidates import Candidate
from coordinator.measurement import Part
from coordinator.targets import Layout
from policies.evaluate import Plan
from policies.facts import Measured
from policies.model import Measure
from policies.verdict import Chosen, Empty


@dataclass(frozen=True)
class Decision:
    """What the policies made of the measurements. Candidates are made when they are looked at."""

    verdict: Chosen | Empty
    parts: tuple[Part, ...]
    layout: Layout

    @cached_property
    def chosen(self) -> Candidate:
        """The one that gets the request. There is one unless the verdict is `Empty`."""
        assert isinstance(self.verdict, Chosen)
        best = self.verdict.ranked[0]
        return self._at(best.target, best.stage)

    @cached_property
    def ranked(self) -> tuple[Candidate, ...]:
        """Best first: the chosen one, then its ordered fallbacks."""
        if isinstance(self.verdict, Empty):
            return ()
        others = self.verdict.ranked[1:]
        return self.chosen, *(self._at(each.target, each.stage) for each in others)

    @property
    def is_short(self) -> bool:
        """Whether some engine that might have served is away, asleep or failing."""
        return any(part.field.out for part in self.parts)

    @cached_property
    def dropped(self) -> tuple[Candidate, ...]:
        """The others: those that policies dropped, then those out of the running."""
        by_policy = [
            self._at(each.target, dropped_by=str(each.source), why=each.why)
            for each in self.verdict.dropped
        ]
        out = [
            Candidate(view.engine, part.field.model, view, dropped_by=why)
            for part in self.parts
            for _, view, why in part.field.out
        ]
        return (*by_policy, *out)

    def _at(self, place: int, stage: str = "", dropped_by: str = "", why: str = "") -> Candidate:
        for part in self.parts:
            if (number := part.field.at.get(place)) is not None:
                return part.candidate(number, stage, dropped_by, why)
        target = self.layout.inventory.targets[place]
        backend = self.layout.backends[place]
        return Candidate(
            backend, target.model, cost=None, stage=stage, dropped_by=dropped_by, why=why
        )


def decide(plan: Plan, parts: Sequence[Part], layout: Layout, rng: random.Random) -> Decision:
    """Let the policies choose among what was measured; equal costs come in random order."""
    out = 0
    for part in parts:
        for place, _, _ in part.field.out:
            out |= 1 << place
    return Decision(plan.decide(_measured(parts), rng, out), tuple(parts), layout)


def _measured(parts: Sequence[Part]) -> Measured:
    """Return the parts' columns by place. What no part has, a provider's, is unknown."""
    if len(parts) == 1:
        (part,) = parts
        at, cost = part.field.at.get, part.cost

        def column(measure: Measure, places: Sequence[int]) -> list[float | None]:
            return [None if (n := at(p)) is None else part.value(measure, n) for p in places]

        def ranking(places: Sequence[int]) -> list[float | None]:
            return [None if (n := at(p)) is None else cost[n] for p in places]

        return Measured(column, ranking)
    found = {place: (part, n) for part in parts for place, n in part.field.at.items()}

    def any_column(measure: Measure, places: Sequence[int]) -> list[float | None]:
        return [
            None if (of := found.get(p)) is None else of[0].value(measure, of[1]) for p in places
        ]

    def any_ranking(places: Sequence[int]) -> list[float | None]:
        return [None if (of := found.get(p)) is None else of[0].cost[of[1]] for p in places]

    return Measured(any_column, any_ranking)
