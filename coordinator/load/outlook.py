"""What to expect of one request's answer, for policies that ask: its end and its price. Pure."""

from collections.abc import Mapping

import msgspec

from coordinator.engines import Engine
from coordinator.load.answers import Answers
from coordinator.load.predict import Predictor
from coordinator.rules import Bench
from lineside.ids import ModelName

MILLION = 1e6


class RequestOutlook(msgspec.Struct, frozen=True):
    """One request's; see `route.Outlook`."""

    bench: Bench
    answers: Answers
    predictor: Predictor
    loads: Mapping[ModelName, int]
    """The prompt's tokens for each model, or estimates. Records keep this, and so no prompt."""
    load: int
    """For all other models."""
    expected_tokens: float
    """Of output."""

    def e2e_s(self, engine: Engine, ttft_s: float, running: int) -> float:
        itl_s = self.answers.itl_s(self.predictor.class_of(engine), running)
        return ttft_s + max(0.0, self.expected_tokens - 1) * itl_s

    def provider_ttft_s(self, place: int) -> float | None:
        target = self.bench.layout.inventory.targets[place]
        return self.answers.ttft_s(self.bench.layout.backends[place].id, target.model)

    def provider_e2e_s(self, place: int) -> float | None:
        target = self.bench.layout.inventory.targets[place]
        return self.answers.e2e_s(self.bench.layout.backends[place].id, target.model)

    def provider_price(self, place: int) -> float | None:
        model = self.bench.layout.inventory.targets[place].model
        return self.price(place, self.loads.get(model, self.load), 0)

    def price(self, place: int, uncached: int, cached: int) -> float | None:
        price = self.bench.prices[place]
        if price is None or price.input is None or price.output is None:
            return None
        for_cached = price.input if price.cached_input is None else price.cached_input
        money = price.input * uncached + for_cached * cached + price.output * self.expected_tokens
        return money / MILLION
