"""Keys that others see for as long as this process lives: one lease, kept, and made anew when lost.

Written by `run` alone; whoever wants a key held says so and goes on. While the store is away the
keys may go: they are written again as soon as it is back.
"""

import asyncio
from contextlib import suppress

from coordinator.state.store import (
    MAX_WRITES,
    Delete,
    LeaseId,
    LeaseLost,
    Put,
    Store,
    StoreUnavailable,
    Write,
)
from lineside import logs
from lineside.clock import Clock, heard_within

log = logs.get("coordinator.state.tenure")

TTL_S = 10
"""After which the keys of a process that died are gone."""

RETRY_S = 0.5


class Tenure:
    """One process's lease and the keys under it. There are as many as it wants held, no queue."""

    def __init__(self, store: Store, clock: Clock, ttl_s: int = TTL_S) -> None:
        self.lease: LeaseId | None = None
        self.away = ""
        """Why the store could not be written last; empty: it could."""
        self.made = 0
        """How many leases there were: above 1, some were lost."""
        self._store, self._clock, self._ttl_s = store, clock, ttl_s
        self._until = 0.0
        self._wanted: dict[str, bytes] = {}
        self._due: dict[str, None] = {}
        """Keys that the store does not have as they are wanted, or may not."""
        self._wake = asyncio.Event()
        self._is_ended = False

    @property
    def is_held(self) -> bool:
        """Whether the store cannot end the lease yet, whatever became of the connection.

        A fifth of its time is left for what was begun while it was held.
        """
        slack_s = self._ttl_s / 5
        return self.lease is not None and self._clock.monotonic() < self._until - slack_s

    def hold(self, key: str, value: bytes) -> None:
        """Have others see a key from now on."""
        if self._wanted.get(key) != value:
            self._wanted[key] = value
            self._due[key] = None
            self._wake.set()

    def drop(self, key: str) -> None:
        """Have a key go."""
        if self._wanted.pop(key, None) is not None:
            self._due[key] = None
            self._wake.set()

    async def run(self) -> None:
        """Keep the lease and its keys until cancelled, or told to end."""
        while not self._is_ended:
            try:
                await self._write(await self._keep())
                self.away = ""
            except LeaseLost:
                log.warning("lease lost", made=self.made)
                self.lease = None
            except StoreUnavailable as error:
                self.away = str(error)
                await self._clock.sleep(RETRY_S)  # readiness tells of it
            else:
                await heard_within(self._wake, self._ttl_s / 3, self._clock)
                self._wake.clear()

    async def end(self) -> None:
        """Have all keys go now: this process stops."""
        self._is_ended = True
        if self.lease is not None:
            lease, self.lease = self.lease, None
            with suppress(StoreUnavailable):  # then they go when the lease has run out
                await self._store.revoke(lease)

    async def _keep(self) -> LeaseId:
        """Let the lease run anew, or make one."""
        asked_at = self._clock.monotonic()  # its time runs from when the store hears of it: later
        lease = self.lease
        if lease is None:
            lease = await self._store.grant(self._ttl_s)
            self.made += 1
            self._due.update(dict.fromkeys(self._wanted))
            if not self._is_ended:
                self.lease = lease
        else:
            await self._store.keep(lease)
        self._until = asked_at + self._ttl_s
        return lease

    async def _write(self, lease: LeaseId) -> None:
        """Write what is due under a lease, for as long as it is ours: never without one."""
        while self._due and self.lease == lease:
            keys = list(self._due)[:MAX_WRITES]
            writes = {key: self._as_wanted(key, lease) for key in keys}
            await self._store.transact({}, list(writes.values()))
            for key, write in writes.items():
                if write == self._as_wanted(key, lease):
                    self._due.pop(key, None)

    def _as_wanted(self, key: str, lease: LeaseId) -> Write:
        value = self._wanted.get(key)
        return Delete(key) if value is None else Put(key, value, lease)
