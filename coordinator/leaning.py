"""Which engines a coordinator leans to while others send to the same ones. Pure.

What the others sent within the last tenth of a second is not known here, and all of them see nearly
the same picture: undisturbed, they would send to the same engine at the same time (decision 015).
So each prefers its own share of the engines where that costs little, and never where it costs a
cache. A coordinator that is alone, or the only one that is asked anything, leans to nothing.

Written by the decider alone; nothing is kept but what follows from names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from coordinator.measurement import LEAN_S, Part
from coordinator.runners import Row
from lineside.ids import ModelName

KEPT = 1000
"""Models whose shares are kept; all are forgotten when there are more."""


class Fellows(Protocol):
    """The coordinators that send to the same engines."""

    @property
    def me(self) -> str:
        """What this one is called by all of them."""
        ...

    @property
    def active(self) -> frozenset[str]:
        """The others that had anything in flight lately."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """There are no others."""

    me: str = ""
    active: frozenset[str] = frozenset()


class _Share(NamedTuple):
    row: Row
    active: frozenset[str]
    numbers: tuple[int, ...]


@dataclass(slots=True)
class Leaning:
    """What one coordinator leans to."""

    fellows: Fellows = Alone()
    _shares: dict[ModelName, _Share] = field(default_factory=dict)

    def lean(self, part: Part) -> Part:
        """Return the same with own engines preferred that are hardly dearer than the best.

        Never before an engine that holds more of the prompt, whatever policies leave of the others.
        """
        ranking = part.ranking
        limit = min(ranking, default=0.0) + LEAN_S
        near = [number for number in self._share(part) if ranking[number] < limit]
        if not near:
            return part
        cached = [each.cached for each in part.own]
        least = min(cached[number] for number in near)
        richer = [at for at, tokens in enumerate(cached) if tokens > least and ranking[at] < limit]
        leaned = frozenset(
            number
            for number in near
            if not any(
                cached[at] > cached[number] and ranking[at] <= ranking[number] for at in richer
            )
        )
        return replace(part, leaned=leaned)

    def _share(self, part: Part) -> Sequence[int]:
        """Return the numbers of the engines that are this coordinator's."""
        model, row, active = part.field.model, part.field.row, self.fellows.active
        kept = self._shares.get(model)
        if kept is None or kept.row is not row or kept.active is not active:
            if len(self._shares) >= KEPT:
                self._shares.clear()
            numbers = share(row.engines, self.fellows.me, active)
            kept = self._shares[model] = _Share(row, active, numbers)
        return kept.numbers


def share(engines: Sequence[str], me: str, others: frozenset[str]) -> tuple[int, ...]:
    """Return the places of one coordinator's engines: all are dealt out by name, one after another.

    So shares are even and nobody has to agree on them. Where coordinators see different engines
    shares overlap, which costs a part of what leaning is worth. With no more engines than
    coordinators nobody has a share: leaning was seen to be worth nothing there.
    """
    names = sorted({me, *others})
    if len(engines) <= len(names):
        return ()
    places = sorted(range(len(engines)), key=engines.__getitem__)
    return tuple(places[names.index(me) :: len(names)])
