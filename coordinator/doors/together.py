"""Lets calls that come close together be worked on one right after another.

A decision that follows another finds its code and its data in the processor's caches. One that
follows the taking of a call and the sending of an answer, which need as much again, takes twice as
long, and so do they after it. Lives on one event loop; looks at no call.
"""

import asyncio

TURNS = 6
"""Turns of the loop in which nobody else has come: then whoever waits goes on. gRPC takes calls one
at a time, and needs four turns for each; a turn with nothing to do takes a few microseconds."""

MOST = 8
"""So many go on at once: a decision takes 0.3 ms, and all else on the loop waits meanwhile."""

MOST_BYTES = 2**17
"""Nor do more wait whose bodies have so many bytes in all: what those take grows with them."""


class Together:
    """Where calls wait for each other: for few turns, whatever comes."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []  # `MOST`, and what comes in the same turn
        self._bytes = 0
        self._quiet = 0

    async def gather(self, size: int) -> None:
        """Wait for others. `size`: of the caller's body."""
        loop = asyncio.get_running_loop()
        going_on = loop.create_future()
        self._waiting.append(going_on)
        self._bytes += size
        self._quiet = 0
        if len(self._waiting) == 1:
            loop.call_soon(self._look, loop)
        await going_on

    async def part(self) -> None:
        """Let the others, who go on in this turn, do what they do before anything is sent."""
        await asyncio.sleep(0)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._quiet < TURNS and len(self._waiting) < MOST and self._bytes < MOST_BYTES:
            self._quiet += 1
            loop.call_soon(self._look, loop)
            return
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for each in waiting:
            if not each.done():  # its caller was cancelled
                each.set_result(None)
