"""What engines' caches are worth, for metrics, for people, and for whoever writes it to pods."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.engines import EngineView
from coordinator.service import Service
from coordinator.worth import CacheWorth


class WorthViews(Collector):
    """Of all engines there are."""

    def __init__(self, worth: CacheWorth, service: Service) -> None:
        self._worth = worth
        self._service = service

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each engine's; one whose cache is not known has no series."""
        metric = GaugeMetricFamily(
            "lineside_engine_cache_worth_tokens",
            "Tokens that the engine's cache holds and requests read lately",
            labels=["engine"],
        )
        now = self._service.clock.monotonic()
        for view in self._service.cluster.snapshot(now).engines:
            if (tokens := self._worth.tokens(view, now)) is not None:
                metric.add_metric([view.engine.id], tokens)
        yield metric

    def of(self, view: EngineView) -> int | None:
        """Return one engine's."""
        return self._worth.tokens(view, self._service.clock.monotonic())

    def by_endpoint(self) -> Mapping[str, tuple[int | None, int]]:
        """Return worth and requests in flight of each engine, by its id (`ip:port`, and rank)."""
        now = self._service.clock.monotonic()
        views = self._service.cluster.snapshot(now).engines
        queue = self._service.inflight.queue
        return {
            view.engine.id: (
                self._worth.tokens(view, now),
                (found := queue(view.engine.id, now)).outstanding + found.peers.outstanding,
            )
            for view in views
        }
