"""Time that moves when a test says so."""

import asyncio


class ManualClock:
    """A clock that moves when a test says so; sleepers wake in the order of their time."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self.tick = 0.0
        """What a look at the clock takes."""
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    def unix(self) -> float:
        return 1_700_000_000 + self.now

    async def sleep(self, seconds: float) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waker))
        await waker

    async def advance(self, seconds: float) -> None:
        """Move on, and let whoever was due run until all wait again."""
        end = self.now + seconds
        await settle()
        while due := sorted(self._due(end), key=lambda sleeper: sleeper[0]):
            self.now, waker = due[0]
            self._sleepers = [s for s in self._sleepers if s[1] is not waker and not s[1].done()]
            waker.set_result(None)
            await settle()
        self.now = end

    def _due(self, end: float) -> list[tuple[float, asyncio.Future[None]]]:
        return [s for s in self._sleepers if s[0] <= end and not s[1].done()]


class RushingClock:
    """A clock on which nobody waits: a sleep is over at once, and its time has passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def settle() -> None:
    """Let every task run until it waits for something from outside."""
    for _ in range(20):
        await asyncio.sleep(0)
