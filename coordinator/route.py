"""A plan and what was measured to a decision: the policies rank, the caller accounts. Pure.

Candidates are made for those who look at one: the winner, its fallbacks, a record that is read.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from coordinator.candidates import Candidate
from coordinator.engines import Engine
from coordinator.measurement import Part
from coordinator.providers.bars import Bar, mask_of
from coordinator.targets import Layout
from policies.evaluate import Plan
from policies.facts import Measured
from policies.model import Measure
from policies.verdict import Chosen, Empty


class Outlook(Protocol):
    """What is expected of one request's answer, and what it costs."""

    def e2e_s(self, engine: Engine, ttft_s: float, running: int) -> float:
        """Return when an engine's answer will be complete, `running` others beside it."""
        ...

    def provider_ttft_s(self, place: int) -> float | None:
        """Return what a provider's first tokens take; `None`: it has given none yet."""
        ...

    def provider_e2e_s(self, place: int) -> float | None:
        """Return what its whole answers take."""
        ...

    def price(self, place: int, uncached: int, cached: int) -> float | None:
        """Return the money that the request costs at a place; `None`: no price is known."""
        ...

    def provider_price(self, place: int) -> float | None:
        """Return the same of a provider, which has nothing of it cached as far as we know."""
        ...


@dataclass(frozen=True)
class Decision:
    """What the policies made of the measurements. Candidates are made when they are looked at."""

    verdict: Chosen | Empty
    layout: Layout
    columns: "Columns"
    outside: tuple[int, ...] = ()
    """Places that are not in the subset to choose from."""
    bars: Mapping[int, Bar] = field(default_factory=dict)
    """Places of providers that could not be chosen, and why."""

    @property
    def parts(self) -> Sequence[Part]:
        """What was measured."""
        return self.columns.parts

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
        return self.chosen, *self.fallbacks(len(self.verdict.ranked))

    def in_turn(self) -> Iterator[Candidate]:
        """Yield the ranked ones, each made when it comes to it."""
        yield self.chosen
        yield from self.ranked[1:]

    def fallbacks(self, most: int) -> tuple[Candidate, ...]:
        """Return the first of those behind the chosen one."""
        assert isinstance(self.verdict, Chosen)
        return tuple(
            self._at(each.target, each.stage) for each in self.verdict.ranked[1 : most + 1]
        )

    @property
    def is_short(self) -> bool:
        """Whether some engine that might have served is away, asleep or failing."""
        return any(part.field.out for part in self.parts)

    @cached_property
    def dropped(self) -> tuple[Candidate, ...]:
        """The others: dropped by policies, out of the running, barred, outside of the subset."""
        by_policy = [
            self._at(each.target, dropped_by=str(each.source), why=each.why)
            for each in self.verdict.dropped
        ]
        out = [
            Candidate(view.engine, part.field.model, view, dropped_by=why)
            for part in self.parts
            for _, view, why in part.field.out
        ]
        gone = {each.target for each in self.verdict.dropped}
        gone |= {place for part in self.parts for place, _, _ in part.field.out}
        barred = [
            self._at(p, dropped_by=bar.by, why=bar.why)
            for p, bar in self.bars.items()
            if p not in gone
        ]
        gone |= self.bars.keys()
        others = [
            self._at(p, dropped_by="subset", why=_OUTSIDE) for p in self.outside if p not in gone
        ]
        return (*by_policy, *out, *barred, *others)

    def _at(self, place: int, stage: str = "", dropped_by: str = "", why: str = "") -> Candidate:
        part, number = self.columns.at(place)
        target = self.layout.inventory.targets[place]
        e2e_s = self.columns.value(Measure.PREDICTED_E2E, place)
        price = self.columns.value(Measure.COST, place)
        if part is not None:
            return part.candidate(number, stage, dropped_by, why, e2e_s, price, target.pools)
        return Candidate(
            self.layout.backends[place],
            target.model,
            cost=None,
            predicted_ttft_s=self.columns.value(Measure.PREDICTED_TTFT, place),
            predicted_e2e_s=e2e_s,
            price=price,
            pools=target.pools,
            stage=stage,
            dropped_by=dropped_by,
            why=why,
        )


