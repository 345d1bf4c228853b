"""Engines that have just come to others: they get their share, not everything. Pure.

Written by the service, with every decision, and by whoever hears of engines. A cold engine among
busy ones has the shortest queue by far; without a bound each request of the moment goes there, and
each of them is computed from its first token on.
"""

from collections.abc import Collection, Container
from dataclasses import dataclass

from coordinator.engines import Engine
from lineside.ids import EngineId, GroupId

RAMP_S = 60.0
"""For so long after it came an engine's share is bounded."""

TOGETHER_S = 10.0
"""Engines that come within so long of each other came together."""

MOST = 1.4
"""Its bound, in even shares."""


@dataclass(slots=True)
class _Newcomer:
    group: GroupId
    until: float
    most: float
    """Share of its group's requests that it may have."""
    taken: int = 0
    seen: int = 0

    @property
    def is_full(self) -> bool:
        return self.taken >= 1 + self.most * self.seen


NONE: frozenset[EngineId] = frozenset()


class Newcomers:
    """The newcomers of all groups. There are none for nearly all of the time."""

    def __init__(self) -> None:
        self._newcomers: dict[EngineId, _Newcomer] = {}
        self._since: dict[EngineId, float] = {}

    def welcome(self, engine: Engine, others: Collection[EngineId], now: float) -> bool:
        """Note that an engine has come, or come back, to these that serve its group.

        Return whether it is a newcomer: engines that come together, as at a start, are none.
        """
        self._since[engine.id] = now
        if not any(self._since.get(other, now) <= now - TOGETHER_S for other in others):
            return False
        most = MOST / (len(others) + 1)
        self._newcomers[engine.id] = _Newcomer(engine.group, now + RAMP_S, most)
        return True

    def note(self, engine: Engine, now: float) -> None:
        """Note where a request went."""
        for name, newcomer in list(self._newcomers.items()):
            if newcomer.until <= now:
                del self._newcomers[name]
            elif newcomer.group == engine.group:
                newcomer.seen += 1
                newcomer.taken += name == engine.id

    def keep(self, engines: Container[EngineId]) -> None:
        """Forget all engines but these."""
        for known in (self._newcomers, self._since):
            for gone in [name for name in known if name not in engines]:
                del known[gone]

    def full(self) -> frozenset[EngineId]:
        """Return those that have had their share for now."""
        if not self._newcomers:
            return NONE
        return frozenset(name for name, each in self._newcomers.items() if each.is_full)
