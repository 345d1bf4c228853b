"""What every store does alike: SQLite in memory and in a file, and a real etcd.

Each test has keys of its own below a prefix, so revisions are compared with where they began.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.state.store import (
    MAX_WRITES,
    Change,
    Compacted,
    Delete,
    LeaseId,
    LeaseLost,
    Listing,
    Put,
    Store,
    Stored,
    cluster_secret,
)
from coordinator.state.stores.sqlite import SqliteStore
from tests import etcds

KEPT = 40
"""Changes that the SQLite stores of these tests can go back to."""


@dataclass
class Kind:
    """One kind of store, and how to have it forget what was before a revision."""

    store: Store
    forget: Callable[[int], Awaitable[None]]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcds.Member]:
    with etcds.etcd(tmp_path_factory.mktemp("etcd")) as one:
        yield one


@pytest.fixture(
    params=[
        "memory",
        "file",
        pytest.param("etcd", marks=[pytest.mark.flow, etcds.needs_etcd]),
    ]
)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    store: Store
    if request.param == "etcd":
        one: etcds.Member = request.getfixturevalue("member")
        store = etcds.store_of(one, root=f"/{request.node.name}/")

        async def forget(revision: int) -> None:
            await etcds.compact(one, revision)
    else:
        path = ":memory:" if request.param == "memory" else str(tmp_path / "s.db")
        store = SqliteStore(path, kept_changes=KEPT)

        async def forget(revision: int) -> None:
            for n in range(KEPT):
                await store.transact({}, [Put("forget", bytes([n]))])

    yield Kind(store, forget)
    await store.close()


@pytest.fixture
def store(kind: Kind) -> Store:
    return kind.store


async def begun(store: Store) -> int:
    """Return the revision, once the store has written whatever it does for itself."""
    return (await store.range("")).revision


async def changes(store: Store, prefix: str, after: int, count: int) -> list[Change]:
    """Return the next changes."""
    found: list[Change] = []
    async with asyncio.timeout(10), aclosing(store.watch(prefix, after)) as watch:
        async for batch in watch:
            found.extend(batch)
            if len(found) >= count:
                return found
    raise AssertionError("a watch ended")


async def test_a_key_is_absent_until_it_is_set(store: Store) -> None:
    assert await store.get("k") is None
    at = await begun(store)
    assert await store.compare_and_set("k", None, b"v") == Stored(b"v", at + 1)
    assert (await store.get("k"), await store.revision()) == (Stored(b"v", at + 1), at + 1)


async def test_only_the_expected_revision_is_replaced(store: Store) -> None:
    at = await begun(store)
    await store.compare_and_set("k", None, b"1")
    assert await store.compare_and_set("k", None, b"1") is None
    assert await store.compare_and_set("k", at + 7, b"2") is None
    assert await store.compare_and_set("k", at + 1, b"2") == Stored(b"2", at + 2)
    assert await store.get("k") == Stored(b"2", at + 2)


async def test_of_many_at_once_one_wins(store: Store) -> None:
    at = await begun(store)
    writes = [store.compare_and_set("k", None, bytes([n])) for n in range(20)]
    assert sum(written is not None for written in await asyncio.gather(*writes)) == 1
    assert await store.revision() == at + 1


async def test_a_transaction_is_one_revision_or_nothing(store: Store) -> None:
    at = await begun(store)
    made = await store.transact({"a": None}, [Put("a", b"1"), Put("b", b"1"), Delete("none")])
    assert made == at + 1
    assert await store.transact({"a": None}, [Put("b", b"2"), Delete("a")]) is None
    assert await store.transact({"a": at + 1, "c": None}, [Put("b", b"2"), Delete("a")]) == at + 2
    assert await store.range("") == await store.range("")
    assert await mine(store, "") == {"b": Stored(b"2", at + 2)}


async def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    at = await begun(store)
    assert await store.transact({}, [Delete("k")]) == at
    assert await store.revision() == at


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param([], id="none"),
        pytest.param([Put("k", b""), Delete("k")], id="a key twice"),
        pytest.param([Put(str(n), b"") for n in range(MAX_WRITES + 1)], id="too many"),
        pytest.param([Put("k", bytes(1_000_001))], id="too large"),
    ],
)
async def test_what_not_every_store_takes_is_refused(store: Store, writes: Sequence[Any]) -> None:
    with pytest.raises(ValueError):
        await store.transact({}, writes)


async def test_as_much_as_may_be_is_taken(store: Store) -> None:
    writes = [Put(f"k{n}", bytes(10_000)) for n in range(MAX_WRITES)]
    at = await begun(store)
    assert await store.transact({write.key: None for write in writes}, writes) == at + 1
    assert (await store.range("k")).entries == {w.key: Stored(w.value, at + 1) for w in writes}


async def mine(store: Store, prefix: str) -> dict[str, Stored]:
    """Return what a test wrote, without what a store keeps for itself."""
    entries = (await store.range(prefix)).entries
    return {key: stored for key, stored in entries.items() if not key.startswith("store/")}


async def test_a_range_has_its_prefix_and_no_more(store: Store) -> None:
    at = await begun(store)
    keys = ["m/a", "m/a/b", "m/ä", "m/%", "m", "ma", "n/a", "M/a"]
    for key in keys:
        await store.compare_and_set(key, None, key.encode())
    wanted = {k: Stored(k.encode(), at + 1 + n) for n, k in enumerate(keys) if k[:2] == "m/"}
    assert await store.range("m/") == Listing(wanted, at + len(keys))


async def test_a_range_may_be_long(store: Store) -> None:
    for first in range(0, 1100, 100):
        writes = [Put(f"long/{n:04}", b"") for n in range(first, first + 100)]
        await store.transact({}, writes)
    assert list((await store.range("long/")).entries) == [f"long/{n:04}" for n in range(1100)]


async def test_a_watch_sees_what_was_and_what_comes(store: Store) -> None:
    at = await begun(store)
    await store.compare_and_set("w/a", None, b"1")
    await store.compare_and_set("x", None, b"1")

    async def later() -> None:
        await asyncio.sleep(0.05)
        await store.transact({}, [Put("w/a", b"2"), Put("w/b", b"2"), Put("y", b"2")])
        await store.transact({}, [Delete("w/a")])

    _, seen = await asyncio.gather(later(), changes(store, "w/", at, 4))
    assert seen == [
        Change("w/a", b"1", at + 1),
        Change("w/a", b"2", at + 3),
        Change("w/b", b"2", at + 3),
        Change("w/a", None, at + 4),
    ]
    assert await changes(store, "w/", at + 3, 1) == [Change("w/a", None, at + 4)]


async def test_what_a_transaction_changed_comes_together(store: Store) -> None:
    at = await begun(store)
    keys = [f"w/{n:02}" for n in range(30)]
    await store.transact({}, [Put(key, b"") for key in keys])
    async with asyncio.timeout(10), aclosing(store.watch("w/", at)) as watch:
        batch = await anext(watch)
    assert batch == [Change(key, b"", at + 1) for key in keys]


async def test_a_watch_from_what_is_forgotten_says_so(kind: Kind) -> None:
    at = await begun(kind.store)
    for n in range(10):
        await kind.store.transact({}, [Put("w/a", bytes([n]))])
    await kind.forget(at + 9)
    with pytest.raises(Compacted):
        await changes(kind.store, "w/", at + 2, 1)
    listing = await kind.store.range("w/")
    assert listing.entries == {"w/a": Stored(b"\x09", at + 10)}
    await kind.store.transact({}, [Delete("w/a")])
    assert await changes(kind.store, "w/", listing.revision, 1) == [
        Change("w/a", None, listing.revision + 1)
    ]


async def test_a_lease_that_is_revoked_takes_its_keys_along(store: Store) -> None:
    lease = await store.grant(60)
    at = await begun(store)
    assert await store.compare_and_set("l/a", None, b"1", lease) == Stored(b"1", at + 1)
    assert await store.transact({}, [Put("l/b", b"1", lease), Put("l/c", b"1")]) == at + 2
    await store.keep(lease)
    await store.revoke(lease)
    assert list((await store.range("l/")).entries) == ["l/c"]
    gone = await changes(store, "l/", at + 2, 2)
    assert {(change.key, change.value) for change in gone} == {("l/a", None), ("l/b", None)}
    await store.revoke(lease)
    with pytest.raises(LeaseLost):
        await store.keep(lease)
    with pytest.raises(LeaseLost):
        await store.compare_and_set("l/a", None, b"2", lease)
    assert await store.get("l/a") is None


async def test_a_key_written_without_its_lease_stays(store: Store) -> None:
    lease = await store.grant(60)
    await store.transact({}, [Put("l/a", b"1", lease)])
    await store.transact({}, [Put("l/a", b"2")])
    await store.revoke(lease)
    stored = await store.get("l/a")
    assert stored is not None
    assert stored.value == b"2"


async def test_a_lease_ends_when_it_is_not_kept(store: Store) -> None:
    lost, kept = await store.grant(2), await store.grant(2)
    at = await begun(store)
    await store.transact({}, [Put("l/lost", b"", lost), Put("l/kept", b"", kept)])

    async def keep() -> None:
        while True:
            await store.keep(kept)
            await asyncio.sleep(0.5)

    keeping = asyncio.ensure_future(keep())
    seen = await changes(store, "l/", at + 1, 1)
    keeping.cancel()
    assert seen == [Change("l/lost", None, at + 2)]
    assert list((await store.range("l/")).entries) == ["l/kept"]
    with pytest.raises(LeaseLost):
        await store.keep(lost)


async def test_no_lease_but_one_that_was_granted(store: Store) -> None:
    with pytest.raises(LeaseLost):
        await store.keep(LeaseId(12345))
    with pytest.raises(LeaseLost):
        await store.transact({}, [Put("k", b"", LeaseId(12345))])


async def test_a_life_is_told_alike_to_everybody(store: Store) -> None:
    told = await asyncio.gather(*(store.life() for _ in range(5)))
    assert len(set(told)) == 1
    await store.compare_and_set("k", None, b"v")
    assert await store.life() == told[0] != ""


async def test_the_secret_is_made_once(kind: Kind) -> None:
    made = await asyncio.gather(*(cluster_secret(kind.store) for _ in range(5)))
    assert [len(secret) for secret in set(made)] == [32]


async def test_a_store_says_what_it_is(kind: Kind) -> None:
    name, _, release = (await kind.store.about()).partition(" ")
    assert name in ("SQLite", "etcd")
    assert release.replace(".", "").isdigit()
