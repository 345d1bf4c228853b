"""Who does what only one coordinator may do: it holds a key under its lease, the others wait.

A chore runs `run` beside it, does its work while `leads`, and writes through `write` alone:

    leadership = Leadership(store, members.tenure, "tidy", members.me, clock)
    if leadership.leads:
        await leadership.write({key: revision}, [Delete(key)])

A leader that cannot keep its lease stops leading before the store can end it, by its own clock. Its
writes expect the leader's key at the revision at which it became one, so that a word that comes
late, from a process that was paused, say, changes nothing. A chore has to bear being done twice,
and being left off in the middle.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from coordinator.state.following import Following
from coordinator.state.store import LeaseId, LeaseLost, Store, StoreUnavailable, Write
from coordinator.state.tenure import Tenure
from lineside import logs
from lineside.clock import Clock, heard_within

log = logs.get("coordinator.state.leader")

PREFIX = "leaders/"

LOOK_S = 1.0
"""Between two looks when nothing was heard; the key's end is heard at once."""


class Leadership:
    """One coordinator's part in who does a chore. Every coordinator stands for every chore."""

    def __init__(self, store: Store, tenure: Tenure, chore: str, me: str, clock: Clock) -> None:
        """`tenure` has to run, too: its lease is the leader's. `me` is unique."""
        self.key = PREFIX + chore
        self._store, self._tenure, self._me, self._clock = store, tenure, me, clock
        self._heard = asyncio.Event()
        self._following = Following(store, self.key, clock, self._heard.set)
        self._under: LeaseId | None = None
        self._revision = 0

    @property
    def leads(self) -> bool:
        """Whether this coordinator may do the chore now."""
        tenure = self._tenure
        return self._under is not None and self._under == tenure.lease and tenure.is_held

    @property
    def leader(self) -> str | None:
        """Return who leads, as far as is known."""
        stored = self._following.entries.get(self.key)
        return None if stored is None else stored.value.decode(errors="replace")

    async def write(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        """Carry out a leader's transaction, as `Store.transact` does.

        `None`, too, when this coordinator does not lead, or leads no more when the store reads it:
        then nothing was written. Raises `StoreUnavailable`, `LeaseLost`.
        """
        if not self.leads:
            return None
        return await self._store.transact({**expected, self.key: self._revision}, writes)

    async def run(self) -> None:
        """Stand for election until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._following.run(), name=f"follow {self.key}")
            tasks.create_task(self._stand(), name=f"stand for {self.key}")

    async def _stand(self) -> None:
        while True:
            if not self.leads:
                self._under = None
                # A tenure makes its lease anew, and readiness tells of the store.
                with suppress(StoreUnavailable, LeaseLost):
                    await self._try()
            self._heard.clear()
            await heard_within(self._heard, LOOK_S, self._clock)

    async def _try(self) -> None:
        lease = self._tenure.lease
        if lease is None or self.leader is not None:
            return
        value = self._me.encode()
        if written := await self._store.compare_and_set(self.key, None, value, lease):
            self._under, self._revision = lease, written.revision
            log.info("leading", chore=self.key.removeprefix(PREFIX))
