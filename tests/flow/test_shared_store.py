"""Three coordinators that follow one etcd: what was missed is healed, what is applied is in force.

Processes. What each says of its health is held against what was done to it, and the store is
checked after it. `make test-state`.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.state import applied
from coordinator.state.applied import KEPT, Overtaken
from coordinator.state.members import AGENTS
from coordinator.state.store import PROBE, Delete, Put, Write
from coordinator.state.stores.etcd import EtcdStore
from coordinator.state.stores.etcd_calls import Access
from coordinator.state.tenure import TTL_S
from coordinator.state.tidying import CHORE, EVERY_S
from tests import etcds
from tests.flow.test_shared_etcd import NAMES, PREFIX, Cluster, cluster
from tests.proxies import Proxy, proxy
from tests.test_applied import policy
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_etcd]

GHOST = f"{AGENTS}ghost/coordinator-gone"


@asynccontextmanager
async def joined(folder: Path, store: str) -> AsyncIterator[Cluster]:
    """Run a cluster until all its members know each other."""
    async with cluster(folder, store) as three:

        async def all_know_all() -> bool:
            return all([await three.members(name) == (3, [3]) for name in NAMES])

        await until(all_know_all)
        yield three


class Meeting(EtcdStore):
    """A store whose users all have looked before the first of them writes."""

    def __init__(self, member: etcds.Member, looked: asyncio.Barrier) -> None:
        super().__init__(Access([member.url]))
        self._looked = looked

    async def transact(
        self, expected: Mapping[str, int | None], writes: Sequence[Write]
    ) -> int | None:
        await self._looked.wait()
        return await super().transact(expected, writes)


async def lineside(*words: str) -> tuple[int, str, str]:
    """Run the command as a process of its own."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await made.communicate()
    assert made.returncode is not None
    return made.returncode, out.decode(), err.decode()


async def checked(store: str) -> bool:
    """Return whether `lineside store check` finds nothing amiss."""
    return (await lineside("store", "check", "--store", store))[0] == 0


async def haunted(three: Cluster, name: str) -> bool:
    """Return whether a coordinator knows of the agent that is none."""
    said = await three.ask(name, "/debug/members")
    return any(each["node"] == "ghost" for each in said["agents"])


@pytest.mark.parametrize("missed", ["told", "cut off", "compacted"])
async def test_what_is_deleted_is_gone_from_every_coordinator(tmp_path: Path, missed: str) -> None:
    with etcds.etcd(tmp_path) as member:
        async with proxy(member.url) as between, joined(tmp_path, f"etcd:{between.url}") as three:

            async def all_haunted(so: bool = True) -> bool:
                return all([await haunted(three, name) is so for name in NAMES])

            direct = etcds.store_of(member)
            await direct.transact({}, [Put(GHOST, b"{}")])
            await until(all_haunted)
            if missed == "told":
                await direct.transact({}, [Delete(GHOST)])
            else:
                await miss(direct, member, between, compacted=missed == "compacted")
            took_s = await until(lambda: all_haunted(False), 5)
            print(f"\n{missed}: gone everywhere after {took_s:.2f} s")
            assert await checked(f"etcd:{member.url}")
            await direct.close()


async def miss(direct: EtcdStore, member: etcds.Member, between: Proxy, compacted: bool) -> None:
    """Delete the key while no watch hears of it."""
    between.mute = True
    between.cut()
    await direct.transact({}, [Delete(GHOST)])
    for n in range(20):
        await direct.transact({}, [Put("other", b"%d" % n)])
    if compacted:
        await etcds.compact(member, await direct.revision())
    between.mute = False
    between.cut()


