"""Which GPUs serve which engine, where that is known, and how busy they are: metrics.

Made whenever they are asked for. Of an engine whose GPUs neither the configuration nor a
kubelet names there is no series: it is never guessed.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.engines import EngineView


class GpuViews(Collector):
    """Of all engines there are."""

    def __init__(self, views: Callable[[], Iterable[EngineView]]) -> None:
        self._views = views

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what is known."""
        text = "Always 1; the labels say which GPU serves the engine, to join with lineside_gpu_*"
        gpus = GaugeMetricFamily("lineside_engine_gpu", text, labels=["engine", "uuid"])
        text = "Utilization of the busiest GPU that serves the engine"
        busy = GaugeMetricFamily("lineside_engine_gpu_utilization_ratio", text, labels=["engine"])
        for view in self._views():
            for uuid in view.engine.gpus:
                gpus.add_metric([view.engine.id, uuid], 1.0)
            if view.gpu_utilization is not None:
                busy.add_metric([view.engine.id], view.gpu_utilization)
        yield from (gpus, busy)
