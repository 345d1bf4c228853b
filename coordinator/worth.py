"""What each engine's cache is worth: the tokens to compute anew without it. Pure.

Written by the service alone, with every decision. Worth is what requests read from the cache
lately, and never more than there is in it: what nobody reads is worth nothing, and a prefix that a
hundred requests share has to be computed once. What was read fades with time, not with decisions: a
cache that nobody asks for gets old.
"""

import math
from collections.abc import Collection

from coordinator.engines import EngineView
from lineside.hashing import UNIT
from lineside.ids import EngineId

HALF_LIFE_S = 600.0
"""After it what was read counts half: agents of people pause for minutes, and come back."""


class CacheWorth:
    """Of all engines."""

    def __init__(self) -> None:
        self._read: dict[EngineId, tuple[float, float]] = {}
        """Tokens that were read from the cache, and when that was true."""

    def note(self, engine: EngineId, cached_tokens: int, now: float) -> None:
        """Remember that a request was sent to what the cache has of it."""
        if cached_tokens:
            self._read[engine] = self.read_tokens(engine, now) + cached_tokens, now

    def read_tokens(self, engine: EngineId, now: float) -> float:
        """Return how much was read lately."""
        tokens, at = self._read.get(engine, (0.0, now))
        return tokens * math.exp2(-max(0.0, now - at) / HALF_LIFE_S)

    def tokens(self, view: EngineView, now: float) -> int | None:
        """Return what an engine's cache is worth; `None`: it is not known what is in it."""
        if view.status is None or not view.cache_usable:
            return None
        held = view.status.blocks * (view.block_size or UNIT)
        return min(held, round(self.read_tokens(view.engine.id, now)))

    def keep(self, engines: Collection[EngineId]) -> None:
        """Forget all engines but these."""
        for gone in self._read.keys() - engines:
            del self._read[gone]
