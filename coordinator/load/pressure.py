"""How often a group's engines are busy with prefills, lately. Pure.

Written by the decider alone, with every decision, dry runs too: what was seen is noted, not what
was decided. An engine that is busy makes those who come next wait for what it is given now; how
much that is worth follows from how busy its like are (decision 009).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lineside.ids import ModelName

MEMORY_S = 10.0
"""An observation counts for a third after this long."""

MOST = 2.0
"""What a prefill counts for at most, in units of itself, to those that come after it."""

LEAST, PER_S = 0.1, 1.0
"""What it counts for at least, however idle engines are, and more for each second that it takes, up
to once: the longer it is, the likelier somebody comes meanwhile. So a burst with one long new
prefix waits for the engine that computes it, and one with a short one soon has it on several."""

KEPT = 1000
"""Models that are remembered; all are forgotten when there are more."""

Beta: TypeAlias = Callable[[float], float]
"""From the seconds of a prefill to what it costs those that come after it, in units of itself."""


@dataclass(slots=True)
class _Mean:
    at: float
    share: float
    waits: Sequence[float]
    """What the engines that computed then still had to compute, in seconds."""
    engines: int


class Pressure:
    """The share of engines with a prefill in flight, by model, averaged over time."""

    def __init__(self) -> None:
        self._means: dict[ModelName, _Mean] = {}

    def beta(self, model: ModelName, wait_s: Sequence[float], now: float) -> Beta:
        """Note what a model's engines have to compute; return what prefills cost those behind."""
        waits = [wait for wait in wait_s if wait]
        engines = max(1, len(wait_s))
        mean = self._means.get(model)
        if mean is None:
            if len(self._means) >= KEPT:
                self._means.clear()
            mean = self._means[model] = _Mean(now, len(waits) / engines, waits, engines)
        elif (gap := now - mean.at) > 0:
            # Between bursts engines idle: they were busy for as long as what was seen last lasts.
            busy_s = sum([wait if wait < gap else gap for wait in mean.waits])
            share = busy_s / (gap * mean.engines)
            mean.share += (share - mean.share) * (1 - math.exp(-gap / MEMORY_S))
        mean.at, mean.waits, mean.engines = now, waits, engines
        idle = 1 - mean.share
        by_share = MOST if idle * (1 + MOST) <= 1 else mean.share / idle

        def beta(own_s: float) -> float:
            by_length = LEAST + PER_S * own_s
            by_length = 1.0 if by_length > 1.0 else by_length
            return by_share if by_share > by_length else by_length

        return beta
