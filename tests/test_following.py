"""A copy of a prefix is right again, whatever its watch did not tell."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from coordinator.state import following
from coordinator.state.following import Following
from coordinator.state.store import Change, Put
from tests.manual_clock import ManualClock
from tests.resting import Resting


class Silent(Resting):
    """A store whose watches look well and tell nothing."""

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Sequence[Change], None]:
        await asyncio.Event().wait()
        yield ()


async def test_what_a_silent_watch_does_not_tell_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ANEW_S", 0.05)
    clock, heard = ManualClock(), list[int]()
    store = Silent(clock)
    copy = Following(store, "k/", clock, lambda: heard.append(len(copy.entries)))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(copy.run())
        await store.rest()
        await store.transact({}, [Put("k/1", b"1"), Put("other", b"1")])
        async with asyncio.timeout(5):
            while not copy.entries:
                await clock.advance(following.RETRY_S)
        running.cancel()
    assert (set(copy.entries), heard) == ({"k/1"}, [0, 1])
    await store.close()
