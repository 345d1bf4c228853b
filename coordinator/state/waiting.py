"""Waiting for a word, and no longer than some time. Leaves no task behind, however it ends."""

import asyncio

from lineside.clock import Clock


async def heard_within(word: asyncio.Event, limit_s: float, clock: Clock) -> None:
    """Return when a word is heard, or the time is over. It stays set."""
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(word.wait(), name="a word"),
            tasks.create_task(clock.sleep(limit_s), name="its limit"),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
