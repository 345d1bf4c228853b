"""What a coordinator shares with others through the store, run as one. What is served needs none.

`readiness` reads the pulse, the admin listener shows the members, Prometheus both.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.state.members import Membership
from coordinator.state.pulse import Pulse


class State(Collector):
    """The parts that read and write the store in the background."""

    def __init__(self, pulse: Pulse, members: Membership) -> None:
        self.pulse = pulse
        self.members = members

    async def run(self) -> None:
        """Run all parts until cancelled; none of them ends by itself, whatever the store does."""
        members = self.members
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pulse.run(), name="pulse")
            tasks.create_task(members.tenure.run(), name="tenure")
            tasks.create_task(members.following.run(), name="follow members")
            tasks.create_task(members.run(), name="members")

    async def end(self) -> None:
        """Leave: others hear of it at once."""
        await self.members.tenure.end()

    def shown(self) -> Mapping[str, object]:
        """Return members and the store's state, for people."""
        return {**self.members.shown(), "store_away": self.pulse.away}

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        away, wipes = bool(self.pulse.away), self.pulse.wipes
        yield _gauge("lineside_store_away", "1 while the store does not answer", away)
        text = "How often the store lost its data and was filled again"
        yield CounterMetricFamily("lineside_store_wipes", text, wipes)
        text = "Leases that were made; above 1: some were lost"
        yield CounterMetricFamily("lineside_store_leases", text, self.members.tenure.made)
        text = "Members of the cluster that are known, by kind"
        members = GaugeMetricFamily("lineside_members", text, labels=["kind"])
        members.add_metric(["coordinator"], len(self.members.coordinators()))
        members.add_metric(["agent"], len(self.members.agents()))
        yield members


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
