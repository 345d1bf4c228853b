"""Which coordinators there are, and one stream to each. Knows names and addresses, no contents.

A name may stand for several: a headless Service has an address for each pod. With a lookup, each
address gets a stream of its own; one that a name has no longer loses it as soon as it is broken.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lineside import logs
from lineside.clock import Clock
from lineside.schema import split_address

LOOK_S = 5.0
"""Between two looks at what the names stand for."""

MAX_STREAMS = 64
"""Addresses that get a stream; more are no coordinators' names, and are left out."""

Lookup: TypeAlias = Callable[[str], Awaitable[set[str]]]
"""Returns the addresses of a HOST:PORT. Raises `OSError` where nobody can say."""

log = logs.get("agent.coordinators")


class Stream(Protocol):
    """What reports to one coordinator."""

    connected: bool

    def run(self) -> Coroutine[None, None, None]:
        """Report until cancelled."""


@dataclass(slots=True)
class _Running:
    stream: Stream
    task: "asyncio.Task[None]"


class Coordinators:
    """One per process. Starts its tasks in the group that it is given."""

    def __init__(
        self,
        names: Iterable[str],
        tasks: asyncio.TaskGroup,
        stream_to: Callable[[str, str], Stream],
        clock: Clock,
        lookup: Lookup | None = None,
    ) -> None:
        """Without `lookup`, each name gets one stream.

        `stream_to` takes an address, and the host of the name that stands for it.
        """
        self._names = list(names)
        self._tasks = tasks
        self._stream_to = stream_to
        self._clock = clock
        self._lookup = lookup
        self._running: dict[str, _Running] = {}
        self._unknown: set[str] = set()

    async def run(self) -> None:
        """Start streams, and with a lookup follow the names until cancelled."""
        if self._lookup is None:
            self._follow({name: _host(name) for name in self._names}, complete=True)
            return
        while True:
            await self._look(self._lookup)
            await self._clock.sleep(LOOK_S)

    def streams(self) -> Mapping[str, bool]:
        """Return whether the stream to each address is established."""
        return {address: each.stream.connected for address, each in self._running.items()}

    async def _look(self, lookup: Lookup) -> None:
        found: dict[str, str] = {}
        complete = True
        for name in self._names:
            try:
                found |= dict.fromkeys(await lookup(name), _host(name))
                self._unknown.discard(name)
            except OSError as error:
                complete = False
                if name not in self._unknown:
                    log.warning("name not known", name=name, reason=str(error))
                self._unknown.add(name)
        self._follow(found, complete)

    def _follow(self, found: Mapping[str, str], complete: bool) -> None:
        """Start what is new; end what is gone, once every name could be asked and it is broken.

        `found`: each address, and the host of the name that stands for it.
        """
        gone = self._running.keys() - found.keys() if complete else set()
        for address in [each for each in gone if not self._running[each].stream.connected]:
            self._running.pop(address).task.cancel()
        for address in sorted(found.keys() - self._running.keys()):
            if len(self._running) == MAX_STREAMS:
                log.warning("too many coordinators", limit=MAX_STREAMS)
                return
            stream = self._stream_to(address, found[address])
            task = self._tasks.create_task(stream.run(), name=f"report to {address}")
            self._running[address] = _Running(stream, task)


def _host(name: str) -> str:
    return split_address(name)[0]


async def addresses_of(name: str) -> set[str]:
    """Ask the system's resolver. Of a name in both families only the older is used: they are the
    same processes.
    """
    host, port = split_address(name)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family = {family: {str(at[0]) for f, *_, at in found if f == family} for family, *_ in found}
    if socket.AF_INET in by_family:
        return {f"{host}:{port}" for host in by_family[socket.AF_INET]}
    return {f"[{host}]:{port}" for host in by_family.get(socket.AF_INET6, ())}
