"""What our client makes of a real etcd that dies, comes back, forgets, or loses a member or all."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from coordinator.state.following import Following
from coordinator.state.leader import Leadership
from coordinator.state.pulse import Pulse
from coordinator.state.secret import Secret
from coordinator.state.store import (
    SECRET_KEY,
    Change,
    Compacted,
    Delete,
    Put,
    Store,
    Stored,
    StoreUnavailable,
)
from coordinator.state.stores import etcd_calls
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.tenure import Tenure
from lineside.clock import SystemClock
from tests import etcds
from tests.proxies import proxy
from tests.waiting import until

pytestmark = [pytest.mark.flow, etcds.needs_etcd]

TTL_S = 2


@asynccontextmanager
async def running(*parts: object) -> AsyncIterator[None]:
    """Run parts beside a test."""
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(part.run()) for part in parts]  # type: ignore[attr-defined]
        yield
        for task in made:
            task.cancel()


async def collect(store: Store, after: int, seen: list[Change]) -> None:
    async with aclosing(store.watch("w/", after)) as watch:
        async for changes in watch:
            seen.extend(changes)


async def test_a_watch_and_writes_outlive_a_kill(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        store, seen = etcds.store_of(member), list[Change]()
        after = (await store.range("w/")).revision
        watching = asyncio.ensure_future(collect(store, after, seen))
        wanted = []
        for n in range(60):
            if n in (20, 40):
                member.kill()
                starting = asyncio.ensure_future(asyncio.to_thread(member.start))
            written = await store.compare_and_set(f"w/{n}", None, b"%d" % n)
            assert written is not None, "it was ours, though the answer did not come"
            wanted.append(Change(f"w/{n}", b"%d" % n, written.revision))
            await asyncio.sleep(0)
        await starting
        await until(lambda: len(seen) >= len(wanted))
        assert seen == wanted
        watching.cancel()
        await store.close()


async def test_a_write_whose_answer_is_lost_is_ours_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_calls, "TRY_S", 0.3)
    with etcds.etcd(tmp_path) as member:
        async with proxy(member.url) as between:
            store = EtcdStore(etcd_calls.Access([between.url, member.url]))
            direct = etcds.store_of(member)
            revision: int | None = None
            for n in range(3):
                store._calls.at = 0
                await store.get("warm")
                between.mute = True
                written = await store.compare_and_set("k", revision, b"%d" % n)
                between.mute = False
                assert written is not None
                assert await direct.get("k") == written
                revision = written.revision
            between.mute, store._calls.at = True, 0
            assert await store.compare_and_set("k", None, b"2") is None
            await store.close()
            await direct.close()


async def test_changes_that_are_no_longer_kept_are_healed_by_listing(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        async with proxy(member.url) as between:
            store, direct = EtcdStore(etcd_calls.Access([between.url])), etcds.store_of(member)
            await direct.transact({}, [Put("w/stays", b"1"), Put("w/goes", b"1")])
            following = Following(store, "w/", SystemClock())
            async with running(following):
                await until(lambda: len(following.entries) == 2)
                between.mute = True
                between.cut()
                at = await direct.transact({}, [Put("w/comes", b"1")])
                await direct.transact({"w/comes": at}, [Put("w/stays", b"2")])
                gone = await direct.get("w/goes")
                assert gone is not None
                last = await direct.transact({}, [Delete("w/goes")])
                assert last is not None
                await direct.transact({}, [Put("other", b"")])
                await etcds.compact(member, last + 1)
                between.mute = False
                between.cut()
                took_s = await until(lambda: "w/goes" not in following.entries)
                assert took_s < 5
            assert following.entries == (await direct.range("w/")).entries
            assert following.listings == 2
            await store.close()
            await direct.close()


async def test_an_etcd_that_lost_its_data_is_noticed_and_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_calls, "LIMIT_S", 1.0)
    with etcds.etcd(tmp_path) as member:
        store, clock, remade = etcds.store_of(member), SystemClock(), list[int]()
        pulse = Pulse(store, Secret(b"s" * 32), clock, lambda: remade.append(1))
        tenure, following = Tenure(store, clock, TTL_S), Following(store, "m/", clock)
        for n in range(50):  # so that the new etcd's revisions begin far below
            await store.transact({}, [Put("n", b"%d" % n)])
        await pulse.look()
        tenure.hold("m/me", b"here")
        async with running(following, tenure):
            await until(lambda: "m/me" in following.entries)
            member.kill()
            member.wipe()
            with pytest.raises(StoreUnavailable, match="etcd: "):
                await store.get("n")
            await asyncio.to_thread(member.start)
            async with asyncio.timeout(10):
                while pulse.wipes == 0:  # the connection may take a second to be tried again
                    await pulse.look()
            assert (pulse.away, pulse.wipes, remade) == ("", 1, [1])
            stored = await store.get(SECRET_KEY)
            assert stored is not None
            assert stored.value == b"s" * 32
            await until(lambda: tenure.made == 2 and following.listings >= 2)
            await until(lambda: set(following.entries) == {"m/me"})
            assert await store.get("n") is None
        await store.close()


async def test_a_watch_of_an_etcd_that_lost_its_data_says_so(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        store = etcds.store_of(member)
        await store.transact({}, [Put("n", b"")])
        after = (await store.range("w/")).revision
        watching = asyncio.ensure_future(collect(store, after, []))
        await asyncio.sleep(0.2)
        member.kill()
        member.wipe()
        await asyncio.to_thread(member.start)
        with pytest.raises(Compacted, match="lost its data"):
            async with asyncio.timeout(10):
                await watching
        await store.close()


@pytest.mark.state
async def test_of_three_members_one_may_die(tmp_path: Path) -> None:
    with etcds.members(tmp_path, 3) as members:
        store, seen = etcds.store_of(*members), list[Change]()
        after = (await store.range("w/")).revision
        watching = asyncio.ensure_future(collect(store, after, seen))
        wanted, longest_s = list[Change](), 0.0
        for n in range(40):
            if n in (10, 25):
                for member in members:
                    if not member.is_running:
                        await asyncio.to_thread(member.start)
                members[store._calls.at].kill()
            began = time.monotonic()
            written = await store.compare_and_set(f"w/{n}", None, b"")
            longest_s = max(longest_s, time.monotonic() - began)
            assert written is not None
            wanted.append(Change(f"w/{n}", b"", written.revision))
        await until(lambda: len(seen) >= len(wanted))
        assert seen == wanted
        watching.cancel()
        print(f"\nlongest write while a member died: {longest_s:.2f} s")
        await store.close()


async def test_a_leader_that_dies_is_followed_within_its_lease(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        stores = [etcds.store_of(member) for _ in range(3)]
        clock = SystemClock()
        tenures = [Tenure(store, clock, TTL_S) for store in stores]
        standing = [
            Leadership(store, tenure, "chore", f"c{n}", clock)
            for n, (store, tenure) in enumerate(zip(stores, tenures, strict=True))
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [
                [tasks.create_task(part.run()) for part in pair]
                for pair in zip(tenures, standing, strict=True)
            ]
            await until(lambda: sum(each.leads for each in standing) == 1)
            first = next(n for n, each in enumerate(standing) if each.leads)
            done = [Put("done", b"1")]
            assert await standing[first].write({"done": None}, done) is not None
            fence = {standing[first].key: standing[first]._revision}
            for task in running[first]:
                task.cancel()
            others = [each for n, each in enumerate(standing) if n != first]
            took_s = await until(lambda: any(each.leads for each in others))
            assert took_s < TTL_S + 1.5  # etcd looks for ended leases twice a second
            assert not standing[first].leads
            assert sum(each.leads for each in others) == 1
            assert await stores[first].transact(fence, [Put("done", b"2")]) is None
            print(f"\nanother leads {took_s:.2f} s after the death of one with {TTL_S} s")
            for tasks_of_one in running:
                for task in tasks_of_one:
                    task.cancel()
        stored = await stores[0].get("done")
        assert isinstance(stored, Stored)
        assert stored.value == b"1"
        for store in stores:
            await store.close()


async def test_a_leader_that_stops_is_followed_at_once(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        store, clock = etcds.store_of(member), SystemClock()
        tenures = [Tenure(store, clock, 30) for _ in range(2)]
        standing = [Leadership(store, t, "chore", f"c{n}", clock) for n, t in enumerate(tenures)]
        async with running(*tenures, *standing):
            await until(lambda: any(each.leads for each in standing))
            first = next(n for n, each in enumerate(standing) if each.leads)
            ending = tenures[first]
            await ending.end()
            assert not standing[first].leads
            took_s = await until(lambda: any(each.leads for each in standing))
            assert took_s < 2
        await store.close()
