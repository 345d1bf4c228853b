"""What may happen to a numbered message before subscribers get it: lost, doubled, late, overtaken.

Without a fault a message goes straight through. Knows no sockets: `send` is given.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from lineside.clock import Clock
from simulate.faults import DelayBatches, DropBatches, DuplicateBatches, Faults, ReorderBatches

Frames = list[bytes]


class Outlet:
    """One rank's way out. `run` must live for delayed messages to leave."""

    def __init__(
        self, send: Callable[[Frames], None], faults: Faults, clock: Clock, rank: int
    ) -> None:
        self._send = send
        self._faults = faults
        self._clock = clock
        self._rank = rank
        self._overtaken: Frames | None = None
        # Bounded by the delay times the rate of steps.
        self._late: deque[tuple[float, Frames]] = deque()
        self._arrived = asyncio.Event()

    def put(self, frames: Frames) -> None:
        """Send a message, or what a fault makes of it."""
        faults, rank = self._faults, self._rank
        if faults.strike(DropBatches, rank):
            return
        if self._overtaken is None and faults.strike(ReorderBatches, rank):
            self._overtaken = frames
            return
        self._pass(frames)
        if faults.strike(DuplicateBatches, rank):
            self._pass(frames)
        if self._overtaken is not None:
            self._pass(self._overtaken)
            self._overtaken = None

    def _pass(self, frames: Frames) -> None:
        """Send now, or behind those that wait."""
        delay = self._faults.strike(DelayBatches, self._rank)
        if delay is None and not self._late:
            self._send(frames)
            return
        due = self._clock.monotonic() + (delay.delay_s if delay else 0.0)
        self._late.append((due, frames))
        self._arrived.set()

    async def run(self) -> None:
        """Send delayed messages when they are due, until cancelled."""
        while True:
            while self._late:
                due, frames = self._late[0]
                wait = due - self._clock.monotonic()
                if wait > 0:
                    await self._clock.sleep(wait)
                else:
                    self._late.popleft()
                    self._send(frames)
            self._arrived.clear()
            await self._arrived.wait()

    def discard(self) -> None:
        """Forget what has not left."""
        self._late.clear()
        self._overtaken = None
