"""Clients that write, lease and watch while etcd's members die: at the end the store is the model.

Connections are cut and history is compacted meanwhile. Nothing is left of what ended: no lease,
key, task, thread, socket or descriptor, and no memory. `make test-state`; `CHURN_S` for how long.
"""

import asyncio
import ctypes
import gc
import json
import os
import random
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from coordinator.state.following import Following
from coordinator.state.store import Compacted, Delete, Put, Store, Stored, StoreUnavailable, Write
from coordinator.state.stores import etcd_calls
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from coordinator.state.tenure import Tenure
from lineside.clock import SystemClock
from tests import etcds
from tests.etcds import Member
from tests.proxies import Proxy, proxy
from tests.tries import LOST, REFUSED, Tries
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_sound_etcd]

CHURN_S = float(os.environ.get("CHURN_S", "60"))
PAUSE_S = 0.1
"""Between two writes of a client, at most; on average half of it."""

CLIENTS = 6
TTL_S = 3
GROWTH_BYTES = 24 * 2**20
"""Of this process, from a fifth of the time on. A message that is kept each time is far more."""


@dataclass
class Scene:
    """What is at work, and what it counted."""

    members: Sequence[Member]
    proxies: Sequence[Proxy]
    tries: Tries
    end: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by


async def write(scene: Scene, store: Store, me: int, model: dict[str, Stored]) -> None:
    """Write and delete keys of our own, each as we know it.

    A try of a write whose answer was lost may be carried out late. Then the next write of that key
    finds it other than expected, which is what expectations are for.
    """
    rng = random.Random(me)
    while not scene.is_over:
        keys = sorted({f"w/{me}/{rng.randrange(20)}" for _ in range(rng.randint(1, 4))})
        value = scene.tries.next_value(me)
        writes: list[Write] = [
            Delete(key) if key in model and rng.random() < 0.3 else Put(key, value) for key in keys
        ]
        expected = {key: model[key].revision if key in model else None for key in keys}
        made = scene.tries.begin(me, writes)
        try:
            revision = await store.transact(expected, writes)
        except StoreUnavailable:
            scene.tries.end(made, LOST)
            await look(store, me, model)
            continue
        scene.tries.end(made, REFUSED if revision is None else revision)
        if revision is None:
            await look(store, me, model)
            continue
        for each in writes:
            model.pop(each.key, None)
            if isinstance(each, Put):
                model[each.key] = Stored(each.value, revision)
        await asyncio.sleep(rng.random() * PAUSE_S)


async def look(store: Store, me: int, model: dict[str, Stored]) -> None:
    """Bring a model in line with the store."""
    while True:
        try:
            entries = (await store.range(f"w/{me}/")).entries
        except StoreUnavailable:
            continue
        model.clear()
        model.update(entries)
        return


async def live_briefly(scene: Scene, store: Store) -> None:
    """Be a member again and again, sometimes without a farewell."""
    rng = random.Random(99)
    while not scene.is_over:
        tenure = Tenure(store, SystemClock(), TTL_S)
        tenure.hold(f"m/{scene.counts.get('brief lives', 0)}", b"")
        running = asyncio.create_task(tenure.run())
        await asyncio.sleep(rng.random())
        if rng.random() < 0.5:
            await tenure.end()
        await ended([running])
        scene.count("brief lives")


async def kill(scene: Scene) -> None:
    """Kill one member after the other, at times two at once: then there is no store meanwhile.

    Half of these absences outlast what a call tries for.
    """
    rng = random.Random(7)
    while not scene.is_over:
        await asyncio.sleep(1.5 + 2 * rng.random())
        dying = rng.sample(scene.members, 2 if rng.random() < 0.2 else 1)
        for member in dying:
            member.kill()
        is_long = len(dying) == 2 and rng.random() < 0.5
        await asyncio.sleep(etcd_calls.LIMIT_S + 1 if is_long else rng.random())
        for member in dying:
            await asyncio.to_thread(member.start)
        scene.count("members killed", len(dying))


async def disconnect(scene: Scene, store: Store) -> None:
    """Cut connections, at times after a silence in which answers are lost.

    At times etcd forgets what was told into the silence: a watch has missed it.
    """
    rng = random.Random(8)
    while not scene.is_over:
        await asyncio.sleep(0.5 + rng.random())
        dumb = rng.sample(scene.proxies, rng.choice([0, 1, len(scene.proxies)]))
        for between in dumb:
            between.mute = True
        await asyncio.sleep(0.3 * rng.random())
        if len(dumb) > 1:
            await compact(scene, store)
        for between in scene.proxies:
            if between.mute or rng.random() < 0.3:
                between.mute = False
                between.cut()
        scene.count("disconnects")


async def compact(scene: Scene, store: Store) -> None:
    """Have etcd forget its history."""
    for member in scene.members:
        if member.is_running:
            with suppress(StoreUnavailable, etcds.Away):
                await etcds.compact(member, await store.revision())
                scene.count("compactions")
                return


async def follow(scene: Scene, store: Store, seen: dict[str, bytes]) -> None:
    """Make a copy from watches, and hold each change against what was tried."""
    while True:
        try:
            listing = await store.range("w/")
            seen.clear()
            seen.update({key: stored.value for key, stored in listing.entries.items()})
            scene.tries.listed(listing.revision)
            async with aclosing(store.watch("w/", listing.revision)) as watch:
                async for changes in watch:
                    scene.tries.heard(changes)
                    for change in changes:
                        seen.pop(change.key, None)
                        if change.value is not None:
                            seen[change.key] = change.value
        except Compacted:
            scene.count("watches that missed changes")
        except StoreUnavailable:
            pass


