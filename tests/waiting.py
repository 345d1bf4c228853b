"""Waiting for what others bring about: another task, another process. Neither can set an event."""

import asyncio
import inspect
import time
from collections.abc import Callable

LIMIT_S = 15.0
"""Far more than anything takes; a test that is about how long gives a limit of its own."""

FIRST_S, LONGEST_S = 0.005, 0.05
"""Between two looks: what comes at once is seen at once, and what is asked is not kept busy."""


async def until(holds: Callable[[], object], limit_s: float = LIMIT_S) -> float:
    """Look until it holds; return how long that took. What it returns may be awaited, too."""
    began, pause_s = time.monotonic(), FIRST_S
    async with asyncio.timeout(limit_s):
        while not (await found if inspect.isawaitable(found := holds()) else found):
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_S)
    return time.monotonic() - began
