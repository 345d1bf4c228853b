"""Work on large bodies beside the event loop, on few threads: the loop gets its turns meanwhile.

One call that holds the interpreter (reading JSON, 1 to 4 ms a megabyte) holds it on a thread, too;
what is made of many steps gives way within 5 ms. Small work is never brought here.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coordinator.bodies import LARGE_BYTES

T = TypeVar("T")

AT_ONCE = 2
"""More would take turns with each other, and let the loop wait longer. What is too much waits: each
is a request that a client waits for, and has a body that is in memory anyway."""


class Heavy:
    """The threads."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._threads = ThreadPoolExecutor(at_once, "heavy")

    async def run(self, work: Callable[[], T], size: int, inline: int = LARGE_BYTES) -> T:
        """Return what `work` on so many bytes returns; up to `inline` of them it is done at once.

        If its caller is cancelled, what is done aside comes to its end unheard.
        """
        if size <= inline:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
