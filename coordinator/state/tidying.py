"""Deletes from the store what nobody will read any more. One coordinator does, the leader of it.

That is: sets of resources beyond those that are kept, which an import or an earlier release may
have left, and probes of `lineside store check` that was ended in the middle.
"""

from contextlib import suppress

from coordinator.state import applied
from coordinator.state.leader import Leadership
from coordinator.state.store import (
    MAX_WRITES,
    PROBE,
    Delete,
    LeaseLost,
    Store,
    StoreUnavailable,
)
from lineside import logs
from lineside.clock import Clock

log = logs.get("coordinator.state.tidying")

CHORE = "tidy"

EVERY_S = 30.0
"""Between two looks: two reads, and a write where there is something to delete."""


class Tidying:
    """One coordinator's part in it."""

    def __init__(self, store: Store, leadership: Leadership, clock: Clock) -> None:
        self.deleted = 0
        self.leadership = leadership
        self._store, self._clock = store, clock
        self._probes: dict[str, int] = {}
        """Those of the last look. What is there a look later belongs to nobody."""

    async def run(self) -> None:
        """Tidy whenever this coordinator leads, until cancelled."""
        while True:
            if self.leadership.leads:
                with suppress(StoreUnavailable, LeaseLost):  # the next look comes soon
                    await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Tidy once."""
        found = await self._old_sets() | await self._old_probes()
        expected = dict(sorted(found.items())[: MAX_WRITES - 1])
        if not expected:
            return
        writes = [Delete(key) for key in expected]
        if await self.leadership.write(expected, writes) is not None:
            self.deleted += len(writes)
            log.info("tidied", keys=len(writes))

    async def _old_sets(self) -> dict[str, int]:
        keys = (await self._store.range(applied.PREFIX)).entries
        return {key: keys[key].revision for key in applied.surplus(keys)}

    async def _old_probes(self) -> dict[str, int]:
        keys = (await self._store.range(PROBE)).entries
        before, self._probes = self._probes, {key: keys[key].revision for key in keys}
        return dict(before.items() & self._probes.items())
