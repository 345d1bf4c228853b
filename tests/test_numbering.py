"""Numbers of assignments: they change with the engines, and never fall."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.state.numbering import KEY, Numbering
from coordinator.state.store import Delete, Put, Store, StoreUnavailable, cluster_secret
from coordinator.state.stores.sqlite import SqliteStore
from lineside.ids import EngineId, GroupId, NodeId


def engine(name: str, stride: int = 4) -> Engine:
    id = EngineId(name)
    return Engine(id, f"http://{name}", name, GroupId("g"), (), NodeId("n"), stride=stride)


A, B = engine("a"), engine("b")
CANNOT_OPEN = "SQLite: unable to open database file: its folder is not there, or cannot be written"


@dataclass
class Coordinator:
    """As much of one as assigns engines."""

    store: Store
    cluster: Cluster = field(default_factory=Cluster)

    def __post_init__(self) -> None:
        self.numbering = Numbering(self.store, self.cluster)

    async def assign(self, *engines: Engine) -> int:
        self.cluster.assign(engines)
        await self.numbering.follow()
        assert not self.numbering.is_due
        return self.numbering.number


async def test_a_number_changes_with_the_engines_alone() -> None:
    store = SqliteStore(":memory:")
    coordinator = Coordinator(store)
    first = await coordinator.assign(A, B)
    assert await coordinator.assign(B, A) == first
    assert await coordinator.assign(replace(A, group=GroupId("h")), B) == first
    second = await coordinator.assign(A)
    third = await coordinator.assign(replace(A, stride=8))
    fourth = await coordinator.assign(A, B)
    assert first < second < third < fourth
    assert await store.revision() == fourth
    await store.close()


async def test_a_coarser_stride_is_a_change() -> None:
    store = SqliteStore(":memory:")
    coordinator = Coordinator(store)
    first = await coordinator.assign(A)
    coordinator.cluster.coarsen(GroupId("g"), 2)
    assert coordinator.numbering.is_due
    assert await coordinator.numbering.follow()
    assert coordinator.numbering.number > first
    assert not await coordinator.numbering.follow()
    await store.close()


async def test_numbers_survive_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    store = SqliteStore(path)
    await cluster_secret(store)
    before = await Coordinator(store).assign(A, B)
    await store.close()
    store = SqliteStore(path)
    assert await Coordinator(store).assign(A, B) == before
    assert await Coordinator(store).assign(A) > before
    await store.close()


async def test_coordinators_that_share_a_store_never_go_back(tmp_path: Path) -> None:
    stores = [SqliteStore(str(tmp_path / "store")) for _ in range(3)]
    coordinators = [Coordinator(store) for store in stores]
    engines = [engine(str(number)) for number in range(8)]
    told: list[list[int]] = [[] for _ in coordinators]

    async def follow(which: int) -> None:
        for end in range(1, 9):
            told[which].append(await coordinators[which].assign(*engines[which:end]))

    await asyncio.gather(*(follow(which) for which in range(3)))
    assert all(numbers == sorted(numbers) for numbers in told)
    assert await coordinators[0].assign(A) > max(max(numbers) for numbers in told)
    for store in stores:
        await store.close()


async def test_while_the_store_is_away_the_last_number_serves(tmp_path: Path) -> None:
    folder = tmp_path / "not there"
    store = SqliteStore(str(folder / "store"))
    coordinator = Coordinator(store)
    coordinator.cluster.assign([A])
    assert await coordinator.numbering.follow()  # agents have to hear of the engines
    assert coordinator.numbering.number == 0
    assert coordinator.numbering.away == CANNOT_OPEN
    assert coordinator.numbering.is_due
    assert not await coordinator.numbering.follow()
    folder.mkdir()
    assert await coordinator.numbering.follow()
    assert (coordinator.numbering.number, coordinator.numbering.away) == (1, "")
    await store.close()


async def test_a_store_that_lost_its_data_lowers_no_number() -> None:
    store = SqliteStore(":memory:")
    one, other = Coordinator(store), Coordinator(store)
    await one.assign(A)
    before = await one.assign(A, B)
    assert await other.assign(A, B) == before
    await store.transact({}, [Delete(KEY)])
    starting = Coordinator(store)
    assert await starting.assign(A, B) == 1  # it knows of nothing that was before
    for coordinator in (one, other):
        coordinator.numbering.remake()
        assert coordinator.numbering.is_due
        await coordinator.numbering.follow()
    assert one.numbering.number == other.numbering.number == before + 1
    assert await starting.assign(A) > before + 1
    await store.close()


async def test_the_number_of_an_earlier_release_counts_on() -> None:
    store = SqliteStore(":memory:")
    for n in range(7):  # it kept the fingerprint alone, under the revision as a number
        await store.transact({}, [Put(KEY, bytes([0xFF, n]) * 16)])
    assert await Coordinator(store).assign(A) == 8
    await store.close()


async def test_a_store_says_why_it_is_away(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "no" / "store"))
    try:
        await store.get("k")
    except StoreUnavailable as error:
        assert str(error) == CANNOT_OPEN
    else:
        raise AssertionError("there is no such folder")
    await store.close()
