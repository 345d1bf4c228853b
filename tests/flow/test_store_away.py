"""Coordinators that start while etcd is away: what is served, what they say, how they join.

Processes. Policies are in a folder, or in the store, where nobody can read them then.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.main import main
from coordinator.state.store import SECRET_KEY
from tests import etcds
from tests.flow.test_shared_etcd import NAMES, PREFIX, Cluster, cluster
from tests.test_applied import policy
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_etcd]


@asynccontextmanager
async def settled(
    folder: Path, member: etcds.Member, resources: Path | None
) -> AsyncIterator[Cluster]:
    """Run a cluster until every coordinator knows the engine's cache."""
    settings = {} if resources is None else {"resources": str(resources)}
    async with cluster(folder, f"etcd:{member.url}", **settings) as three:

        async def warm() -> bool:
            return all([await three.overlap(name) == len(PREFIX) for name in NAMES])

        assert await three.completed("one") == (200, "")
        await until(warm)
        yield three


async def well(three: Cluster, name: str) -> None:
    """Wait until a coordinator serves around nothing."""

    async def nothing() -> bool:
        return await three.degraded(name) == set()

    await until(nothing, 5)


async def checked(member: etcds.Member) -> int:
    return await asyncio.to_thread(main, ["store", "check", "--store", f"etcd:{member.url}"])


async def test_one_with_policies_of_its_own_serves_by_the_agents_word(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "kept.yaml").write_text(policy("kept")[1])
    with etcds.etcd(tmp_path) as member:
        async with settled(tmp_path, member, folder) as three:

            async def warm() -> bool:
                return await three.overlap("two") == len(PREFIX)

            async def joined() -> bool:
                return all([await three.members(name) == (3, [3]) for name in NAMES])

            member.kill()
            await three.processes["two"].kill()
            await three.processes["two"].start()
            await until(warm, 10)
            assert await three.ready("two") == (True, [])
            assert await three.completed("two") == (200, "")
            assert await three.degraded("two") == {"store_away"}
            assert await checked(member) == 3
            await asyncio.to_thread(member.start)
            await until(joined)
            await well(three, "two")
            assert await warm()
            assert await checked(member) == 0


async def test_one_that_cannot_know_its_policies_refuses_until_it_can(tmp_path: Path) -> None:
    closed = "the policies in force are in the store, which is away"
    with etcds.etcd(tmp_path) as member:
        async with settled(tmp_path, member, None) as three:

            async def open_again() -> bool:
                return await three.completed("two") == (200, "")

            member.kill()
            await three.processes["two"].kill()
            await three.processes["two"].start()
            is_ready, reasons = await three.ready("two")
            assert (is_ready, closed in reasons) == (False, True)
            assert await three.completed("two") == (503, closed)
            assert await three.completed("one") == (200, "")
            await asyncio.to_thread(member.start)
            await until(open_again)

            async def ready() -> bool:
                return await three.ready("two") == (True, [])

            await until(ready)


async def test_one_that_starts_on_an_etcd_that_was_wiped_makes_no_other_secret(
    tmp_path: Path,
) -> None:
    with etcds.etcd(tmp_path) as member:
        async with settled(tmp_path, member, None) as three:

            async def joined() -> bool:
                return all([await three.members(name) == (3, [3]) for name in NAMES])

            store = etcds.store_of(member)
            secret = await store.get(SECRET_KEY)
            await three.processes["two"].kill()
            member.kill()
            member.wipe()
            await asyncio.gather(asyncio.to_thread(member.start), three.processes["two"].start())
            await until(joined)
            kept = await store.get(SECRET_KEY)
            assert (kept and kept.value) == (secret and secret.value)
            for name in NAMES:
                await well(three, name)
            await store.close()


async def test_without_any_word_of_the_secret_all_goes_by_load_until_the_store_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "kept.yaml").write_text(policy("kept")[1])
    with etcds.etcd(tmp_path) as member:
        async with settled(tmp_path, member, folder) as three:

            async def warm() -> bool:
                return all([await three.overlap(name) == len(PREFIX) for name in NAMES])

            member.kill()
            for name in (*NAMES, "agent"):
                await three.processes[name].kill()
            for name in (*NAMES, "agent"):
                await three.processes[name].start()
            for name in NAMES:
                assert await three.completed(name) == (200, "")
                assert {"store_away", "secret_unknown"} <= await three.degraded(name)
                assert not await three.overlap(name)
            await asyncio.to_thread(member.start)
            await until(warm)
            for name in NAMES:
                await well(three, name)
