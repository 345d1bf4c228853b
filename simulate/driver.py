"""One engine in real time: runs the core's steps, publishes events, hands out tokens.

The only writer of the core while a server runs. Handlers open an exchange, read from it, and close
it; all on one event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple

from lineside.clock import Clock
from simulate.core import Core, Emission, Outcome, Request, Step
from simulate.faults import Faults, Freeze, Slow
from simulate.metrics import RankMetrics
from simulate.publisher import NoPublisher, Publisher

MAX_LAG_S = 0.02
"""How far steps may run late before the lost time is given up rather than caught up."""


FROZEN_POLL_S = 0.01
"""How often a frozen engine looks whether it still is."""


class Token(NamedTuple):
    """One generated token of an exchange's request number `choice`."""

    choice: int
    token: int
    done: bool


class Exchange:
    """The requests of one HTTP request, and what they have generated but nobody read yet.

    A context manager: on the way out, what is not done is aborted.
    """

    def __init__(self, driver: "Driver", requests: Sequence[Request], now: float) -> None:
        self.requests = requests
        self.arrived = now
        self._driver = driver
        self._unfinished = len(requests)
        # Bounded by the answers' lengths: a client that reads slowly gets several tokens at once.
        self._unread: list[Token] = []
        self._changed = asyncio.Event()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.close(self)

    @property
    def over(self) -> bool:
        """Whether no more tokens will come than those that came."""
        return not self._unfinished

    def put(self, token: Token) -> None:
        """Add a token; the driver alone calls this."""
        self._unread.append(token)
        self._unfinished -= token.done
        self._changed.set()

    async def tokens(self) -> AsyncIterator[list[Token]]:
        """Yield what came since the last time, until every request is done."""
        while self._unfinished or self._unread:
            await self._changed.wait()
            self._changed.clear()
            unread, self._unread = self._unread, []
            yield unread

    async def all_tokens(self) -> list[list[int]]:
        """Wait for the end; return each request's tokens."""
        answers: list[list[int]] = [[] for _ in self.requests]
        async for tokens in self.tokens():
            for choice, token, _ in tokens:
                answers[choice].append(token)
        return answers


class _Flow:
    """Where a request's tokens go, and when it last got one."""

    __slots__ = ("exchange", "index", "last")

    def __init__(self, exchange: Exchange, index: int) -> None:
        self.exchange = exchange
        self.index = index
        self.last = exchange.arrived


class Driver:
    """Runs the core of one rank. `run` is to live as long as the server."""

    def __init__(
        self,
        *,
        core: Core,
        publisher: Publisher | NoPublisher,
        metrics: RankMetrics,
        faults: Faults,
        clock: Clock,
        rank: int = 0,
    ) -> None:
        self.core = core
        self.publisher = publisher
        self.rank = rank
        self._metrics = metrics
        self._faults = faults
        self._clock = clock
        self._awake = asyncio.Event()
        self._awake.set()
        self._flows: dict[Request, _Flow] = {}
        self._work = asyncio.Event()
        self.open_exchanges = 0

    def open(self, requests: Sequence[Request]) -> Exchange:
        """Queue requests, in order."""
        exchange = Exchange(self, requests, self._clock.monotonic())
        for index, request in enumerate(requests):
            self._flows[request] = _Flow(exchange, index)
            self.core.add(request)
        self.open_exchanges += 1
        self._work.set()
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Abort what an exchange has not finished."""
        self.open_exchanges -= 1
        for request in exchange.requests:
            self._flows.pop(request, None)
            self.core.abort(request)

    @property
    def sleeping(self) -> bool:
        return not self._awake.is_set()

    def sleep(self, level: int) -> None:
        """Stop stepping; from level 1 on the cache is gone, which the next step's events tell.

        Running and new requests wait until `wake`.
        """
        if level:
            self.core.reset(preempt_running=True)
        self._awake.clear()
        self._metrics.sleeps_at(level)

    def wake(self) -> None:
        """Step again."""
        self._awake.set()
        self._metrics.sleeps_at(None)

    def restart(self) -> None:
        """Be as after a restart, without one: empty, and numbering events from 0."""
        self.core.restart()
        self.publisher.restart()

    async def run(self) -> None:
        """Step while there is work; sleep while there is none."""
        due = self._clock.monotonic()
        while True:
            await self._may_step()
            step = self.core.begin()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due = self._clock.monotonic()
                continue
            due = await self._wait(step, due)
            self._show(self.core.finish(step))

    async def _may_step(self) -> None:
        frozen = self._faults.active(Freeze, self.rank)
        if frozen:
            self._faults.count(frozen)
        while self._faults.active(Freeze, self.rank):
            await self._clock.sleep(FROZEN_POLL_S)
        await self._awake.wait()

    async def _wait(self, step: Step, due: float) -> float:
        """Wait until a step that began at `due` is over; return that time.

        Steps follow each other from the time they were due, so that timers' rounding and this
        process's own work do not add up to a slower engine.
        """
        now = self._clock.monotonic()
        slow = self._faults.strike(Slow, self.rank)
        due = max(due, now - MAX_LAG_S) + step.duration_s * (slow.factor if slow else 1.0)
        await self._clock.sleep(max(0.0, due - now))
        return due

    def _show(self, outcome: Outcome) -> None:
        if outcome.events:
            self.publisher.publish(self._clock.unix(), outcome.events)
        self._metrics.step_tokens.observe(outcome.computed_tokens)
        now = self._clock.monotonic()
        for emission in outcome.emissions:
            self._deliver(emission, now)

    def _deliver(self, emission: Emission, now: float) -> None:
        request = emission.request
        flow = self._flows[request]
        histogram = self._metrics.first_token if emission.first else self._metrics.inter_token
        histogram.observe(now - flow.last)
        flow.last = now
        flow.exchange.put(Token(flow.index, emission.token, emission.done))
        if emission.done:
            del self._flows[request]
            self._metrics.end_to_end.observe(now - flow.exchange.arrived)
            self._metrics.finished(request.finish_reason)
