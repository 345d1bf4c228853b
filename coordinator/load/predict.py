"""How long a request's own prefill will take, learned from first tokens. Pure.

One model for all engines of a class (same weights, same version): a small difference between
engines that are alike sends every new prompt to the same few of them, and costs more than it
explains. An engine is split off only when it is far from its class for long (decision 010).

Written by the service alone, with each first token that it can attribute to one prefill.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from coordinator.engines import Engine
from coordinator.load.fit import KILO, Fit, Params, Saved
from lineside.ids import EngineId

SPLIT_AFTER = 50
"""First tokens of an engine before it can be found to be unlike its class."""

SPLIT_FROM = 0.35
"""Mean relative error, in one direction, from which on an engine is a class of its own..."""

SPLIT_ERRORS = 6.0
"""...if that is as many standard errors away from none."""

CLASSES = 1000
"""Classes that are remembered; the first one learned goes, whole, when there are more."""


class Band(NamedTuple):
    """What the observed time will be, relative to the predicted one, in 80 of 100 cases."""

    low: float
    high: float


class Predictor(Protocol):
    """Predicts an engine's work on one request, and learns."""

    def params(self, engine: Engine) -> Params:
        """Return the model that an engine's requests are predicted with."""
        ...

    def class_of(self, engine: Engine) -> str:
        """Name the engines that are predicted alike."""
        ...

    def learn(self, engine: Engine, uncached: float, overlap: float, own_s: float) -> None:
        """Note how long a prefill took that the engine had begun and finished alone."""
        ...

    def observe(self, engine: Engine, predicted_s: float, ttft_s: float) -> None:
        """Note a time to first token beside the one that was predicted."""
        ...

    def band(self, engine: Engine) -> Band:
        """Return how far off predictions are."""
        ...

    @property
    def errors(self) -> Mapping[EngineId, "Error"]:
        """Return how far off each engine's were of late."""
        ...


@dataclass(frozen=True, slots=True)
class FixedRate:
    """own = step + uncached / rate, the same for every engine, for good."""

    prefill_tokens_per_s: float
    step_s: float

    def params(self, engine: Engine) -> Params:
        return Params(0.0, 1 / self.prefill_tokens_per_s, 0.0, self.step_s)

    def class_of(self, engine: Engine) -> str:
        return ""

    def learn(self, engine: Engine, uncached: float, overlap: float, own_s: float) -> None:
        """Learn nothing."""

    def observe(self, engine: Engine, predicted_s: float, ttft_s: float) -> None:
        """Learn nothing."""

    def band(self, engine: Engine) -> Band:
        return Band(1.0, 1.0)

    @property
    def errors(self) -> Mapping[EngineId, "Error"]:
        return {}


@dataclass(slots=True)
class _Ratios:
    """The spread of observed over predicted, by two quantiles that follow it step by step."""

    low: float = 0.5
    high: float = 2.0
    count: int = 0

    def note(self, ratio: float) -> None:
        """Move each quantile a little: up where the ratio is above it, down where below."""
        self.count += 1
        step = max(0.01, 0.3 / math.sqrt(self.count))
        self.low *= 1 + step * (_LOW if ratio > self.low else _LOW - 1)
        self.high *= 1 + step * (1 - _LOW if ratio > self.high else -_LOW)


@dataclass(slots=True)
class _Bias:
    """The mean and the variance of an engine's relative errors, fading."""

    mean: float = 0.0
    square: float = 0.0
    count: int = 0

    def note(self, off: float) -> None:
        self.count += 1
        share = 1 / min(self.count, 200)
        self.mean += share * (off - self.mean)
        self.square += share * (off * off - self.square)

    @property
    def is_unlike(self) -> bool:
        """Whether the engine is surely not like its class."""
        if self.count < SPLIT_AFTER or abs(self.mean) < SPLIT_FROM:
            return False
        variance = max(1e-6, self.square - self.mean**2)
        return abs(self.mean) > SPLIT_ERRORS * math.sqrt(variance / min(self.count, 200))


@dataclass(slots=True)
class Error:
    """How far predicted times to first token were off of late, as shares of what was observed."""

    bias: float = 0.0
    """Above 0: first tokens came later than predicted."""
    error: float = 0.0
    """Mean, whatever the direction."""
    count: int = 0

    def note(self, off: float) -> None:
        """Add one."""
        self.count += 1
        share = 1 / min(self.count, 100)
        self.bias += share * (off - self.bias)
        self.error += share * (abs(off) - self.error)


