"""What is SQLite's own: files that outlive processes and releases, and time as an argument."""

import sqlite3
from pathlib import Path

import pytest

from coordinator.state.store import Change, LeaseLost, Put, Stored, StoreUnavailable, cluster_secret
from coordinator.state.stores.sqlite import SqliteStore
from tests.manual_clock import ManualClock


async def test_a_file_keeps_the_secret(tmp_path: Path) -> None:
    secrets = set()
    for _ in range(2):
        store = SqliteStore(str(tmp_path / "s.db"))
        secrets.add(await cluster_secret(store))
        await store.close()
    assert len(secrets) == 1


async def test_a_file_of_a_release_before_leases_is_read_on(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE entries"
            " (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)"
        )
        db.execute("INSERT INTO entries VALUES ('k', x'01', 7)")
    db.close()
    store = SqliteStore(path)
    assert (await store.get("k"), await store.revision()) == (Stored(b"\x01", 7), 7)
    assert await store.compare_and_set("k", 7, b"2") == Stored(b"2", 8)
    watch = store.watch("", 7)
    assert await anext(watch) == [Change("k", b"2", 8)]
    await watch.aclose()
    await store.close()


async def test_a_revision_never_falls_though_its_key_went() -> None:
    store, clock = SqliteStore(":memory:"), ManualClock()
    await store.close()
    store = SqliteStore(":memory:", clock=clock)
    lease = await store.grant(3)
    assert await store.compare_and_set("k", None, b"1", lease) == Stored(b"1", 1)
    clock.now += 2.9
    await store.keep(lease)
    clock.now += 2.9
    assert await store.get("k") == Stored(b"1", 1)
    clock.now += 0.2
    assert (await store.get("k"), await store.revision()) == (None, 2)
    with pytest.raises(LeaseLost):
        await store.keep(lease)
    await store.close()


async def test_a_folder_that_is_not_there_is_a_store_that_is_away(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "none" / "s.db"))
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        await store.get("k")
    await store.close()


async def test_two_processes_share_a_file(tmp_path: Path) -> None:
    one, other = (SqliteStore(str(tmp_path / "s.db")) for _ in range(2))
    assert await one.compare_and_set("k", None, b"1") == Stored(b"1", 1)
    assert await other.transact({"k": None}, [Put("k", b"2")]) is None
    assert await other.compare_and_set("k", 1, b"2") == Stored(b"2", 2)
    watch = one.watch("", 1)
    assert await anext(watch) == [Change("k", b"2", 2)]
    await watch.aclose()
    await one.close()
    await other.close()
