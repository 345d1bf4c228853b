"""Pods that worker sets and the Gateway API's pools select, told to discovery as servers."""

from collections.abc import Callable, Mapping

from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.gateway_pools import is_gateway_pool
from coordinator.kube.mirror import Mirror
from coordinator.kube.pods import Roster, Selection, selection_of
from coordinator.rules import Rules
from lineside.clock import Clock, heard_within

LOOK_S = 1.0
"""Between two looks when no pod changed: resources may have been rolled back."""

GATHER_S = 0.02
"""Changes that come within this are one."""

Follow = Callable[[Mapping[EngineSpec, Hosting]], object]


class PodEngines:
    """The only one that names pods to discovery."""

    def __init__(
        self,
        mirror: Mirror,
        rules: Rules,
        follow: Follow,
        clock: Clock,
        key_file: str | None = None,
    ) -> None:
        """`follow` hears of every server that is in a pod; `key_file` has their key."""
        self._mirror, self._rules, self._follow, self._clock = mirror, rules, follow, clock
        self._roster = Roster(key_file)
        self.told: Mapping[EngineSpec, Hosting] = {}
        """What discovery heard last."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await heard_within(self._mirror.pods_changed, LOOK_S, self._clock)
            await self._clock.sleep(GATHER_S)
            self._mirror.pods_changed.clear()
            if self._mirror.is_known:
                self.look()

    def look(self) -> None:
        """Bring discovery in line with pods and resources."""
        servers = self._roster.servers(self._selections(), self._mirror.pods())
        if servers != self.told:
            self.assume(servers)

    def assume(self, servers: Mapping[EngineSpec, Hosting]) -> None:
        """Tell discovery of these servers, until a look at the cluster says something else."""
        self.told = servers
        self._follow(servers)

    def _selections(self) -> list[Selection]:
        own = (each for each in self._rules.resources.worker_sets if not is_gateway_pool(each))
        chosen = (selection_of(each) for each in own)
        return [each for each in chosen if each is not None] + list(self._mirror.gateway_pools())
