"""How long a request's own prefill will take. Pure.

The learned model (one per class of engine, DESIGN 7) comes by replacing `FixedRate` where `main`
builds it; nothing else knows how a prediction is made.
"""

from dataclasses import dataclass
from typing import Protocol

from coordinator.engines import Engine


class Predictor(Protocol):
    """Predicts an engine's work on one request."""

    def own_s(self, engine: Engine, uncached_tokens: float, cached_tokens: int) -> float:
        """Return the seconds from the start of the prefill to the first token.

        `uncached_tokens` may be a fraction: a block in a slow medium counts as partly uncached.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedRate:
    """own = a + c1 * uncached, the same for every engine."""

    prefill_tokens_per_s: float
    step_s: float

    def own_s(self, engine: Engine, uncached_tokens: float, cached_tokens: int) -> float:
        return self.step_s + uncached_tokens / self.prefill_tokens_per_s
