"""The Envoy door as a coordinator has it: made from its settings, open to its callers, counted."""

from collections.abc import Iterable, Iterator

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.config import Config
from coordinator.doors.callers import Caller, Callers
from coordinator.doors.door_grpc import authenticated, shown_by
from coordinator.doors.envoy.addresses import Addresses
from coordinator.doors.envoy.desk import SERVED_AS, Books, Desk, Wishes
from coordinator.doors.envoy.door import Context, Door
from coordinator.doors.envoy.exchange import Terms
from coordinator.doors.envoy.following import Interest
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing
from coordinator.doors.query import Queries
from coordinator.watch import WatchedService

ANYONE = Caller("envoy", is_gateway=False)
"""A caller that shows nothing of itself, where that is let in."""


class EnvoyDoor:
    """What is registered at the gateways' listener."""

    def __init__(
        self,
        *,
        config: Config,
        service: WatchedService,
        queries: Queries,
        callers: Callers,
        holding: Holding,
        listing: Listing,
        addresses: Addresses,
    ) -> None:
        said = config.envoy
        terms = Terms(
            config.body_limit_bytes, Interest(said.answers), said.backend_header, said.conformance
        )
        wishes = Wishes(said.endpoints, said.tenant_header and said.tenant_header.lower())
        self.books = Books(
            service=service,
            queries=queries,
            holding=holding,
            listing=listing,
            addresses=addresses,
            terms=terms,
            wishes=wishes,
        )
        self._listens = config.route is not None
        self._anonymous = said.anonymous
        self._callers = callers
        self._door = Door(self._admit, terms, config.timeouts.receive_s, said.decide_s)

    @property
    def calls(self) -> int:
        """Streams that are open: their requests are being decided, or their answers followed."""
        return self._door.calls

    async def run(self) -> None:
        """Keep up with engines' addresses, where any gateway can ask for them."""
        if self._listens:
            await self.books.addresses.run()

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        server.add_generic_rpc_handlers((self._door.handler(),))

    async def _admit(self, context: Context) -> Desk:
        if self._anonymous:
            shown = shown_by(context)
            if not shown.authorization and shown.common_name is None:
                return Desk(self.books, ANYONE)
        return Desk(self.books, await authenticated(self._callers, context))


class EnvoyMetrics(Collector):
    """What is read of the door whenever Prometheus asks."""

    def __init__(self, door: EnvoyDoor) -> None:
        self._door = door

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        text = "External-processing streams of gateways that are open"
        yield GaugeMetricFamily("lineside_envoy_streams", text, value=self._door.calls)
        served = CounterMetricFamily(
            "lineside_envoy_served",
            "Answers by where gateways say they come from: the endpoint that was picked, a"
            " fallback, or elsewhere, which is a misroute",
            labels=["as"],
        )
        for where in SERVED_AS:
            served.add_metric([where], self._door.books.served[where])
        yield served
