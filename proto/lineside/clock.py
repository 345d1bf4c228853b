"""Time as an argument. Tests supply a clock of their own."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What code that waits or measures may know of time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back."""
        ...

    def unix(self) -> float:
        """Return Unix seconds, for people and records only; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def heard_within(word: asyncio.Event, limit_s: float, clock: Clock) -> None:
    """Return when a word is heard, or the time is over. It stays set; no task is left behind."""
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(word.wait(), name="a word"),
            tasks.create_task(clock.sleep(limit_s), name="its limit"),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
