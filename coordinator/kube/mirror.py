"""Copies of all that is read of a cluster, one reflector for each kind and namespace. Judges
nothing.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from coordinator.kube.api import Api, ApiAway
from coordinator.kube.kinds import GATEWAY_POOLS, OURS, PODS, Kind
from coordinator.kube.pods import Pod, Selection, gateway_pool_of, pod_of
from coordinator.kube.reflector import Reflector
from coordinator.kube.settings import EVERY
from coordinator.kube.written import Written, written
from lineside.clock import Clock

Reflectors = Sequence[tuple[Kind, Reflector[Any]]]


PROBE_S, PROBE_ANSWER_S = 5.0, 5.0
"""Between two questions whether the server is there at all, and for an answer."""


class Counts(NamedTuple):
    """Of one kind."""

    objects: int = 0
    lists: int = 0


class Mirror:
    """One cluster's, as far as the settings name it."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.namespaces = tuple(namespaces)
        self.resources_changed = asyncio.Event()
        """Set by each change of our kinds, and of the Gateway API's pools."""
        self.pods_changed = asyncio.Event()

        def of(
            kind: Kind, read: Callable[[Any], Any], changed: asyncio.Event
        ) -> Iterator[tuple[Kind, Reflector[Any]]]:
            for namespace in self.namespaces:
                path = kind.collection(namespace)
                reflector = Reflector(
                    api=api, path=path, read=read, clock=clock, rng=rng, changed=changed.set
                )
                yield kind, reflector

        self._api, self._clock = api, clock
        self._silent = ""
        self._ours = [
            each
            for kind in OURS
            for each in of(kind, partial(written, kind.name), self.resources_changed)
        ]
        self._pods = list(of(PODS, pod_of, self.pods_changed))
        self._pools = list(of(GATEWAY_POOLS, gateway_pool_of, self.resources_changed))

    @property
    def reflectors(self) -> Reflectors:
        """All of them, each with its kind."""
        return [*self._ours, *self._pods, *self._pools]

    async def prime(self) -> None:
        """Return once it is known what there is of each kind."""
        async with asyncio.TaskGroup() as tasks:
            for _, reflector in self.reflectors:
                tasks.create_task(reflector.prime(), name=f"list {reflector.path}")

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _, reflector in self.reflectors:
                tasks.create_task(reflector.run(), name=f"follow {reflector.path}")
            tasks.create_task(self._probe(), name="ask the API server")

    async def _probe(self) -> None:
        """Ask now and then: of a server that hangs, watches hear no more than of a quiet one."""
        while True:
            await self._clock.sleep(PROBE_S)
            try:
                async with asyncio.timeout(PROBE_ANSWER_S):
                    await self._api.ask("GET", "/version")
                self._silent = ""
            except TimeoutError:
                self._silent = f"no answer within {PROBE_ANSWER_S:g} s"
            except ApiAway as error:
                self._silent = str(error)

    @property
    def is_known(self) -> bool:
        """Whether the cluster has said of each kind what there is."""
        return all(each.has_listed for _, each in self.reflectors)

    @property
    def away(self) -> str:
        """Why something cannot be read; empty: all is followed."""
        said = (f"{kind.plural}: {each.away}" for kind, each in self.reflectors if each.away)
        return next(said, self._silent)

    @property
    def missing(self) -> list[str]:
        """Our kinds that the cluster does not have."""
        return sorted({kind.plural for kind, each in self._ours if each.is_missing})

    def ages_s(self) -> dict[str, float]:
        """Return for how long nothing was heard of each kind, at the longest."""
        now, ages = self._clock.monotonic(), dict[str, float]()
        for kind, each in self.reflectors:
            age_s = each.age_s(now)
            if age_s is not None and not each.is_missing:
                ages[kind.name] = max(age_s, ages.get(kind.name, 0.0))
        return ages

    def counts(self) -> dict[str, Counts]:
        """Return how many objects there are of each kind, and how often they were listed."""
        found: dict[str, Counts] = {}
        for kind, each in self.reflectors:
            before = found.get(kind.name, Counts())
            objects, lists = len(each.copy.objects), each.lists
            found[kind.name] = Counts(before.objects + objects, before.lists + lists)
        return found

    def written(self) -> list[Written]:
        """Return every object of our kinds."""
        return [each for _, reflector in self._ours for each in reflector.copy.objects.values()]

    def pods(self) -> list[Pod]:
        """Return every pod that can be read."""
        found = (each for _, reflector in self._pods for each in reflector.copy.objects.values())
        return [each for each in found if each is not None]

    def gateway_pools(self) -> tuple[Selection, ...]:
        """Return the Gateway API's pools that select pods."""
        found = (each for _, reflector in self._pools for each in reflector.copy.objects.values())
        there = (each for each in found if each is not None)
        return tuple(sorted(there, key=lambda each: (each.namespace, each.name)))

    def shown(self) -> dict[str, object]:
        """Return what is read and how old it is, for people."""
        everywhere = self.namespaces == (EVERY,)
        return {
            "namespaces": None if everywhere else list(self.namespaces),
            "away": self.away,
            "missing": self.missing,
            "ages_s": self.ages_s(),
        }
