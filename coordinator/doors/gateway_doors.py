"""All that gateways meet which send requests by themselves: who may ask, and by which doors.

One table of open decisions stands behind all of them.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.candidates import Candidate, Provider
from coordinator.config import Config
from coordinator.credentials import Credentials
from coordinator.doors.callers import Callers
from coordinator.doors.door_grpc import RouterServicer
from coordinator.doors.door_json import JsonDoor
from coordinator.doors.gateway_listener import GatewayListener, Registration
from coordinator.doors.gateway_tls import GatewayTls
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing
from coordinator.doors.query import Keys, Queries
from coordinator.doors.reports import COUNTED, Reports
from coordinator.providers.keys import ProviderKeys
from coordinator.readiness import Readiness
from coordinator.watch import WatchedService
from lineside import logs

log = logs.get("coordinator.doors.gateway_doors")


class GatewayDoors:
    """The doors, and what they share. `look` must be called about once a second."""

    def __init__(
        self,
        config: Config,
        service: WatchedService,
        readiness: Readiness,
        keys: Keys,
        holding: Holding,
        listing: Listing,
        tls: GatewayTls,
    ) -> None:
        reports = Reports(service, config.gateways.report_s)
        self.callers = Callers(config.gateways)
        self.queries = Queries(service, reports, config.body_limit_bytes, keys, holding, listing)
        self._readiness = readiness
        self._config = config
        self._clock = service.clock
        self.tls = tls
        self._listener: GatewayListener | None = None

    def add_to(self, app: web.Application) -> None:
        """Answer queries in JSON on the HTTP gateway's listener."""
        JsonDoor(self.queries, self.callers).add_to(app)

    @asynccontextmanager
    async def serving(
        self, address: str, others: Sequence[Registration] = ()
    ) -> AsyncIterator[str]:
        """Answer gateways over gRPC, by the router and by `others`; give the address."""
        self._listener = GatewayListener(
            self.tls,
            RouterServicer(self.queries, self.callers),
            self._config.body_limit_bytes,
            lambda: not self._readiness.reasons(),
            others,
        )
        async with self._listener.serving(address) as bound:
            yield bound

    async def look(self) -> None:
        """End decisions that nobody reported on, read tokens, follow readiness."""
        if late := self.queries.reports.expire():
            log.warning("decisions without a report", count=late)
        await self.callers.look()
        await self.tls.look()
        if self._listener is not None:
            await self._listener.health.look()

    async def leave(self) -> None:
        """Send gateways away while they are still answered, until they have noticed."""
        self._readiness.leaving = True
        if self._listener is None:
            return
        await self._listener.health.leave()
        await self._clock.sleep(self._config.gateways.leave_s)


class DoorMetrics(Collector):
    """What is read of the doors whenever Prometheus asks."""

    def __init__(self, doors: GatewayDoors) -> None:
        self._doors = doors

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        reports = self._doors.queries.reports
        text = "Decisions whose requests gateways send by themselves, until their end is reported"
        yield GaugeMetricFamily("lineside_open_decisions", text, value=len(reports))
        told = CounterMetricFamily(
            "lineside_decision_reports",
            "Reports on such decisions by what they say, and decisions that ended without one",
            labels=["what"],
        )
        for what in COUNTED:
            told.add_metric([what], reports.counts[what])
        yield told
        text = "Calls of gateways that may not ask"
        strangers = self._doors.callers.strangers
        yield CounterMetricFamily("lineside_gateway_strangers", text, value=strangers)
        text = "For how long certificates of gateways' listener still hold; below 0: they ended"
        name = "lineside_gateway_certificate_remaining_seconds"
        left = GaugeMetricFamily(name, text, labels=["what"])
        for what, seconds in self._doors.tls.remaining():
            left.add_metric([what], seconds)
        yield left


def keys_of(engines: Credentials, providers: ProviderKeys) -> Keys:
    """Return what finds the credentials of a backend."""

    def found(candidate: Candidate, url: str, body: bytes) -> Mapping[str, str]:
        target = candidate.target
        if isinstance(target, Provider):
            sent = {k.lower(): v for k, v in providers.headers(target, url, body).items()}
            return {name: value for name, value in sent.items() if not name.startswith("accept")}
        return engines.headers(target.base_url)

    return found
