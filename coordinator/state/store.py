"""Small shared state: keys, values, revisions, leases and watches. The seam; `stores/` has it.

Holds what coordinators must agree on (the cluster's secret, members, numbers, applied resources),
never blocks, per-request counters or metrics. `docs/operations.md` lists every key.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol, TypeAlias

from coordinator.state.secret import SECRET_BYTES
from lineside.clock import Clock, SystemClock

LeaseId = NewType("LeaseId", int)

SECRET_KEY = "cluster/secret"

PUT_BACK_S = 2.5
"""In which coordinators put back what a store has lost: they look every second."""

LOOK_S = 0.25

PROBE = "store/probe/"
"""Begins keys that live for a moment, to see whether the store works."""

MAX_WRITES = 100
"""In one transaction; etcd takes 128 operations."""

MAX_VALUE_BYTES = 1_000_000
"""Of all values of a transaction together; etcd takes requests of 1.5 MiB."""


class StoreUnavailable(Exception):
    """The store cannot be read or written now; says why. What is known already still holds.

    A write may have been carried out all the same: whoever must know reads it back.
    """


class Compacted(Exception):
    """The changes that a watch asks for are not known (any more): list, and watch from there."""


class LeaseLost(Exception):
    """There is no such lease (any more), and its keys are gone."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A value and the store's revision at which it was written."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys with one prefix, as they were at one revision of the store."""

    entries: Mapping[str, Stored]
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one write left of one key; `value` `None`: it was deleted, or its lease ended."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A key gets a value, and goes when the lease does. Without one it stays."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A key goes, if it is there."""

    key: str


Write: TypeAlias = Put | Delete


class Store(Protocol):
    """Keys with values. Each write, or transaction, raises the store's revision.

    Every call may raise `StoreUnavailable`, within seconds.
    """

    async def get(self, key: str) -> Stored | None:
        """Return a key's value."""
        ...

    async def range(self, prefix: str) -> Listing:
        """Return all keys that begin so."""
        ...

    async def compare_and_set(
        self, key: str, expected: int | None, value: bytes, lease: LeaseId | None = None
    ) -> Stored | None:
        """Write if the key is still at revision `expected` (`None`: absent).

        Returns what was written, or `None` when somebody else was first.
        """
        ...

    async def transact(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        """Carry out all writes if each key is still at its expected revision, else none.

        Returns the store's revision after it, or `None` when a key was not as expected. At most
        `MAX_WRITES`, each of another key. Raises `LeaseLost` where a lease is not there. Of nothing
        but deletions whose answer was lost it may be a later revision.

        A try whose answer was lost may be carried out late, after other writes: where that would
        do harm, name what each key is expected to be.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncGenerator[Sequence[Change], None]:
        """Yield every change above a revision, each once and in order, for ever.

        What one transaction changed comes together. While the store is away it waits, then goes
        on where it was; raises `Compacted` where that cannot be.
        """
        ...

    async def grant(self, ttl_s: int) -> LeaseId:
        """Make a lease that ends unless it is kept within every `ttl_s`, 2 s at least."""
        ...

    async def keep(self, lease: LeaseId) -> None:
        """Let a lease run anew. Raises `LeaseLost`."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease, if it is there: its keys go at once."""
        ...

    async def revision(self) -> int:
        """Return the revision of the last write; it never falls in a store's life."""
        ...

    async def life(self) -> str:
        """Return what the store's data is known by: another text when it was lost or replaced."""
        ...

    async def about(self) -> str:
        """Return what the store is, for people: a name and a release."""
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...


def check(expected: Mapping[str, int | None], writes: Sequence[Write]) -> None:
    """Refuse a transaction that not every store could take. Raises `ValueError`."""
    if not 0 < len(writes) <= MAX_WRITES or len(expected) > MAX_WRITES:
        raise ValueError(f"a transaction has 1 to {MAX_WRITES} writes, not {len(writes)}")
    if len({write.key for write in writes}) != len(writes):
        raise ValueError("a transaction writes each key once")
    size = sum(len(write.value) for write in writes if isinstance(write, Put))
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"a transaction writes {MAX_VALUE_BYTES} bytes at most, not {size}")


async def cluster_secret(
    store: Store, patience_s: float = 0.0, clock: Clock | None = None
) -> bytes:
    """Return the secret that seeds every block key; create it at the cluster's first start.

    A store that has none may have lost it: with patience, those who know it can put it back.
    """
    fresh, clock = secrets.token_bytes(SECRET_BYTES), clock or SystemClock()
    until = clock.monotonic() + patience_s
    while True:
        if (stored := await store.get(SECRET_KEY)) is not None:
            return stored.value
        if clock.monotonic() < until:
            await clock.sleep(LOOK_S)
            continue
        if (written := await store.compare_and_set(SECRET_KEY, None, fresh)) is not None:
            return written.value
