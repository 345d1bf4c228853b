"""What a coordinator shares with others through the store, run as one. What is served needs none.

`readiness` reads the pulse, the admin listener shows the members, Prometheus both.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.load.inflight import InFlight
from coordinator.state.exclusions import Exclusions
from coordinator.state.learned_store import LearnedStore
from coordinator.state.members import Membership
from coordinator.state.peers import Peers, inflight_json
from coordinator.state.pulse import Pulse
from coordinator.state.tidying import CHORE, Tidying
from lineside.clock import Clock

LEAVE_S = 2.0
"""For the last writes of a process that stops."""


class State(Collector):
    """The parts that read and write the store in the background."""

    def __init__(
        self,
        *,
        pulse: Pulse,
        members: Membership,
        exclusions: Exclusions,
        tidying: Tidying,
        peers: Peers,
        inflight: InFlight,
        clock: Clock,
    ) -> None:
        self.pulse = pulse
        self.members = members
        self._exclusions = exclusions
        self._tidying = tidying
        self._peers, self._inflight, self._clock = peers, inflight, clock

    async def run(self) -> None:
        """Run all parts until cancelled; none of them ends by itself, whatever the store does."""
        members = self.members
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pulse.run(), name="pulse")
            tasks.create_task(members.tenure.run(), name="tenure")
            tasks.create_task(members.following.run(), name="follow members")
            tasks.create_task(members.run(), name="members")
            tasks.create_task(self._exclusions.run(), name="exclusions")
            tasks.create_task(self._tidying.leadership.run(), name="leadership")
            tasks.create_task(self._tidying.run(), name="tidying")

    async def end(self, kept: LearnedStore) -> None:
        """Leave: others hear of it at once, or of a store that is away when the lease has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.members.tenure.end()
                await self._exclusions.save()
                await kept.save()

    def shown(self) -> Mapping[str, object]:
        """Return members, what each has in flight, and the store's state, for people."""
        now = self._clock.monotonic()
        inflight = [
            inflight_json(self.members.me, engine, own.as_word(), 0.0)
            for engine, own in sorted(self._inflight.held(now).items())
        ]
        return {
            **self.members.shown(),
            "leaders": {CHORE: self._tidying.leadership.leader},
            "inflight": inflight + self._peers.shown(now),
            "store_away": self.pulse.away,
        }

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
        text = "1 while this coordinator is the one that does a chore which only one may do"
        leading = GaugeMetricFamily("lineside_leading", text, labels=["chore"])
        leading.add_metric([CHORE], self._tidying.leadership.leads)
        yield leading
        text = "Members of the cluster that are known, by kind"
        members = GaugeMetricFamily("lineside_members", text, labels=["kind"])
        members.add_metric(["coordinator"], len(self.members.coordinators()))
        members.add_metric(["agent"], len(self.members.agents()))
        yield members
        now = self._clock.monotonic()
        text = "Age of what another coordinator says it has in flight; the oldest of them"
        age = GaugeMetricFamily("lineside_peer_inflight_age_seconds", text)
        if (oldest_s := self._peers.oldest_s(now)) is not None:
            age.add_metric([], oldest_s)
        yield age
        text = "Requests that other coordinators say they have in flight, where that counts"
        total = sum(each.outstanding for each in self._peers.sums.values())
        yield _gauge("lineside_peer_inflight", text, total)
        text = "Coordinators whose requests in flight are known, by way of the agents"
        yield _gauge("lineside_peers", text, len(self._peers.coordinators()))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
