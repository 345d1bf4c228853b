"""How much work each engine was given lately: what spreads a stream of one request at a time. Pure.

Written by the service alone, with every decision. With nothing in flight every engine looks alike,
and whoever was first to hold what all prompts begin with would get them all. Work that was given to
an engine makes it a little dearer, so that sooner or later another one computes that beginning too.

The memory fades by decisions, not by seconds: a slow stream is spread like a fast one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.engines import Engine
from lineside.ids import EngineId, GroupId

MEMORY = 500
"""Decisions of a group after which a piece of work counts for a third of itself."""

SHARE = 0.1
"""What a second of recent work costs, in seconds. A prompt moves once this much of the difference
in work outweighs computing it anew, so all such moves together cost at most half of this share."""

_FULL = 1e100
"""Weights grow rather than that all sums shrink; here they are brought back to 1."""


@dataclass(slots=True)
class _Group:
    weight: float = 1.0
    sums: dict[EngineId, float] = field(default_factory=dict)


class RecentWork:
    """The work of all groups' engines."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, _Group] = {}

    def note(self, engine: Engine, own_s: float) -> None:
        """Remember a request's own prefill."""
        of = self._groups.setdefault(engine.group, _Group())
        of.weight *= 1 + 1 / MEMORY
        of.sums[engine.id] = of.sums.get(engine.id, 0.0) + own_s * of.weight
        if of.weight > _FULL:
            of.sums = {name: total / of.weight for name, total in of.sums.items()}
            of.weight = 1.0

    def welcome(self, engine: Engine) -> None:
        """Let a newcomer begin with what the others have: with nothing it would get everything."""
        of = self._groups.get(engine.group)
        if of is not None and of.sums:
            mean = sum(of.sums.values()) / len(of.sums)
            of.sums[engine.id] = max(of.sums.get(engine.id, 0.0), mean)

    def column(self, engines: Sequence[EngineId], groups: Iterable[GroupId]) -> list[float]:
        """Return the recent work of engines, which are of these groups."""
        found = [of for group in groups if (of := self._groups.get(group))]
        if len(found) == 1:
            sums, weight = found[0].sums, found[0].weight
            return [sums.get(engine, 0.0) / weight for engine in engines]
        seconds = {name: total / of.weight for of in found for name, total in of.sums.items()}
        return [seconds.get(engine, 0.0) for engine in engines]

    def seconds(self, engine: Engine) -> float:
        """Return an engine's recent work."""
        of = self._groups.get(engine.group)
        return of.sums.get(engine.id, 0.0) / of.weight if of else 0.0

    def shares(self) -> dict[GroupId, dict[EngineId, float]]:
        """Return each group's work by engine, as shares of the whole."""
        return {
            group: {name: total / whole for name, total in of.sums.items()}
            for group, of in self._groups.items()
            if (whole := sum(of.sums.values()))
        }

    def keep(self, groups: Mapping[EngineId, GroupId]) -> None:
        """Forget all engines but these."""
        for group, of in list(self._groups.items()):
            of.sums = {name: total for name, total in of.sums.items() if groups.get(name) == group}
            if not of.sums:
                del self._groups[group]
