"""The resources that were applied to the store, followed: what is good is put into force.

Like `resources.ResourceFolder`, for coordinators that have no folder of their own. A set that
cannot be used leaves the one before in force; a store that lost its data gets back what is.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from coordinator.resources import LOOK_S, judge
from coordinator.rules import Resources, Rules
from coordinator.state import applied
from coordinator.state.applied import Applied, Sets
from coordinator.state.following import Following
from coordinator.state.store import PUT_BACK_S, Store, StoreUnavailable
from lineside import logs
from lineside.clock import Clock, heard_within
from lineside.findings import Finding, Place
from policies.model import API_VERSION, InferencePolicy, Metadata, PolicySpec, Reject, Rule

log = logs.get("coordinator.state.stored_resources")

ANSWER_S = 2.0
"""For the store, at the start. From then on it counts as away."""

CLOSED = Resources(
    policies=(
        InferencePolicy(
            api_version=API_VERSION,
            metadata=Metadata(name="store-away", namespace="lineside"),
            spec=PolicySpec(
                rules=(
                    Rule(
                        name="closed",
                        reject=Reject(
                            status=503,
                            message="the policies in force are in the store, which is away",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
"""In force while nobody knows which guards there are."""


class StoredResources:
    """One coordinator's; together with `policy rollback` the only writer of its `Rules`."""

    def __init__(
        self, store: Store, rules: Rules, told: Callable[[Resources], None], clock: Clock
    ) -> None:
        """`told` hears of the set in force: when it is put there, and at each look."""
        self._store, self._rules, self._told, self._clock = store, rules, told, clock
        self._changed = asyncio.Event()
        self._following = Following(store, applied.PREFIX, clock, self._changed.set)
        self._seen: Applied | None = None
        self._good: Applied | None = None
        self._is_lost = False
        self.away = ""
        self.findings: tuple[Finding, ...] = ()
        """Of the newest set, warnings too."""
        self.rejected = False
        """Whether the newest set is not what is in force."""
        self.unknown = False
        """Whether there may be guards that are not known, so that every request is refused."""
        self._empty_since: float | None = None

    async def start(self) -> tuple[Finding, ...]:
        """Put the newest set into force that can be used; return what keeps all from it.

        A coordinator of an earlier release must come up beside those that use what it cannot.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                sets = await applied.history(self._store)
        except (StoreUnavailable, TimeoutError):
            self.unknown = True
            self._rules.bridge(CLOSED)
            return ()
        await self._take(sets)
        await asyncio.to_thread(self._told, self._rules.resources)
        if self.rejected and self._good is None:
            return tuple(each for each in self.findings if each.severity == "error")
        return ()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._following.run(), name="follow resources")
            tasks.create_task(self._apply(), name="apply resources")

    def remake(self) -> None:
        """Have the set in force written again: the store lost its data."""
        self._is_lost = True
        self._changed.set()

    async def _apply(self) -> None:
        while True:
            await heard_within(self._changed, LOOK_S, self._clock)
            self._changed.clear()
            if self._is_lost and self._good is not None:
                with suppress(StoreUnavailable):  # the next look comes soon
                    await applied.put_back(self._store, self._good)
                    self._is_lost = False
            if self._following.revision >= 0:
                await self._take(applied.found_in(self._following.entries))
            await asyncio.to_thread(self._told, self._rules.resources)  # it reads files

    async def _take(self, sets: Sets) -> None:
        """Put the newest set into force, or where none is the newest one that can be used."""
        await self._take_newest(sets)
        earlier = sets.before(sets.current or 0)
        while self.rejected and self._good is None and earlier:
            judged = await asyncio.to_thread(judge, (), earlier[0].files())
            if not judged.errors:
                self._put(earlier[0], judged.resources)
            earlier = earlier[1:]

    def _put(self, good: Applied, resources: Resources) -> None:
        self._good, self.unknown = good, False
        self._rules.swap(resources)

    async def _take_newest(self, sets: Sets) -> None:
        if sets.current is None:
            self._open_if_empty()
            return  # nothing was applied, or it is lost: what is in force stays
        newest = sets.newest
        if newest is None:
            text = f"set {sets.current} cannot be read: another release may have applied it"
            self._reject((Finding(Place("the store"), "unreadable", text),))
        elif newest != self._seen:
            self._seen = newest
            judged = await asyncio.to_thread(judge, (), newest.files())
            if judged.errors:
                self._reject(judged.findings)
                return
            self.findings, self.rejected = judged.findings, False
            self._put(newest, judged.resources)
            log.info("resources applied", set=newest.number, revision=self._rules.revision)

    def _open_if_empty(self) -> None:
        """Serve without policies, once nobody can have put back what a store has lost."""
        now = self._clock.monotonic()
        if self._empty_since is None:
            self._empty_since = now
        if self.unknown and now - self._empty_since >= 2 * PUT_BACK_S:
            self.unknown = False
            self._rules.swap(Resources())

    def _reject(self, findings: tuple[Finding, ...]) -> None:
        if not self.rejected or findings != self.findings:
            for finding in findings:
                log.warning("resources rejected", place=str(finding.place), code=finding.code)
        self.findings, self.rejected = findings, True

    def shown(self) -> dict[str, object]:
        """Return the state of the sets, for people."""
        return {
            "source": f"set {self._seen.number} of the store" if self._seen else None,
            "rejected": self.rejected,
            "findings": [finding.to_json() for finding in self.findings],
        }
