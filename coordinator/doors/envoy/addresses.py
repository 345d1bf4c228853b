"""The addresses of engines that are named by host: gateways compare endpoints as text, `ip:port`.

Names are looked up on threads of their own, again and again. What a name stood for is told on for a
while when it cannot be looked up any more; then its engine is offered to no gateway.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from coordinator.cluster import Cluster
from coordinator.doors.envoy import contract
from lineside import logs
from lineside.clock import Clock

log = logs.get("coordinator.doors.envoy.addresses")

LOOK_S = 0.25
"""Between two looks for engines whose names are due."""

AGAIN_S = 10.0
"""Between two look-ups of a name; one that failed is due after a second."""

FAILED_S = 1.0

KEPT_S = 60.0
"""How old an address may be whose name cannot be looked up any more."""

THREADS = 4
"""A resolver that does not answer holds one for seconds; other names wait meanwhile."""

UNKNOWN = "it was not looked up yet"

LookUp = Callable[[str], list[str]]
"""Returns a host's addresses. Raises `OSError`. May block."""


@dataclass(slots=True)
class _Name:
    """One host."""

    address: str = ""
    """Empty: none is known."""
    found_at: float = 0.0
    due_at: float = 0.0
    problem: str = UNKNOWN
    is_asked: bool = False


def look_up(host: str) -> list[str]:
    """Ask the machine's resolver; addresses of IPv4 come first."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Addresses:
    """What is known of names. `run` must run for any to be."""

    def __init__(self, cluster: Cluster, clock: Clock, look: LookUp = look_up) -> None:
        self._cluster = cluster
        self._clock = clock
        self._look_up = look
        self._names: dict[str, _Name] = {}
        self._by_name: list[str] = []
        """Endpoints of engines that are named by host; as it was at the last look."""
        self._unknown: Mapping[str, str] = {}
        self._threads = ThreadPoolExecutor(THREADS, "names")

    def told(self, endpoint: str) -> str | None:
        """Return what a gateway calls an endpoint; `None`: its name has no address."""
        if contract.is_address(endpoint):
            return endpoint
        name = self._names.get(contract.host(endpoint))
        if name is None or not self._is_known(name):
            return None
        port = endpoint.rpartition(":")[2]
        return f"[{name.address}]:{port}" if ":" in name.address else f"{name.address}:{port}"

    def named(self, address: str) -> str:
        """Return what we call the endpoint that a gateway calls so."""
        return next((own for own in self._by_name if self.told(own) == address), address)

    def within(self, subset: frozenset[str] | None) -> frozenset[str] | None:
        """Return a gateway's subset with the endpoints that we call otherwise."""
        if subset is None or not self._by_name:
            return subset
        ours = {own for own in self._by_name if contract.allows(subset, self.told(own) or own)}
        return subset | ours

    def unknown(self) -> Mapping[str, str]:
        """Return the endpoints that no gateway can be told, and why."""
        return self._unknown

    def degraded(self) -> Iterator[tuple[str, str]]:
        """Name those engines: codes and sentences."""
        for endpoint, why in self._unknown.items():
            yield "engine_unresolved", f"no gateway can be sent to engine {endpoint}: {why}"

    async def run(self) -> None:
        """Look names up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for host in self.due():
                    tasks.create_task(self.find(host), name=f"look up {host}")
                await self._clock.sleep(LOOK_S)

    def due(self) -> list[str]:
        """Return the hosts that are to be looked up now; forget those that no engine has."""
        now, engines = self._clock.monotonic(), self._cluster.assigned()
        self._by_name = [e.endpoint for e in engines if not contract.is_address(e.endpoint)]
        hosts = dict.fromkeys(contract.host(endpoint) for endpoint in self._by_name)
        self._names = {host: self._names.get(host) or _Name() for host in hosts}
        self._note()
        return [h for h, name in self._names.items() if name.due_at <= now and not name.is_asked]

    async def find(self, host: str) -> None:
        """Look one host up."""
        name = self._names[host]
        name.is_asked = True
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, self._look_up, host)
        except OSError as error:
            found = []
            why = error.strerror or "no reason given"
        else:
            why = "it has no address"
        finally:
            name.is_asked = False
        now, was = self._clock.monotonic(), name.problem
        if not found:
            name.problem, name.due_at = why, now + FAILED_S
            self._note()
            if was != why:
                log.warning("engine's name has no address", host=host, reason=why)
            return
        name.problem, name.due_at, name.found_at = "", now + AGAIN_S, now
        if name.address not in found:  # of several the one that gateways know stays
            name.address = found[0]
            log.info("engine's name found", host=host, address=name.address)
        self._note()

    def close(self) -> None:
        """Look nothing up any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_known(self, name: _Name) -> bool:
        return bool(name.address) and self._clock.monotonic() - name.found_at <= KEPT_S

    def _note(self) -> None:
        """Note which endpoints have no address: each request asks."""
        missing = {}
        for endpoint in self._by_name:
            name = self._names.get(contract.host(endpoint))
            if name is None or not self._is_known(name):
                missing[endpoint] = UNKNOWN if name is None else name.problem
        self._unknown = missing