NO_BARS: Mapping[int, Bar] = MappingProxyType({})
_OUTSIDE = "not in the subset to choose from"


def decide(
    plan: Plan,
    parts: Sequence[Part],
    layout: Layout,
    outlook: Outlook,
    rng: random.Random,
    outside: Iterable[int] = (),
    bars: Mapping[int, Bar] = NO_BARS,
) -> Decision:
    """Let the policies choose among what was measured; equal costs come in random order.

    `outside`: places that cannot be chosen, whatever policies say. `bars`: nor these, but those
    that are not certain are where the policies find nothing else.
    """
    out, outside = 0, tuple(outside)
    for place in outside:
        out |= 1 << place
    for part in parts:
        for place, _, _ in part.field.out:
            out |= 1 << place
    columns = Columns(parts, outlook)
    measured = Measured(columns.column, columns.ranking)
    verdict = plan.decide(measured, rng, out | mask_of(bars))
    if isinstance(verdict, Empty) and not all(bar.is_certain for bar in bars.values()):
        verdict = plan.decide(measured, rng, out | mask_of(bars, certain_only=True))
        bars = {place: bar for place, bar in bars.items() if bar.is_certain}
    return Decision(verdict, layout, columns, outside, bars)


class Columns:
    """The measurements of parts by place in the inventory; what no part has is a provider's."""

    def __init__(self, parts: Sequence[Part], outlook: Outlook) -> None:
        self.parts, self._outlook = parts, outlook
        self._found = (
            {place: (part, n) for part in parts for place, n in part.field.at.items()}
            if len(parts) > 1
            else {}
        )

    def ranking(self, places: Sequence[int]) -> Sequence[float | None]:
        """Return what orders places by predicted time to first token."""
        if len(self.parts) == 1:
            (part,) = self.parts
            if places == part.field.places:
                return part.ranking  # nearly always
            at, cost, provider = part.field.at.get, part.ranking, self._outlook.provider_ttft_s
            return [provider(p) if (n := at(p)) is None else cost[n] for p in places]
        found, provider = self._found.get, self._outlook.provider_ttft_s
        return [provider(p) if (of := found(p)) is None else of[0].ranking[of[1]] for p in places]

    def column(self, measure: Measure, places: Sequence[int]) -> list[float | None]:
        """Return a measurement of each place."""
        return [self.value(measure, place) for place in places]

    def value(self, measure: Measure, place: int) -> float | None:
        """Return a measurement of one place."""
        part, number = self.at(place)
        if part is None:
            return self._of_provider(measure, place)
        match measure:
            case Measure.PREDICTED_E2E:
                ttft_s = part.value(Measure.PREDICTED_TTFT, number)
                engine, running = part.field.views[number].engine, part.loads.outstanding[number]
                return None if ttft_s is None else self._outlook.e2e_s(engine, ttft_s, running)
            case Measure.COST:
                cached = part.own[number].cached
                uncached = part.facts.load_tokens - cached
                return self._outlook.price(place, max(0, uncached), cached)
            case _:
                return part.value(measure, number)

    def _of_provider(self, measure: Measure, place: int) -> float | None:
        match measure:
            case Measure.PREDICTED_TTFT:
                return self._outlook.provider_ttft_s(place)
            case Measure.PREDICTED_E2E:
                return self._outlook.provider_e2e_s(place)
            case Measure.COST:
                return self._outlook.provider_price(place)
            case _:
                return None

    def at(self, place: int) -> tuple[Part | None, int]:
        """Return the part that measured a place, and the number there; `None`: a provider's."""
        if len(self.parts) == 1:
            (part,) = self.parts
            number = part.field.at.get(place)
            return (None, 0) if number is None else (part, number)
        return self._found.get(place, (None, 0))
