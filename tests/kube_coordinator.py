"""A coordinator's part for a cluster, as a whole, before a server in memory."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from coordinator.cluster import Cluster
from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.cluster import KubeCluster
from coordinator.kube.settings import Kubernetes
from coordinator.rules import Resources, Rules
from coordinator.state.store import Store, Write
from coordinator.state.stores.sqlite import SqliteStore
from lineside.clock import SystemClock
from tests.kube_memory import Server

GOOD = {"rules": [{"name": "r", "route": {}}]}
BAD = {"rules": [{"name": "r", "route": {}}, {"name": "r", "route": {}}]}


class Leading:
    """Leads from the start."""

    leads = True

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def write(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        return await self._store.transact(expected, writes)


class Scene:
    def __init__(self, server: Server, store: Store | None = None, *namespaces: str) -> None:
        self.server, self.rules = server, Rules(Cluster())
        self.store = store or SqliteStore(":memory:")
        self.told: list[Resources] = []
        self.pods: Mapping[EngineSpec, Hosting] = {}
        settings = Kubernetes(access="in-cluster", namespaces=namespaces or ("n",))
        self.kube = KubeCluster(
            api=server,
            settings=settings,
            rules=self.rules,
            told=self.told.append,
            follow=self._follow,
            store=self.store,
            clock=SystemClock(),
        )
        self.kube.stand(Leading(self.store))  # type: ignore[arg-type]

    def _follow(self, pods: Mapping[EngineSpec, Hosting]) -> None:
        self.pods = pods

    @property
    def policies(self) -> list[str]:
        return sorted(each.metadata.name for each in self.rules.resources.policies)


@asynccontextmanager
async def running(server: Server, store: Store | None = None) -> AsyncIterator[Scene]:
    scene = Scene(server, store)
    assert await scene.kube.start() == ()
    task = asyncio.create_task(scene.kube.run())
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
