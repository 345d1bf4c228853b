"""How often a group's engines are busy with prefills, lately. Pure.

Written by the decider alone, with every decision, dry runs too: what was seen is noted, not what
was decided. An engine that is busy makes those who come next wait for what it is given now; how
much that is worth follows from how busy its like are (decision 009).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.inflight import Queue
from lineside.ids import ModelName

MEMORY_S = 10.0
"""An observation counts for a third after this long."""

LEAST, MOST = 1.0, 2.0
"""What a prefill counts for, in units of itself, to those that come after it. Not less, although
engines that idle delay nobody: a burst of one new prefix would be spread over all of them."""

KEPT = 1000
"""Models that are remembered; all are forgotten when there are more."""


@dataclass(slots=True)
class _Mean:
    at: float
    share: float
    now: float


class Pressure:
    """The share of engines with a prefill in flight, by model, averaged over time."""

    def __init__(self) -> None:
        self._means: dict[ModelName, _Mean] = {}

    def beta(self, model: ModelName, queues: Sequence[Queue], now: float) -> float:
        """Note the queues of a model's engines; return what a prefill costs those behind it.

        In units of that prefill, from `LEAST` to `MOST`.
        """
        busy = sum(1 for queue in queues if queue.queued) / max(1, len(queues))
        mean = self._means.get(model)
        if mean is None:
            if len(self._means) >= KEPT:
                self._means.clear()
            mean = self._means[model] = _Mean(now, busy, busy)
        elif now > mean.at:
            # Until now the share was what was seen last.
            mean.share += (mean.now - mean.share) * (1 - math.exp((mean.at - now) / MEMORY_S))
        mean.at, mean.now = now, busy
        idle = 1 - mean.share
        return MOST if idle * (1 + MOST) <= 1 else max(LEAST, mean.share / idle)
