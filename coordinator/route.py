"""A plan and what was measured to a decision: the policies rank, the caller accounts. Pure.

Candidates are made for those who look at one: the winner, its fallbacks, a record that is read.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Made:
    """A decision's candidates, once somebody looked: who looks again sees the same ones."""

    chosen: Candidate | None = None
    ranked: tuple[Candidate, ...] | None = None
    dropped: tuple[Candidate, ...] | None = None


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
    _made: _Made = field(default_factory=_Made, init=False, repr=False, compare=False)

    @property
    def parts(self) -> Sequence[Part]:
        """What was measured."""
        return self.columns.parts

    @property
    def chosen(self) -> Candidate:
        """The one that gets the request. There is one unless the verdict is `Empty`."""
        if self._made.chosen is None:
            assert isinstance(self.verdict, Chosen)
            best = self.verdict.ranked[0]
            self._made.chosen = self._at(best.target, best.stage)
        return self._made.chosen

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """Best first: the chosen one, then its ordered fallbacks."""
        if isinstance(self.verdict, Empty):
            return ()
        if self._made.ranked is None:
            self._made.ranked = self.chosen, *self.fallbacks(len(self.verdict.ranked))
        return self._made.ranked

    def in_turn(self) -> Iterator[Candidate]:
        """Yield the ranked ones; those behind the chosen one are made when it comes to them."""
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

    @property
    def dropped(self) -> tuple[Candidate, ...]:
        """The others: dropped by policies, out of the running, barred, outside of the subset."""
        if self._made.dropped is None:
            self._made.dropped = self._dropped()
        return self._made.dropped

    def _dropped(self) -> tuple[Candidate, ...]:
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
        if part is not None:
            e2e_s, price = self.columns.e2e_s(part, number), self.columns.price(part, number)
            return part.candidate(number, stage, dropped_by, why, e2e_s, price, target.pools)
        ttft_s, e2e_s, price = self.columns.of_provider(place)
        return Candidate(
            self.layout.backends[place],
            target.model,
            cost=None,
            predicted_ttft_s=ttft_s,
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
        self._at = (
            {place: (k, n) for k, part in enumerate(parts) for place, n in part.field.at.items()}
            if len(parts) > 1
            else {}
        )

    def ranking(self, places: Sequence[int]) -> Sequence[float | None]:
        """Return what orders places by predicted time to first token."""
        rankings = [part.ranking for part in self.parts]
        return self._spread(rankings, places, self._outlook.provider_ttft_s)

    def column(self, measure: Measure, places: Sequence[int]) -> Sequence[float | None]:
        """Return a measurement of each place."""
        columns = [self._of(part, measure) for part in self.parts]
        return self._spread(columns, places, self._provider(measure))

    def e2e_s(self, part: Part, number: int) -> float | None:
        """Return when the whole answer of one of a part's engines is expected."""
        if (ttft_s := part.ttft_s(number)) is None:
            return None
        engine, running = part.field.views[number].engine, part.loads.outstanding[number]
        return self._outlook.e2e_s(engine, ttft_s, running)

    def price(self, part: Part, number: int) -> float | None:
        """Return the money that the request costs at one of a part's engines."""
        cached, place = part.own[number].cached, part.field.places[number]
        return self._outlook.price(place, max(0, part.facts.load_tokens - cached), cached)

    def of_provider(self, place: int) -> tuple[float | None, float | None, float | None]:
        """Return a provider's time to first token, time to its end, and price."""
        of = self._outlook
        return of.provider_ttft_s(place), of.provider_e2e_s(place), of.provider_price(place)

    def at(self, place: int) -> tuple[Part | None, int]:
        """Return the part that measured a place, and the number there; `None`: a provider's."""
        if len(self.parts) == 1:
            number = self.parts[0].field.at.get(place)
            return (None, 0) if number is None else (self.parts[0], number)
        found = self._at.get(place)
        return (None, 0) if found is None else (self.parts[found[0]], found[1])

    def _of(self, part: Part, measure: Measure) -> Sequence[float | None]:
        match measure:
            case Measure.PREDICTED_E2E:
                return [self.e2e_s(part, number) for number in range(len(part.own))]
            case Measure.COST:
                return [self.price(part, number) for number in range(len(part.own))]
            case _:
                return part.column(measure)

    def _provider(self, measure: Measure) -> Callable[[int], float | None]:
        match measure:
            case Measure.PREDICTED_TTFT:
                return self._outlook.provider_ttft_s
            case Measure.PREDICTED_E2E:
                return self._outlook.provider_e2e_s
            case Measure.COST:
                return self._outlook.provider_price
            case _:
                return lambda place: None

    def _spread(
        self,
        columns: Sequence[Sequence[float | None]],
        places: Sequence[int],
        provider: Callable[[int], float | None],
    ) -> Sequence[float | None]:
        """Return what the parts' columns have for these places."""
        if len(columns) != 1:
            found = self._at.get
            return [
                provider(p) if (at := found(p)) is None else columns[at[0]][at[1]] for p in places
            ]
        column, field_ = columns[0], self.parts[0].field
        if places == field_.places:
            return column  # nearly always
        number = field_.at.get
        return [provider(p) if (n := number(p)) is None else column[n] for p in places]