class Learned:
    """A model for each class of engines, all from one prior."""

    def __init__(self, prefill_tokens_per_s: float, step_s: float) -> None:
        self._prior = (0.0, KILO / prefill_tokens_per_s, 0.0)
        self._step_s = step_s
        self._fits: dict[str, Fit] = {}
        self._ratios: dict[str, _Ratios] = {}
        self._biases: dict[EngineId, _Bias] = {}
        self._errors: dict[EngineId, Error] = {}
        self._apart: dict[EngineId, str] = {}
        """Engines that are a class of their own, with its name."""
        self._params: dict[str, Params] = {}

    def params(self, engine: Engine) -> Params:
        name = self.class_of(engine)
        if (params := self._params.get(name)) is None:
            params = self._params[name] = self._fit(name).params()
        return params

    def learn(self, engine: Engine, uncached: float, overlap: float, own_s: float) -> None:
        name = self.class_of(engine)
        fit = self._fit(name)
        predicted = fit.params().own_s(uncached, overlap)
        if fit.count >= SPLIT_AFTER and engine.id not in self._apart:
            bias = self._biases.setdefault(engine.id, _Bias())
            bias.note(max(-1.0, min(1.0, math.log(max(own_s, 1e-4) / max(predicted, 1e-4)))))
            if bias.is_unlike:
                self._split(engine.id, name)
        fit.learn(uncached, overlap, own_s)
        self._params[name] = fit.params()

    def observe(self, engine: Engine, predicted_s: float, ttft_s: float) -> None:
        if predicted_s > 0 and ttft_s > 0:
            off = (ttft_s - predicted_s) / max(ttft_s, predicted_s)
            self._errors.setdefault(engine.id, Error()).note(off)
            name = self.class_of(engine)
            self._ratios.setdefault(name, _Ratios()).note(ttft_s / predicted_s)

    def band(self, engine: Engine) -> Band:
        ratios = self._ratios.get(self.class_of(engine)) or _Ratios()
        return Band(ratios.low, ratios.high)

    @property
    def errors(self) -> Mapping[EngineId, Error]:
        return self._errors

    def keep(self, engines: Mapping[EngineId, object]) -> None:
        """Forget what is known of all other engines; what classes learned stays."""
        for known in (self._biases, self._apart, self._errors):
            for gone in known.keys() - engines.keys():
                del known[gone]

    def shown(self) -> dict[str, Any]:
        """Return what was learned, for people."""
        return {
            name: {**fit.params()._asdict(), "error": fit.error, "observations": fit.count}
            for name, fit in self._fits.items()
        }

    def saved(self) -> dict[str, Any]:
        """Return what a restart should not lose."""
        return {
            name: {"sums": fit.sums, "error": fit.error, "count": fit.count}
            for name, fit in self._fits.items()
            if name not in self._apart.values()  # who is apart is found out anew
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned; what cannot be one is left out."""
        for name, said in list(saved.items())[:CLASSES]:
            try:
                fit = msgspec.convert(said, Saved)
            except msgspec.ValidationError:
                continue
            if all(map(math.isfinite, fit.sums)):
                self._fits[name] = Fit(
                    self._prior, self._step_s, list(fit.sums), fit.error, fit.count
                )
        self._params.clear()

    def class_of(self, engine: Engine) -> str:
        return self._apart.get(engine.id) or _alike(engine)

    def _fit(self, name: str) -> Fit:
        fit = self._fits.get(name)
        if fit is None:
            if len(self._fits) >= CLASSES:
                oldest = next(iter(self._fits))
                del self._fits[oldest]
                self._params.pop(oldest, None)
                self._ratios.pop(oldest, None)
            fit = self._fits[name] = Fit(self._prior, self._step_s)
        return fit

    def _split(self, engine: EngineId, name: str) -> None:
        """Let an engine have a model of its own. Both begin as the class was, and soon forget it:
        what was learned is a mixture of the two.
        """
        of = self._fit(name)
        of.sums = [total / 10 for total in of.sums]
        self._apart[engine] = f"{name}/{engine}"
        self._fits[self._apart[engine]] = Fit(
            self._prior, self._step_s, of.sums, of.error, of.count
        )
        del self._biases[engine]


def _alike(engine: Engine) -> str:
    """Return the class of an engine: the same weights, computed by the same version and card."""
    return " ".join(filter(None, (engine.group, engine.version, engine.card)))


_LOW = 0.1
"""The lower quantile; the upper one is as far from the other end."""
