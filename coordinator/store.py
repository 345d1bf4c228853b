"""Small shared state with compare-and-set: the seam, and SQLite in a file or in memory.

Holds what coordinators must agree on (the cluster's secret; later tenants and grants), never
blocks, per-request counters or metrics. SQLite runs on a thread of its own, off the event loop.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")

SECRET_KEY = "cluster/secret"
SECRET_BYTES = 32


class StoreUnavailable(Exception):
    """The store cannot be read or written now; says why. What is known already still holds."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A value and the store's revision at which it was written."""

    value: bytes
    revision: int


class Store(Protocol):
    """Keys with values. Every write raises the store's revision by one.

    Every call may raise `StoreUnavailable`.
    """

    async def get(self, key: str) -> Stored | None:
        """Return a key's value."""
        ...

    async def compare_and_set(self, key: str, expected: int | None, value: bytes) -> Stored | None:
        """Write if the key is still at revision `expected` (`None`: absent).

        Returns what was written, or `None` when somebody else was first.
        """
        ...

    async def revision(self) -> int:
        """Return the revision of the last write; 0 for a store never written."""
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...


class SqliteStore:
    """A store in one SQLite database, for one coordinator."""

    def __init__(self, path: str) -> None:
        """Use a file, or `:memory:`. Nothing is opened before the first call."""
        self._path = path
        # One thread: SQLite serialises anyway, and a memory database belongs to its connection.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None

    async def get(self, key: str) -> Stored | None:
        return await self._call(lambda db: _get(db, key))

    async def compare_and_set(self, key: str, expected: int | None, value: bytes) -> Stored | None:
        return await self._call(lambda db: _compare_and_set(db, key, expected, value))

    async def revision(self) -> int:
        return await self._call(_revision)

    async def close(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown(wait=False)

    async def _call(self, do: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: do(self._open())
            )
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # No write-ahead log: to switch it on at once from two processes fails as locked.
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA busy_timeout = 5000")
            db.execute(
                "CREATE TABLE IF NOT EXISTS entries"
                " (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)"
            )
            self._connection = db
        return self._connection


def _get(db: sqlite3.Connection, key: str) -> Stored | None:
    row = db.execute("SELECT value, revision FROM entries WHERE key = ?", (key,)).fetchone()
    return None if row is None else Stored(bytes(row[0]), int(row[1]))


def _compare_and_set(
    db: sqlite3.Connection, key: str, expected: int | None, value: bytes
) -> Stored | None:
    db.execute("BEGIN IMMEDIATE")
    try:
        before = _get(db, key)
        if (None if before is None else before.revision) != expected:
            db.execute("ROLLBACK")
            return None
        revision = _revision(db) + 1
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, revision))
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return Stored(value, revision)


def _revision(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(revision), 0) FROM entries").fetchone()[0])


async def cluster_secret(store: Store) -> bytes:
    """Return the secret that seeds every block key; create it at the cluster's first start."""
    fresh = secrets.token_bytes(SECRET_BYTES)
    if written := await store.compare_and_set(SECRET_KEY, None, fresh):
        return written.value
    stored = await store.get(SECRET_KEY)
    assert stored is not None  # nothing deletes it
    return stored.value
