"""A store in one SQLite database, in a file or in memory, for coordinators on one machine.

SQLite runs on a thread of its own, off the event loop. Several processes may share a file: a watch
looks for what others wrote. Leases end by the machine's clock.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from coordinator.state.store import (
    Change,
    Compacted,
    LeaseId,
    Listing,
    Put,
    Stored,
    StoreUnavailable,
    Write,
    check,
)
from coordinator.state.stores import tables
from lineside.clock import Clock, SystemClock, heard_within

T = TypeVar("T")

KEPT_CHANGES = 1000
"""Changes that a watch can go back to; the oldest are forgotten."""

BUSY_S = 2.5
"""For another process that is writing: shorter than anybody waits for the store."""

HELP = {
    sqlite3.SQLITE_BUSY: f"another process has held it for more than {BUSY_S:g} s",
    sqlite3.SQLITE_READONLY: "the file, its folder or its disk cannot be written",
    sqlite3.SQLITE_FULL: "make room: nothing can be written any more",
    sqlite3.SQLITE_CANTOPEN: "its folder is not there, or cannot be written",
    sqlite3.SQLITE_NOTADB: "the file is another one's: name a new one, or put back a copy",
    sqlite3.SQLITE_CORRUPT: "put back a copy: `lineside store import` fills a new file",
    sqlite3.SQLITE_IOERR: "the disk fails, or is full",
}
"""What to do about SQLite's words, by its primary codes."""

LOOK_S = 0.2
"""Between a watch's looks for what other processes wrote, and for leases that ended."""

ALONE_LOOK_S = 1.0
"""The same in memory, where no other process writes: a look takes both threads half a millisecond,
five times a second for each watch."""


class SqliteStore:
    """One process's connection to the database."""

    def __init__(
        self, path: str, *, clock: Clock | None = None, kept_changes: int = KEPT_CHANGES
    ) -> None:
        """Use a file, or `:memory:`. Nothing is opened before the first call."""
        self._path = path
        self._look_s = ALONE_LOOK_S if path == ":memory:" else LOOK_S
        self._clock = clock or SystemClock()
        self._kept = kept_changes
        # One thread: SQLite serialises anyway, and a memory database belongs to its connection.
        # What waits for it is as much as there are callers, and each waits for one call.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._wake: set[asyncio.Event] = set()
        """One for each watch; set after each of our own writes."""

    async def get(self, key: str) -> Stored | None:
        return await self._call(lambda db: tables.get(db, key))

    async def range(self, prefix: str) -> Listing:
        return await self._call(lambda db: tables.listed(db, prefix))

    async def compare_and_set(
        self, key: str, expected: int | None, value: bytes, lease: LeaseId | None = None
    ) -> Stored | None:
        revision = await self.transact({key: expected}, [Put(key, value, lease)])
        return None if revision is None else Stored(value, revision)

    async def transact(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        check(expected, writes)
        revision = await self._call(lambda db: tables.transact(db, expected, writes, self._kept))
        if revision is not None:
            self._tell_watches()
        return revision

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Sequence[Change], None]:
        wake = asyncio.Event()
        self._wake.add(wake)
        try:
            while True:
                wake.clear()
                changes: Sequence[Change] = ()
                with suppress(StoreUnavailable):  # it waits: the next look comes soon
                    changes, after = await self._since(prefix, after)
                if changes:
                    yield changes
                    continue
                await heard_within(wake, self._look_s, self._clock)
        finally:
            self._wake.discard(wake)

    async def grant(self, ttl_s: int) -> LeaseId:
        now = self._clock.unix()
        return await self._call(lambda db: tables.grant(db, ttl_s, now))

    async def keep(self, lease: LeaseId) -> None:
        now = self._clock.unix()
        await self._call(lambda db: tables.keep(db, lease, now))

    async def revoke(self, lease: LeaseId) -> None:
        await self._call(lambda db: tables.revoke(db, [lease], self._kept))
        self._tell_watches()

    async def revision(self) -> int:
        return await self._call(tables.revision)

    async def life(self) -> str:
        return await self._call(tables.life)

    async def about(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    async def close(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown(wait=False)

    async def _since(self, prefix: str, after: int) -> tuple[Sequence[Change], int]:
        found = await self._call(lambda db: tables.since(db, prefix, after))
        if found is None:
            raise Compacted(f"changes after revision {after} are not known any more")
        return found

    def _tell_watches(self) -> None:
        for event in self._wake:
            event.set()

    async def _call(self, do: Callable[[sqlite3.Connection], T]) -> T:
        now = self._clock.unix()

        def called() -> T:
            db = self._open()
            tables.expire(db, now, self._kept)
            return do(db)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, called)
        except sqlite3.Error as error:
            raise StoreUnavailable(_said(error)) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # No write-ahead log: to switch it on at once from two processes fails as locked.
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            db.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S)}")
            try:
                tables.make(db)
            except sqlite3.Error:
                db.close()
                raise
            self._connection = db
        return self._connection


def _said(error: sqlite3.Error) -> str:
    """Return what SQLite says, and what that means."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    help_ = HELP.get(code)
    return f"SQLite: {error}" + (f": {help_}" if help_ else "")
