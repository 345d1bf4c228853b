"""What a coordinator reads of its cluster and says there, run as one."""

import asyncio
import random
from collections.abc import Callable, Iterator

from coordinator.kube.api import Api
from coordinator.kube.custom_resources import CustomResources
from coordinator.kube.deletion_costs import DeletionCosts, Worths
from coordinator.kube.kept import CHANGED_S, Keeper, find
from coordinator.kube.mirror import Mirror
from coordinator.kube.pod_engines import Follow, PodEngines
from coordinator.kube.settings import Kubernetes
from coordinator.kube.status import StatusWriter
from coordinator.rules import Resources, Rules
from coordinator.state.leader import Leadership
from coordinator.state.store import Store
from lineside.clock import Clock
from lineside.findings import Finding


class KubeCluster:
    """The parts, knitted together. To others it is what puts resources into force."""

    unknown = False

    def __init__(
        self,
        *,
        api: Api,
        settings: Kubernetes,
        rules: Rules,
        told: Callable[[Resources], None],
        follow: Follow,
        store: Store,
        clock: Clock,
    ) -> None:
        """`told` hears of the set in force, `follow` of servers in pods; `store` keeps both."""
        self.mirror = Mirror(api, settings.namespaces, clock, random.Random())
        self.statuses = StatusWriter(api, clock, self._leads)
        self._leadership: Leadership | None = None
        self._keeper: Keeper | None = None
        self.costs: DeletionCosts | None = None
        """`None`: pods get no deletion costs."""
        self._api, self._clock, self._settings = api, clock, settings
        self._pods = PodEngines(self.mirror, rules, follow, clock, settings.engine_key_file)
        self._resources = CustomResources(
            mirror=self.mirror,
            rules=rules,
            settings=settings,
            told=told,
            statuses=self.statuses,
            leads=self._leads,
            clock=clock,
            find=lambda: find(store, settings.namespaces, clock.unix()),
        )

    def stand(self, leadership: Leadership) -> None:
        """Write what became of resources whenever this coordinator leads; without it, never."""
        self._leadership, self._keeper = leadership, Keeper(leadership, self._clock)

    def weigh(self, worths: Worths) -> None:
        """Write what engines are worth to their pods, where the settings ask for it."""
        if self._settings.pod_deletion_cost:
            self.costs = DeletionCosts(
                self._api, self._clock, self._leads, self.mirror.pods, worths
            )

    def _leads(self) -> bool:
        return self._leadership is not None and self._leadership.leads

    @property
    def refused(self) -> int:
        """How many objects' newest form is not in force."""
        return self._resources.refused

    @property
    def away(self) -> str:
        """Why the cluster cannot be read; empty: it can."""
        return self.mirror.away

    @property
    def rejected(self) -> bool:
        """Whether there is an object with an error, in force or not."""
        return self._resources.rejected

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all objects as they are now, warnings too."""
        return self._resources.findings

    async def start(self) -> tuple[Finding, ...]:
        """Put what is there into force, or what was; return what keeps both from being read."""
        if findings := await self._resources.start():
            return findings
        begun = self._resources.begun_with
        if begun is not None and begun.kept is not None:
            self._pods.assume(begun.kept.found(self._settings.engine_key_file))
        else:
            self._pods.look()
        return ()

    @property
    def kept_age_s(self) -> float | None:
        """How old what is in force is, where it is what the store kept; `None`: it is not."""
        begun = self._resources.begun_with
        return None if begun is None else max(0.0, self._clock.unix() - begun.seen_at)

    def degraded(self) -> Iterator[tuple[str, str]]:
        """Yield what is served around, beside a cluster that is away: a code and a sentence."""
        if (age_s := self.kept_age_s) is not None:
            yield (
                "resources_kept",
                f"resources and pods are from the store, as they were {age_s:.0f} s ago: the"
                " cluster has not said yet what there is now",
            )

    async def run(self) -> None:
        """Follow and write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.mirror.run(), name="follow the cluster")
            tasks.create_task(self._resources.run(), name="apply custom resources")
            tasks.create_task(self._pods.run(), name="follow pods")
            tasks.create_task(self.statuses.run(), name="write statuses")
            tasks.create_task(self._keep(), name="keep what is in force")
            if self.costs is not None:
                tasks.create_task(self.costs.run(), name="write deletion costs")
            if self._leadership is not None:
                tasks.create_task(self._leadership.run(), name="lead")

    async def _keep(self) -> None:
        """Have the store keep what the cluster says, for as long as it can be read."""
        while True:
            await self._clock.sleep(CHANGED_S)
            is_seen = self.mirror.is_known and not self.mirror.away and self.kept_age_s is None
            if self._keeper is not None and is_seen:
                await self._keeper.keep(self._resources.kept(self._pods.told))

    def remake(self) -> None:
        """Have what is in force kept again: the store lost its data."""
        if self._keeper is not None:
            self._keeper.remake()

    def shown(self) -> dict[str, object]:
        """Return the state of the objects, for people."""
        return self._resources.shown()
