"""Clients that write, lease and watch while etcd's members die: at the end the store is the model.

Nothing is left of what ended: no key of a lease, no task, no socket. `make test-state`; `CHURN_S`.
"""

import asyncio
import gc
import os
import random
import time
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from coordinator.state.following import Following
from coordinator.state.store import Change, Delete, Put, Store, Stored, StoreUnavailable, Write
from coordinator.state.tenure import Tenure
from lineside.clock import SystemClock
from tests import etcds
from tests.etcds import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_etcd]

CHURN_S = float(os.environ.get("CHURN_S", "60"))
CLIENTS = 6
TTL_S = 3


async def churn(store: Store, me: int, model: dict[str, Stored], end: float) -> int:
    """Write and delete keys of our own, each as we know it; return how often we had to look again.

    A try of a write whose answer was lost may be carried out late. Then the next write of that key
    finds it other than expected, which is what expectations are for.
    """
    rng, looked = random.Random(me), 0
    while time.monotonic() < end:
        keys = {f"w/{me}/{rng.randrange(20)}" for _ in range(rng.randint(1, 4))}
        writes: list[Write] = [
            Put(key, rng.randbytes(8)) if rng.random() < 0.7 else Delete(key)
            for key in sorted(keys)
        ]
        expected = {key: model[key].revision if key in model else None for key in keys}
        try:
            revision = await store.transact(expected, writes)
        except StoreUnavailable:
            revision = None
        if revision is None:
            looked += 1
            await look(store, me, model)
            continue
        for write in writes:
            model.pop(write.key, None)
            if isinstance(write, Put):
                model[write.key] = Stored(write.value, revision)
        await asyncio.sleep(rng.random() * 0.01)
    return looked


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


async def own(store: Store, me: int) -> dict[str, Stored]:
    """Return what a client's keys are now."""
    return dict((await store.range(f"w/{me}/")).entries)


async def brief_lives(store: Store, end: float) -> int:
    """Be a member again and again, sometimes without a farewell."""
    rng, lives = random.Random(99), 0
    while time.monotonic() < end:
        tenure = Tenure(store, SystemClock(), TTL_S)
        tenure.hold(f"m/{lives}", b"")
        running = asyncio.ensure_future(tenure.run())
        await asyncio.sleep(rng.random())
        if rng.random() < 0.5:
            await tenure.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        lives += 1
    return lives


async def deaths(members: tuple[etcds.Member, ...], end: float) -> int:
    """Kill one member after the other, at times two at once: then there is no store meanwhile."""
    rng, count = random.Random(7), 0
    while time.monotonic() < end:
        await asyncio.sleep(1.5 + rng.random())
        dying = rng.sample(members, 2 if rng.random() < 0.2 else 1)
        for member in dying:
            member.kill()
        await asyncio.sleep(rng.random())
        for member in dying:
            await asyncio.to_thread(member.start)
        count += len(dying)
    return count


async def replay(store: Store, after: int, seen: dict[str, bytes], ends: list[int]) -> None:
    """Make a copy from the watch alone."""
    async with aclosing(store.watch("w/", after)) as watch:
        async for changes in watch:
            for change in changes:
                _take(seen, change)
            ends[0] = changes[-1].revision


async def ended(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel tasks and let go of them: what they raised holds on to their calls."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def _take(seen: dict[str, bytes], change: Change) -> None:
    if change.value is None:
        seen.pop(change.key, None)
    else:
        seen[change.key] = change.value


async def test_after_churn_the_store_is_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcds.members(tmp_path, 3) as members:
        stores = [etcds.store_of(*members) for _ in range(CLIENTS)]
        models: list[dict[str, Stored]] = [{} for _ in stores]
        tasks = len(asyncio.all_tasks())
        following, seen, ends = Following(stores[0], "w/", SystemClock()), dict[str, bytes](), [0]
        after = (await stores[0].range("w/")).revision
        beside = [
            asyncio.create_task(following.run()),
            asyncio.create_task(replay(stores[1], after, seen, ends)),
        ]
        end = time.monotonic() + CHURN_S
        *looked, lives, died = await asyncio.gather(
            *(churn(store, n, models[n], end) for n, store in enumerate(stores)),
            brief_lives(stores[2], end),
            deaths(members, end),
        )
        for n, store in enumerate(stores):
            looked[n] += models[n] != await own(store, n)  # a try that came last of all
            await look(store, n, models[n])
        model = {key: stored.value for each in models for key, stored in each.items()}
        there = await stores[0].range("")
        writes = there.revision - after
        found = {k: s.value for k, s in there.entries.items() if k.startswith("w/")}
        assert found == model
        assert sum(looked) < 0.05 * writes
        await until(lambda: {k: s.value for k, s in following.entries.items()} == model)
        await until(lambda: seen == model)
        left = True
        async with asyncio.timeout(4 * TTL_S):
            while left:
                left = bool((await stores[0].range("m/")).entries)
                await asyncio.sleep(0.2)
        await ended(beside)
        for store in stores:
            await store.close()
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        # gRPC closes a connection once the last call on it was collected.
        await until(lambda: gc.collect() >= 0 and not psutil.Process().net_connections())
        with capsys.disabled():
            print(
                f"\n{writes} revisions, {lives} brief lives, {died} members killed;"
                f" looked again {sum(looked)} times, listed {following.listings} times"
            )
