"""What answers come to: how long they get, how fast they come, what providers take. Pure.

Written by the service with each answer that is complete. Everything fades, and is bounded: what is
learned of the first of many names goes when there are more.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from lineside.ids import EngineId, ModelName, TenantId

USUAL_TOKENS = 256.0
"""Output of a request of which nothing is known."""

USUAL_ITL_S = 0.02
"""Between two tokens, likewise."""

KEPT = 1000
"""Pairs of tenant and model, classes, and providers that are remembered, each."""

FADE = 50
"""Answers after which one counts for a third."""

LATEST = 101
"""A provider's latencies that count."""

K = TypeVar("K")
V = TypeVar("V")


class _Kept(dict[K, V], Generic[K, V]):
    """A dict that drops its oldest entry rather than grow beyond `KEPT`."""

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and len(self) >= KEPT:
            del self[next(iter(self))]
        super().__setitem__(key, value)


@dataclass(slots=True)
class _Speed:
    """Time between tokens as a line over the requests beside it: fading sums of a regression."""

    count: float = 0.0
    beside: float = 0.0
    square: float = 0.0
    itl_s: float = 0.0
    product: float = 0.0

    def note(self, beside: int, itl_s: float) -> None:
        fade = 1 - 1 / FADE
        self.count = fade * self.count + 1
        self.beside = fade * self.beside + beside
        self.square = fade * self.square + beside * beside
        self.itl_s = fade * self.itl_s + itl_s
        self.product = fade * self.product + beside * itl_s

    def at(self, beside: int) -> float:
        if not self.count:
            return USUAL_ITL_S
        mean, mean_s = self.beside / self.count, self.itl_s / self.count
        spread = self.square / self.count - mean * mean
        slope = (self.product / self.count - mean * mean_s) / spread if spread > 0.5 else 0.0
        return max(mean_s / 10, mean_s + max(0.0, slope) * (beside - mean))


@dataclass(slots=True)
class _Provider:
    ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    e2e_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))


class Spread(NamedTuple):
    """What half of a provider's latest answers took at most, and 95 of 100."""

    p50_s: float
    p95_s: float

    @classmethod
    def of(cls, seconds: Collection[float]) -> "Spread | None":
        """Return it; `None`: of no answers."""
        if not seconds:
            return None
        ranked = sorted(seconds)
        return cls(median(ranked), ranked[math.ceil(0.95 * len(ranked)) - 1])


class Latency(NamedTuple):
    """What a provider's answers with one model took lately. `None`: it has given none yet."""

    ttft: Spread | None
    """Of streams."""
    e2e: Spread | None


class Answers:
    """What was learned of answers."""

    def __init__(self) -> None:
        self._tokens: _Kept[tuple[TenantId, ModelName], float] = _Kept()
        self._speeds: _Kept[str, _Speed] = _Kept()
        self._providers: _Kept[tuple[EngineId, ModelName], _Provider] = _Kept()

    def expected_tokens(self, tenant: TenantId, model: ModelName, max_tokens: int | None) -> float:
        """Return the output to expect of a request."""
        tokens = self._tokens.get((tenant, model), USUAL_TOKENS)
        return tokens if max_tokens is None else min(tokens, float(max_tokens))

    def itl_s(self, class_name: str, beside: int) -> float:
        """Return the time between two tokens on an engine of a class, with others beside it."""
        speed = self._speeds.get(class_name)
        return USUAL_ITL_S if speed is None else speed.at(beside)

    def ttft_s(self, provider: EngineId, model: ModelName) -> float | None:
        """Return the median time to a provider's first token; `None`: it was never seen."""
        known = self._providers.get((provider, model))
        return median(known.ttft_s) if known and known.ttft_s else None

    def e2e_s(self, provider: EngineId, model: ModelName) -> float | None:
        """Return the median time to the end of its answers."""
        known = self._providers.get((provider, model))
        return median(known.e2e_s) if known and known.e2e_s else None

    def latencies(self, provider: EngineId) -> dict[ModelName, Latency]:
        """Return what a provider's answers took, by model."""
        return {
            model: Latency(Spread.of(known.ttft_s), Spread.of(known.e2e_s))
            for (name, model), known in self._providers.items()
            if name == provider
        }

    def note_tokens(self, tenant: TenantId, model: ModelName, tokens: int) -> None:
        """Note how long an answer was."""
        key = tenant, model
        before = self._tokens.get(key, USUAL_TOKENS)
        self._tokens[key] = before + (tokens - before) / FADE

    def note_speed(self, class_name: str, beside: int, itl_s: float) -> None:
        """Note how fast an engine's answer came."""
        speed = self._speeds.get(class_name)
        if speed is None:
            speed = self._speeds[class_name] = _Speed()
        speed.note(beside, itl_s)

    def note_provider(
        self, provider: EngineId, model: ModelName, ttft_s: float | None, e2e_s: float
    ) -> None:
        """Note what a provider's answer took."""
        key = provider, model
        known = self._providers.get(key)
        if known is None:
            known = self._providers[key] = _Provider()
        known.e2e_s.append(e2e_s)
        if ttft_s is not None:
            known.ttft_s.append(ttft_s)

    def shown(self) -> Mapping[str, object]:
        """Return what is known, for people."""
        return {
            "expected_output_tokens": {f"{t}/{m}": n for (t, m), n in self._tokens.items()},
            "providers": {
                f"{name}/{model}": {"ttft_p50_s": self.ttft_s(name, model)}
                for name, model in self._providers
            },
        }
