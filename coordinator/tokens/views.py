"""What is known of engines' tokenizers, as metrics made whenever they are asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.apis import Api
from coordinator.engines import Engine
from coordinator.tokens.reuse import Reused
from coordinator.tokens.sources import Check
from lineside.ids import EngineId

_WORST_FIRST = (Check.DIFFERENT, Check.NO_TOKENIZER, Check.UNVERIFIED, Check.SAME)


class TokenizerViews(Collector):
    """Of all engines there are."""

    def __init__(
        self,
        engines: Callable[[], Iterable[Engine]],
        checks: Callable[[], Mapping[EngineId, Mapping[Api, Check]]],
        reused: Callable[[], Reused],
    ) -> None:
        self._engines = engines
        self._checks = checks
        self._reused = reused

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each engine's state, and what all tokenizers reuse together."""
        metric = GaugeMetricFamily(
            "lineside_engine_tokenizer",
            "1 for what comparing the engine's tokenizer with the one at hand has shown",
            labels=["engine", "state"],
        )
        checks = self._checks()
        for engine in self._engines():
            state = state_of(engine, checks.get(engine.id, {}))
            for each in Check:
                metric.add_metric([engine.id, each.value], float(each is state))
        yield metric
        reused = self._reused()
        tokens = CounterMetricFamily(
            "lineside_tokenizer_tokens",
            "Tokens of chats whose turns are kept, by whether they were encoded or reused",
            labels=["how"],
        )
        tokens.add_metric(["encoded"], float(reused.encoded_tokens))
        tokens.add_metric(["reused"], float(reused.reused_tokens))
        yield tokens
        yield GaugeMetricFamily(
            "lineside_tokenizer_kept_bytes",
            "Memory of the turns of chats and their token ids that are kept for the next request",
            value=float(reused.kept_bytes),
        )


def state_of(engine: Engine, checks: Mapping[Api, Check]) -> Check:
    """Return the worst that is known of one engine's tokenizer."""
    if engine.tokenizer is None:
        return Check.NO_TOKENIZER
    found = set(checks.values())
    return next((each for each in _WORST_FIRST if each in found), Check.UNVERIFIED)
