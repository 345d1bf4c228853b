"""Coordinators that share an etcd of three members: one is killed under load, then a member is.

Clients that try the next coordinator when one cannot be reached see no failure. `make test-state`.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests import etcds
from tests.captures import ids
from tests.flow.test_shared_etcd import MODEL, NAMES, PREFIX, Cluster, cluster
from tests.waiting import until

pytestmark = [pytest.mark.flow, pytest.mark.state, etcds.needs_etcd]

PER_S = 200
CLIENTS = 32


class Load:
    """Requests at a steady rate, each to the next coordinator that can be reached."""

    def __init__(self, there: Cluster) -> None:
        self._there = there
        self._numbers = itertools.count()
        self.outcomes: dict[object, int] = {}
        self.moved = 0
        self.longest_s = 0.0
        self._due = time.monotonic()

    async def client(self) -> None:
        """Send requests for ever, as one of many."""
        while True:
            number = next(self._numbers)
            self._due = max(self._due + 1 / PER_S, time.monotonic() - 1)
            await asyncio.sleep(self._due - time.monotonic())
            began = time.monotonic()
            outcome = await self._sent(number)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def _sent(self, number: int) -> object:
        body = {"model": MODEL, "prompt": [*PREFIX, *ids(number, 5)], "max_tokens": 1}
        error: object = None
        for again in range(len(NAMES)):
            name = NAMES[(number + again) % len(NAMES)]
            url = f"http://{self._there.http[name]}/v1/completions"
            try:
                async with self._there.session.post(url, json=body) as answer:
                    await answer.read()
                    return answer.status
            except aiohttp.ClientError as failed:
                error = type(failed).__name__
                self.moved += 1
        return error


@asynccontextmanager
async def under_load(there: Cluster) -> AsyncIterator[Load]:
    load = Load(there)
    clients = [asyncio.ensure_future(load.client()) for _ in range(CLIENTS)]
    try:
        yield load
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def test_clients_that_try_again_see_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcds.members(tmp_path, 3) as members:
        store = f"etcd:{','.join(member.url for member in members)}"
        async with cluster(tmp_path, store) as there:

            async def warm(name: str) -> bool:
                try:
                    return await there.overlap(name) == len(PREFIX)
                except aiohttp.ClientError:
                    return False

            async def known(count: int) -> bool:
                return await there.members("one") == (count, [count])

            await until(lambda: known(3))
            async with under_load(there) as load:
                for name in NAMES:
                    await until(lambda name=name: warm(name))  # type: ignore[misc]
                await asyncio.sleep(2)

                await there.processes["two"].kill()
                gone_s = await until(lambda: known(2), 20)  # its lease has 10 s
                assert await warm("one")
                began = time.monotonic()
                await there.processes["two"].start()
                started_s = time.monotonic() - began
                warm_s = await until(lambda: warm("two"))
                await until(lambda: known(3))

                for member in members:
                    member.kill()
                    await asyncio.sleep(3)
                    degraded = [await there.degraded(name) for name in NAMES]
                    assert degraded == [set()] * 3, "two members of three are a store"
                    await asyncio.to_thread(member.start)
                    await asyncio.sleep(2)
                assert await known(3)
            with capsys.disabled():
                print(
                    f"\n{load.outcomes}, {load.moved} tried elsewhere, longest"
                    f" {load.longest_s:.2f} s; the dead one was forgotten after {gone_s:.1f} s,"
                    f" up after {started_s:.1f} s and warm {warm_s:.2f} s later"
                )
            assert set(load.outcomes) == {200}
            assert load.moved > 0
            assert gone_s < 12
            assert warm_s < 5

            async def idle() -> bool:
                engines = [await there.ask(name, "/debug/engines") for name in NAMES]
                return [engine["inflight"] for (engine,) in engines] == [0, 0, 0]

            await until(idle)  # nothing is left of what was cut off
