"""A cluster's state as Prometheus metrics, read from the parts when Prometheus asks."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.kube.cluster import KubeCluster


class KubeViews(Collector):
    """The metrics; without a cluster they have no samples."""

    def __init__(self, cluster: KubeCluster | None) -> None:
        self._cluster = cluster

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        text = "1 while the cluster's API server cannot be read"
        away = GaugeMetricFamily("lineside_kubernetes_away", text, labels=[])
        text = "Seconds since the API server said anything of a kind; it does so every minute"
        ages = GaugeMetricFamily("lineside_kubernetes_age_seconds", text, labels=["kind"])
        text = "Age of resources and pods from the store, while the API server has not said yet"
        kept = GaugeMetricFamily("lineside_kubernetes_kept_age_seconds", text, labels=[])
        text = "Objects read, by kind"
        objects = GaugeMetricFamily("lineside_kubernetes_objects", text, labels=["kind"])
        text = "Custom resources whose newest form is not in force"
        refused = GaugeMetricFamily("lineside_kubernetes_refused_objects", text, labels=[])
        text = "Lists of a kind; every one after the first heals a watch"
        lists = CounterMetricFamily("lineside_kubernetes_lists", text, labels=["kind"])
        text = "Writes of statuses, events and deletion costs, by outcome"
        writes = CounterMetricFamily("lineside_kubernetes_writes", text, labels=["outcome"])
        if (cluster := self._cluster) is not None:
            mirror = cluster.mirror
            away.add_metric([], float(bool(mirror.away)))
            refused.add_metric([], cluster.refused)
            if (age_s := cluster.kept_age_s) is not None:
                kept.add_metric([], age_s)
            for kind, age_s in mirror.ages_s().items():
                ages.add_metric([kind], age_s)
            for kind, count in mirror.counts().items():
                objects.add_metric([kind], count.objects)
                lists.add_metric([kind], count.lists)
            for outcome, number in cluster.statuses.counts.items():
                writes.add_metric([outcome], number)
            for outcome, number in cluster.costs.counts.items() if cluster.costs else ():
                writes.add_metric([f"cost_{outcome}"], number)
        yield from (away, ages, kept, objects, refused, lists, writes)
