"""A cluster's custom resources, followed: what is good is put into force, each is told its state.

Like `resources.ResourceFolder`, but an object that is wrong keeps only itself from being changed.
With `policy rollback` the only writer of its `Rules`. A cluster that is away changes nothing; one
that is away at the start is begun with as the store keeps it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.conditions import said_of
from coordinator.kube.gateway_pools import with_gateway_pools
from coordinator.kube.judging import NOTHING, Judgement, judge
from coordinator.kube.kept import Found, Kept, kept_of
from coordinator.kube.mirror import Mirror
from coordinator.kube.pods import Selection
from coordinator.kube.references import unresolved
from coordinator.kube.settings import Kubernetes
from coordinator.kube.status import Due, StatusWriter
from coordinator.kube.written import Ident, Written
from coordinator.rules import Bench, Resources, Rules
from lineside import logs
from lineside.clock import Clock, heard_within
from lineside.findings import Finding, Place

log = logs.get("coordinator.kube.custom_resources")

LOOK_S = 1.0
"""Between two looks when nothing was heard: at keys' files, and at what is said of names."""

START_S = 20.0
"""A start waits so long for the first lists: without its policies nothing may be served."""

KEPT_START_S = 5.0
"""The same where the store has what was in force, and the cluster is known to be away."""

AWAY_LOOK_S = 0.25


class CustomResources:
    """One coordinator's."""

    def __init__(
        self,
        *,
        mirror: Mirror,
        rules: Rules,
        settings: Kubernetes,
        told: Callable[[Resources], None],
        statuses: StatusWriter,
        leads: Callable[[], bool],
        clock: Clock,
        find: Callable[[], Awaitable[Found]],
    ) -> None:
        """`told` hears of the set in force: when it is put there, and at each look; `find` says
        what the store keeps.
        """
        self._mirror, self._rules, self._settings = mirror, rules, settings
        self._clock = clock
        self._told, self._statuses, self._leads, self._find = told, statuses, leads, find
        self._judgement = NOTHING
        self._objects: dict[Ident, Written] = {}
        self._pools: tuple[Selection, ...] = ()
        self.begun_with: Found | None = None
        """What the store kept, while the cluster has not said yet what there is."""

    @property
    def away(self) -> str:
        """Why the cluster cannot be read; empty: it can."""
        return self._mirror.away

    @property
    def rejected(self) -> bool:
        """Whether there is an object with an error, in force or not."""
        return bool(self._judgement.wrong)

    @property
    def refused(self) -> int:
        """How many objects' newest form is not in force."""
        return len(self._judgement.refused)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all objects as they are now, warnings too."""
        return self._judgement.all_findings

    async def start(self) -> tuple[Finding, ...]:
        """Put what is there into force, or what was; return what keeps both from being read."""
        found = await self._find()
        try:
            async with asyncio.timeout(START_S) as limit, asyncio.TaskGroup() as tasks:
                if found.kept is not None:
                    giving_up = tasks.create_task(self._give_up(limit), name="give up")
                await self._mirror.prime()
                if found.kept is not None:
                    giving_up.cancel()
        except TimeoutError:
            why = self._mirror.away or f"no answer within {START_S:g} s"
            if found.kept is None:
                return (Finding(Place("the cluster"), "unreadable", f"{why}; {found.why}"),)
            await self._begin(found, found.kept)
            log.warning("starting without the cluster", away=why)
        else:
            if missing := self._mirror.missing:
                log.warning("kinds are not installed", missing=missing)
            await self._take()
        await asyncio.to_thread(self._told, self._rules.resources)
        return ()

    async def _give_up(self, limit: asyncio.Timeout) -> None:
        """Wait no longer for a cluster that is away. One that is slow gets its time."""
        await self._clock.sleep(KEPT_START_S)
        while not self._mirror.away:
            await self._clock.sleep(AWAY_LOOK_S)
        limit.reschedule(asyncio.get_running_loop().time())

    async def _begin(self, found: Found, kept: Kept) -> None:
        """Put what the store keeps into force, until the cluster says what there is."""
        # Nothing was in force here: whoever may write into the store only says that it was good.
        judged = await asyncio.to_thread(judge, {}, kept.written(), self._settings)
        self._tell(self._judgement, judged)
        self._judgement, self._pools, self.begun_with = judged, kept.pools, found
        self._rules.bridge(with_gateway_pools(judged.resources, kept.pools))

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await heard_within(self._mirror.resources_changed, LOOK_S, self._clock)
            self._mirror.resources_changed.clear()
            if self._mirror.is_known:
                await self._take()
            if self._leads():
                self._statuses.want(await asyncio.to_thread(self._due, self._rules.bench()))
            await asyncio.to_thread(self._told, self._rules.resources)  # it reads files

    async def _take(self) -> None:
        """Judge what has changed, and put what came of it into force."""
        objects = {each.ident: each for each in self._mirror.written()}
        pools = self._mirror.gateway_pools()
        before = self._judgement
        is_first = self.begun_with is not None
        has_changed = is_first or _forms(objects) != _forms(self._objects)
        self._objects = objects
        if has_changed:
            listed = [objects[ident] for ident in sorted(objects)]
            judged = await asyncio.to_thread(judge, before.in_force, listed, self._settings)
            self._judgement = judged
            self._tell(before, judged)
        if is_first or self._judgement.in_force != before.in_force or pools != self._pools:
            self._pools, self.begun_with = pools, None
            self._rules.swap(with_gateway_pools(self._judgement.resources, pools))
            self._mirror.pods_changed.set()  # other pods may be selected now
            log.info(
                "resources applied",
                revision=self._rules.revision,
                objects=len(self._judgement.in_force),
            )

    def kept(self, servers: Mapping[EngineSpec, Hosting]) -> Kept:
        """Return what is in force, with the servers in pods, as the store is to keep it."""
        created = {ident: each.created for ident, each in self._objects.items()}
        forms = self._judgement.in_force
        return kept_of(self._mirror.namespaces, forms, created, self._pools, servers)

    def _tell(self, before: Judgement, now: Judgement) -> None:
        for ident in sorted(now.wrong):
            what = "resource rejected" if ident in now.refused else "resource has an error"
            if now.findings.get(ident) != before.findings.get(ident):
                for found in now.findings.get(ident, ()):
                    log.warning(what, place=str(found.place), code=found.code)

    def _due(self, bench: Bench) -> Mapping[Ident, Due]:
        """Return what is to be said of each object. Run on a thread: it changes nothing."""
        judgement, rules = self._judgement, self._rules
        resources = rules.resources
        selecting = {each.key for sets in bench.members.worker_sets.values() for each in sets}
        others = [*resources.pools, *resources.worker_sets]
        missing = unresolved(judgement.located, bench.bound.inventory, others, selecting)
        due = {}
        for ident, each in self._objects.items():
            form = judgement.in_force.get(ident)
            found = judgement.findings.get(ident, ())
            said = said_of(each, form, found, missing.get(ident, ()), rules.rolled_back)
            due[ident] = Due(each, said)
        return due

    def shown(self) -> dict[str, object]:
        """Return the state of the objects, for people."""
        where = ", ".join(self._mirror.namespaces)
        how = "" if self.begun_with is None else ", as the store keeps them"
        return {
            "source": f"custom resources of the cluster ({where}){how}",
            "rejected": self.rejected,
            "findings": [finding.to_json() for finding in self.findings],
            "cluster": {**self._mirror.shown(), "status_problem": self._statuses.problem},
        }


def _forms(objects: Mapping[Ident, Written]) -> list[object]:
    return [(ident, each.form, each.kept) for ident, each in objects.items()]
