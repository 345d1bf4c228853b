"""Compare-and-set over keys: whoever is first wins, and it survives a restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.store import SqliteStore, Stored, cluster_secret


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(":memory:" if request.param == "memory" else str(tmp_path / "s.db"))
    yield opened
    await opened.close()


async def test_a_key_is_absent_until_it_is_set(store: SqliteStore) -> None:
    assert (await store.get("k"), await store.revision()) == (None, 0)
    assert await store.compare_and_set("k", None, b"v") == Stored(b"v", 1)
    assert (await store.get("k"), await store.revision()) == (Stored(b"v", 1), 1)


async def test_only_the_expected_revision_is_replaced(store: SqliteStore) -> None:
    await store.compare_and_set("k", None, b"1")
    assert await store.compare_and_set("k", None, b"2") is None
    assert await store.compare_and_set("k", 7, b"2") is None
    assert await store.compare_and_set("k", 1, b"2") == Stored(b"2", 2)
    assert await store.get("k") == Stored(b"2", 2)


async def test_of_many_at_once_one_wins(store: SqliteStore) -> None:
    writes = [store.compare_and_set("k", None, bytes([n])) for n in range(20)]
    assert sum(written is not None for written in await asyncio.gather(*writes)) == 1
    assert await store.revision() == 1


async def test_the_secret_is_made_once(store: SqliteStore) -> None:
    secrets = {await cluster_secret(store), await cluster_secret(store)}
    assert [len(secret) for secret in secrets] == [32]


async def test_a_file_keeps_the_secret(tmp_path: Path) -> None:
    secrets = set()
    for _ in range(2):
        store = SqliteStore(str(tmp_path / "s.db"))
        secrets.add(await cluster_secret(store))
        await store.close()
    assert len(secrets) == 1
