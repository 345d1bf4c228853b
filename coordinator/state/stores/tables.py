"""The SQLite store's tables, and what its calls are in SQL. Runs on the store's thread alone.

`entries` has what is there now, `changes` the latest writes for watches, `leases` when each ends,
`state` the revision of the last write, the last one that `changes` has forgotten, and its name.
"""

import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from coordinator.state.store import Change, Delete, LeaseId, LeaseLost, Listing, Put, Stored, Write

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, lease INTEGER)",
    "CREATE TABLE IF NOT EXISTS changes (revision INTEGER NOT NULL, key TEXT NOT NULL, value BLOB,"
    " PRIMARY KEY (revision, key))",
    "CREATE TABLE IF NOT EXISTS leases"
    " (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_s INTEGER NOT NULL, ends_at REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state"
    " (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL,"
    " forgotten INTEGER NOT NULL, life TEXT NOT NULL)",
)


def make(db: sqlite3.Connection) -> None:
    """Make the tables, or bring those of an earlier release in line."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
        return
    with _writing(db):
        for statement in SCHEMA:
            db.execute(statement)
        columns = {row[1] for row in db.execute("PRAGMA table_info(entries)")}
        if "lease" not in columns:  # releases before leases had the first three columns alone
            db.execute("ALTER TABLE entries ADD COLUMN lease INTEGER")
        newest = db.execute("SELECT coalesce(max(revision), 0) FROM entries").fetchone()[0]
        fresh = secrets.token_hex(8)
        db.execute("INSERT OR IGNORE INTO state VALUES (1, ?, ?, ?)", (newest, newest, fresh))


def get(db: sqlite3.Connection, key: str) -> Stored | None:
    row = db.execute("SELECT value, revision FROM entries WHERE key = ?", (key,)).fetchone()
    return None if row is None else Stored(bytes(row[0]), int(row[1]))


def listed(db: sqlite3.Connection, prefix: str) -> Listing:
    with _reading(db):
        rows = db.execute(
            "SELECT key, value, revision FROM entries WHERE substr(key, 1, ?) = ? ORDER BY key",
            (len(prefix), prefix),
        )
        entries = {str(key): Stored(bytes(value), int(at)) for key, value, at in rows}
        return Listing(entries, revision(db))


def revision(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT revision FROM state").fetchone()[0])


def life(db: sqlite3.Connection) -> str:
    return str(db.execute("SELECT life FROM state").fetchone()[0])


def transact(
    db: sqlite3.Connection,
    expected: Mapping[str, int | None],
    writes: Sequence[Write],
    kept: int,
) -> int | None:
    with _writing(db):
        for key, wanted in expected.items():
            found = get(db, key)
            if (None if found is None else found.revision) != wanted:
                return None
        return _write(db, writes, kept)


def since(db: sqlite3.Connection, prefix: str, after: int) -> tuple[list[Change], int] | None:
    """Return the changes above a revision and the newest revision; `None`: they are forgotten."""
    with _reading(db):
        newest, forgotten = db.execute("SELECT revision, forgotten FROM state").fetchone()
        if after < forgotten or after > newest:
            return None
        rows = db.execute(
            "SELECT key, value, revision FROM changes"
            " WHERE revision > ? AND substr(key, 1, ?) = ? ORDER BY revision, key",
            (after, len(prefix), prefix),
        )
        changes = [
            Change(str(key), None if value is None else bytes(value), int(at))
            for key, value, at in rows
        ]
        return changes, int(newest)


def grant(db: sqlite3.Connection, ttl_s: int, now: float) -> LeaseId:
    with _writing(db):
        made = db.execute("INSERT INTO leases (ttl_s, ends_at) VALUES (?, ?)", (ttl_s, now + ttl_s))
        assert made.lastrowid is not None
        return LeaseId(made.lastrowid)


def keep(db: sqlite3.Connection, lease: LeaseId, now: float) -> None:
    with _writing(db):
        kept = db.execute("UPDATE leases SET ends_at = ? + ttl_s WHERE id = ?", (now, lease))
        if not kept.rowcount:
            raise LeaseLost(lease)


def expire(db: sqlite3.Connection, now: float, kept: int) -> None:
    """End the leases that have run out."""
    ended = [
        LeaseId(row[0]) for row in db.execute("SELECT id FROM leases WHERE ends_at <= ?", (now,))
    ]
    if ended:
        revoke(db, ended, kept)


def revoke(db: sqlite3.Connection, leases: Sequence[LeaseId], kept: int) -> None:
    with _writing(db):
        for lease in leases:
            db.execute("DELETE FROM leases WHERE id = ?", (lease,))
            held = db.execute("SELECT key FROM entries WHERE lease = ?", (lease,)).fetchall()
            _write(db, [Delete(str(key)) for (key,) in held], kept)


def _write(db: sqlite3.Connection, writes: Sequence[Write], kept: int) -> int:
    """Carry writes out as one revision; what changes nothing raises none."""
    newest = revision(db)
    changed = [write for write in writes if isinstance(write, Put) or get(db, write.key)]
    if not changed:
        return newest
    for write in changed:
        value = write.value if isinstance(write, Put) else None
        if isinstance(write, Put):
            _check_lease(db, write.lease)
            row = (write.key, write.value, newest + 1, write.lease)
            db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
        else:
            db.execute("DELETE FROM entries WHERE key = ?", (write.key,))
        db.execute("INSERT INTO changes VALUES (?, ?, ?)", (newest + 1, write.key, value))
    db.execute("UPDATE state SET revision = ?", (newest + 1,))
    _forget(db, kept)
    return newest + 1


def _check_lease(db: sqlite3.Connection, lease: LeaseId | None) -> None:
    if lease is None:
        return
    if db.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is None:
        raise LeaseLost(lease)


def _forget(db: sqlite3.Connection, kept: int) -> None:
    """Keep the latest changes, whole revisions of them."""
    row = db.execute(
        "SELECT revision FROM changes ORDER BY revision DESC LIMIT 1 OFFSET ?", (kept,)
    ).fetchone()
    if row is not None:
        db.execute("DELETE FROM changes WHERE revision <= ?", row)
        db.execute("UPDATE state SET forgotten = ?", row)


@contextmanager
def _reading(db: sqlite3.Connection) -> Iterator[None]:
    """See one state of the database throughout."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


@contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    """Write all of it, or nothing where it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