async def ended(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel tasks and let go of them: what they raised holds on to their calls."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def values_of(following: Following) -> dict[str, bytes]:
    return {key: stored.value for key, stored in following.entries.items()}


def held_by(member: Member) -> dict[str, bytes]:
    """Return what one member has on its own disk, whatever the others say."""
    words = ("get", "--prefix", "/lineside/w/", "--consistency=s", "-w", "json")
    said = json.loads(etcds.etcdctl(member, *words))
    return {
        b64decode(each["key"]).decode().removeprefix("/lineside/"): b64decode(each["value"])
        for each in said.get("kvs", [])
    }


def taken() -> dict[str, int]:
    """Return what this process has of what may leak."""
    gc.collect()
    me = psutil.Process()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": me.num_threads(),
        "descriptors": me.num_fds(),
        "sockets": len(me.net_connections()),
    }


async def taken_warm(members: Sequence[Member]) -> dict[str, int]:
    """Return the same, once gRPC and the pool of threads have all that they ever take."""
    store = etcds.store_of(*members)
    await store.range("")
    await store.close()
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.05) for _ in range(40)))
    return taken()


def rss() -> int:
    """Return what this process holds of memory, without what was freed and not given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


async def settled_rss(scene: Scene) -> int:
    """Return the memory after a fifth of the time: by then everything happened once."""
    await asyncio.sleep((scene.end - time.monotonic()) / 5)
    return rss()


async def test_after_churn_the_store_is_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcds.members(tmp_path, 3, etcd=etcds.sound_binary()) as members:
        before = await taken_warm(members)
        async with AsyncExitStack() as stack:
            proxies = [await stack.enter_async_context(proxy(each.url)) for each in members]
            tries = Tries(tmp_path / "tries.log")
            scene = Scene(members, proxies, tries, time.monotonic() + CHURN_S)
            direct = [etcds.store_of(*members) for _ in range(CLIENTS // 2)]
            cut = [EtcdStore(Access([each.url for each in proxies])) for _ in direct]
            grown = await churned(scene, [*direct, *cut])
            for store in (*direct, *cut):
                await store.close()
        # gRPC closes a connection once the last call on it was collected.
        left = taken()
        while left != before and time.monotonic() < scene.end + 60:
            await asyncio.sleep(0.2)
            left = taken()
        with capsys.disabled():
            print(f"\n{CHURN_S:.0f} s: {scene.counts}\n{dict(tries.outcomes)}")
            print(f"RSS grew by {grown / 2**20:.1f} MiB; {before} before, {left} after")
        assert tries.unexplained == []
        assert left == before
        assert grown < GROWTH_BYTES


async def churned(scene: Scene, stores: Sequence[EtcdStore]) -> int:
    """Churn, and compare all that is known at its end; return how much memory grew."""
    models: list[dict[str, Stored]] = [{} for _ in stores]
    following, seen = Following(stores[-1], "w/", SystemClock()), dict[str, bytes]()
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(following.run()),
            tasks.create_task(follow(scene, stores[-2], seen)),
        ]
        settling = tasks.create_task(settled_rss(scene))
        async with asyncio.TaskGroup() as churning:
            for n, store in enumerate(stores):
                churning.create_task(write(scene, store, n, models[n]))
            churning.create_task(live_briefly(scene, stores[2]))
            churning.create_task(kill(scene))
            churning.create_task(disconnect(scene, stores[0]))
        await compared(scene, stores, models, following, seen)
        await nothing_leased(scene)
        await ended(beside)
    return rss() - settling.result()


async def compared(
    scene: Scene,
    stores: Sequence[EtcdStore],
    models: Sequence[dict[str, Stored]],
    following: Following,
    seen: Mapping[str, bytes],
) -> None:
    """Hold against the model what each member has, what the store says, and what watches told."""
    await asyncio.sleep(etcds.LATE_S)  # a try whose answer was lost may be carried out until then
    for n, store in enumerate(stores):
        await look(store, n, models[n])
    model = {key: stored.value for each in models for key, stored in each.items()}
    held = {member.name: held_by(member) for member in scene.members}
    assert held == dict.fromkeys(held, model), f"members of one etcd differ: see {scene.tries.file}"
    assert {k: s.value for k, s in (await stores[0].range("w/")).entries.items()} == model
    with suppress(AssertionError):  # the comparison says more
        await until(lambda: values_of(following) == model == seen)
    assert values_of(following) == model, f"at revision {following.revision}"
    assert seen == model
    await until(lambda: not scene.tries.missing)
    scene.count("copies listed anew", following.listings - 1)


async def nothing_leased(scene: Scene) -> None:
    """Wait until no lease and no key of one is left; a new leader lets all of them run anew."""
    until_ = time.monotonic() + 6 * TTL_S
    while True:
        leases = etcds.etcdctl(scene.members[0], "lease", "list").split()[1:]
        keys = etcds.etcdctl(scene.members[0], "get", "--prefix", "--keys-only", "/lineside/m/")
        if leases[-1:] == ["leases"] and not keys.strip():
            return
        assert time.monotonic() < until_, f"left: {leases}, {keys}"
        await asyncio.sleep(0.2)