async def test_what_is_applied_is_in_force_everywhere_within_two_seconds(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        store = f"etcd:{member.url}"
        async with joined(tmp_path, store) as three:

            async def in_force(name: str) -> bool:
                said = [await three.ask(each, "/debug/policies") for each in NAMES]
                return all(
                    [p["name"] for p in each["policies"]] == [f"default/{name}"] for each in said
                )

            times, file = {}, tmp_path / "p.yaml"
            for name in "ab":
                file.write_text(policy(name)[1])
                assert (await lineside("apply", "-f", str(file), "--store", store))[0] == 0
                times[f"apply {name}"] = await until(lambda name=name: in_force(name), 2)  # type: ignore[misc]
            code, out, _ = await lineside("rollout", "undo", "--store", store)
            assert (code, out) == (0, "set 3 is in force, as set 1 was\n")
            times["undo"] = await until(lambda: in_force("a"), 2)
            code, out, _ = await lineside("rollout", "history", "--store", store, "--json")
            assert [(each["set"], each["in_force"]) for each in json.loads(out)] == [
                *((3, True), (2, False), (1, False))
            ]
            print("\nin force everywhere after", {key: round(s, 2) for key, s in times.items()})

            member.kill()
            file.write_text(policy("never")[1])
            began = time.monotonic()
            code, _, err = await lineside("apply", "-f", str(file), "--store", store)
            assert (code, "the store is away, and nothing was changed: etcd: " in err) == (3, True)
            print(f"an apply to a store that is away ends after {time.monotonic() - began:.1f} s")
            assert await in_force("a")
            await asyncio.to_thread(member.start)
            direct = etcds.store_of(member)
            sets = await applied.history(direct)
            assert (sets.current, sorted(sets.by_number)) == (3, [1, 2, 3])
            assert await in_force("a")
            assert await checked(store)

            looked = asyncio.Barrier(3)
            stores = [Meeting(member, looked) for _ in range(3)]
            ends = await asyncio.gather(
                *(
                    applied.apply(each, [policy(name)], f"{name}@here", 1.0)
                    for name, each in zip("cde", stores, strict=True)
                ),
                return_exceptions=True,
            )
            (won,) = [name for name, end in zip("cde", ends, strict=True) if isinstance(end, tuple)]
            told = [str(end) for end in ends if isinstance(end, Overtaken)]
            assert told == [f"set 4 by {won}@here was applied meanwhile, and stays in force"] * 2
            await until(lambda: in_force(won), 2)
            for each in (direct, *stores):
                await each.close()


async def test_a_leader_that_is_killed_is_followed_and_its_chore_goes_on(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        async with joined(tmp_path, f"etcd:{member.url}") as three:
            direct = etcds.store_of(member)

            async def leader(name: str) -> str | None:
                found: str | None = (await three.ask(name, "/debug/members"))["leaders"][CHORE]
                return found

            ids = {(await three.ask(name, "/debug/members"))["me"]: name for name in NAMES}
            await until(lambda: leader("one"))
            first = ids[str(await leader("one"))]
            (other, third) = (name for name in NAMES if name != first)
            await three.processes[first].kill()
            for n in range(1, KEPT + 4):  # as an import may leave them
                await direct.transact({}, [Put(f"{applied.SETS}{n:08}", b"of another release")])
            await direct.transact({}, [Put(PROBE + "left", b"")])

            async def followed() -> bool:
                return await leader(other) in {key for key, name in ids.items() if name != first}

            took_s = await until(followed, TTL_S + 3)
            assert await leader(other) == await leader(third)
            print(f"\nanother leads {took_s:.1f} s after the death of one with {TTL_S} s")

            async def tidied() -> bool:
                entries = (await direct.range("")).entries
                sets = [key for key in entries if key.startswith(applied.SETS)]
                return len(sets) == KEPT and PROBE + "left" not in entries

            await until(tidied, 2 * EVERY_S + 5)
            await direct.close()


async def test_health_says_what_was_done_to_it(tmp_path: Path) -> None:
    with etcds.etcd(tmp_path) as member:
        store = f"etcd:{member.url}"
        async with joined(tmp_path, store) as three:

            async def codes(name: str, *wanted: str) -> bool:
                return await three.degraded(name) == set(wanted)

            async def warm(name: str) -> bool:
                return await three.overlap(name) == len(PREFIX)

            async def heard() -> bool:
                return (await three.members("one"))[1] == []

            assert await three.completed("one") == (200, "")
            for name in NAMES:
                await until(lambda name=name: warm(name))  # type: ignore[misc]
                await until(lambda name=name: codes(name))  # type: ignore[misc]
                assert await three.ready(name) == (True, [])

            # An agent that is missing: what it said counts for a while, then load alone.
            await three.processes["agent"].kill()
            await until(lambda: codes("one", "cache_stale", "no_agent"), 5)
            assert await warm("one")
            await until(lambda: codes("one", "cache_lost", "no_agent"), 12)
            assert await three.ready("one") == (True, [])
            assert await three.completed("one") == (200, "")
            await until(heard)
            assert await checked(store)

            # A coordinator that starts then knows no cache: it waits for it, then serves without.
            await three.processes["two"].kill()
            await three.processes["two"].start()
            (engine,) = (each["id"] for each in await three.ask("one", "/debug/engines"))
            yet = "no agent has reported on the engine yet: that of node `local` is to"
            why = f"engine {engine}: connecting: {yet}"

            async def awaits_it() -> bool:
                return await three.ready("two") == (False, [why])

            await until(awaits_it, 5)
            assert await three.completed("two") == (200, "")
            cold = ("cache_connecting", "no_agent")
            await until(lambda: codes("two", *cold), 12)
            assert await three.ready("two") == (True, [])
            assert await checked(store)

            # The store is away, too; nothing of it stops anything.
            member.kill()
            await until(lambda: codes("two", "store_away", *cold))
            assert await three.ready("two") == (True, [])
            assert await three.completed("two") == (200, "")
            assert not await checked(store)
            await asyncio.to_thread(member.start)
            await three.processes["agent"].start()
            for name in NAMES:
                await until(lambda name=name: warm(name))  # type: ignore[misc]
                await until(lambda name=name: codes(name))  # type: ignore[misc]

            # Without engines there is nothing to serve with: readiness says so.
            await three.processes["engine"].kill()

            async def unready() -> bool:
                return await three.ready("two") == (False, ["no engine can be reached"])

            await until(unready)
            assert await checked(store)
