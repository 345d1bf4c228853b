"""What every process says of itself in its metrics: its release, and what its clock shows."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

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
            "lineside_build_info",
            "Always 1; the labels say the release, and whether hot modules run compiled.",
            labels=["version", "compiled"],
        )
        release.add_metric([self._release, "yes" if is_compiled(sys.modules) else "no"], 1.0)
        yield release
        yield GaugeMetricFamily(
            "lineside_clock_seconds",
            "What the clock of the process's machine shows, in Unix time.",
            self._clock.unix(),
        )


OURS = frozenset({"agent", "coordinator", "lineside", "policies"})


def is_compiled(modules: Mapping[str, ModuleType]) -> bool:
    """Whether some of our modules were loaded as machine code, as in the coordinator's image."""
    return any(
        isinstance(getattr(each, "__loader__", None), ExtensionFileLoader)
        for name, each in modules.items()
        if name.partition(".")[0] in OURS
    )
