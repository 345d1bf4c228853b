"""What every process says of itself in its metrics: its release, and what its clock shows."""

from collections.abc import Iterable, Iterator
from importlib import metadata

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lineside.clock import Clock


class About(Collector):
    """One process's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._release = metadata.version("lineside")

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: there is nothing to clash with."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the clock."""
        release = GaugeMetricFamily(
            "lineside_build_info", "Always 1; the label says the release.", labels=["version"]
        )
        release.add_metric([self._release], 1.0)
        yield release
        yield GaugeMetricFamily(
            "lineside_clock_seconds",
            "What the clock of the process's machine shows, in Unix time.",
            self._clock.unix(),
        )
