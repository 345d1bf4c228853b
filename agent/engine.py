"""One engine, read: its events into residency and digest log, and how far both can be trusted.

A worker's own task applies the events; the node's flush and the scrape of the engine's server call
in between. All run on one loop, and none leaves the worker half-way across an await.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from agent.assignment import AssignedEngine
from agent.digest_log import DigestLog
from agent.kv_events import AllBlocksCleared, Batch
from agent.residency import Residency
from agent.signals import Events, Load, Status
from agent.silence import Silence
from agent.subscriber import CannotSubscribe, Gap, Item, Restarted
from lineside import logs
from lineside.clock import Clock
from lineside.hashing import UNIT

SLICE_S = 0.002
SLICE_EVENTS = 64
"""A burst of events gives the others on the loop a turn after this long, looked at this often."""

RETRY_S = 5.0
"""After an endpoint could not be opened: most often another process still holds it."""


class Source(Protocol):
    """An engine's event publisher; closing the iterator closes its sockets."""

    undecodable: int

    def items(self) -> AsyncGenerator[Item, None]:
        """Yield batches in order, and where they are not. Raises `CannotSubscribe`."""
        ...


Subscribe: TypeAlias = Callable[[AssignedEngine], Source]

_log = logs.get("agent.engine")


@dataclass(slots=True)
class Counters:
    """Of one engine, since the agent's start; they outlive its workers."""

    batches: int = 0
    gaps: int = 0
    undecodable: int = 0
    unmatched_removals: int = 0


class Worker:
    """What the agent knows of one engine under one key scheme; another scheme, another worker.

    `changed` is called whenever there may be something to flush or another status.
    """

    def __init__(
        self,
        engine: AssignedEngine,
        secret: bytes,
        counters: Counters,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.log = DigestLog(engine.id, engine.stride)
        self._residency = Residency(secret, engine.stride)
        self._silence = Silence()
        self._counters = counters
        self._clock = clock
        self._changed = changed
        self._source: Source | None = None
        self._unreachable = ""  # why there is no source
        self._undecodable = 0  # of the source, as far as counted
        self._gap_end = 0
        self._lost = ""  # why something may be missing
        self._heard = False
        self._asleep = False
        self._turn_at = clock.monotonic()

    async def run(self, subscribe: Subscribe) -> None:
        """Read until cancelled; return at once where the engine publishes nothing."""
        while self.engine.events:
            self._source = subscribe(self.engine)
            try:
                await self._read(self._source)
            except CannotSubscribe as cannot:
                self._unreachable = str(cannot)
                self._changed()
            finally:
                self._count_undecodable()
                self._source, self._undecodable = None, 0
            await self._clock.sleep(RETRY_S)
            self._unreachable = ""

    async def _read(self, source: Source) -> None:
        async with aclosing(source.items()) as items:
            async for item in items:
                match item:
                    case Batch():
                        await self._apply(item)
                    case Gap():
                        self._gap(item)
                    case Restarted():
                        self._gap_end = 0
                        self._start_anew("the engine restarted", lost="")
                    case _:
                        assert_never(item)

    async def _apply(self, batch: Batch) -> None:
        self._heard = True
        self._silence.heard(self._clock.monotonic())
        self._counters.batches += 1
        self._counters.undecodable += batch.undecodable
        unmatched = self._residency.unmatched_removals
        for start in range(0, len(batch.events), SLICE_EVENTS):
            for event in batch.events[start : start + SLICE_EVENTS]:
                self._residency.apply(event)
                if isinstance(event, AllBlocksCleared):
                    self._lost = ""  # nothing is held, and that is known
            await self._give_turn()
        self._counters.unmatched_removals += self._residency.unmatched_removals - unmatched
        self._changed()

    async def _give_turn(self) -> None:
        """Let others run now and then: a socket with messages at hand is read without waiting."""
        if self._clock.monotonic() - self._turn_at >= SLICE_S:
            await asyncio.sleep(0)
            self._turn_at = self._clock.monotonic()

    def _gap(self, gap: Gap) -> None:
        if gap.next > self._gap_end:  # what is lost of a gap was counted with it
            self._counters.gaps += 1
            self._gap_end = gap.next
        if gap.lost:
            self._start_anew(gap.reason, lost=f"events were lost: {gap.reason}")

    def _count_undecodable(self) -> None:
        if self._source:
            self._counters.undecodable += self._source.undecodable - self._undecodable
            self._undecodable = self._source.undecodable

    def _start_anew(self, why: str, lost: str) -> None:
        """Void what was said of the engine: a new generation, empty."""
        self._residency.clear()
        self._lost = lost
        self.log.restart(self._residency.media, {})
        _log.info("holdings emptied", engine=self.engine.id, reason=why)
        self._changed()

    @property
    def changes(self) -> int:
        """Keys that changed since the last flush."""
        return self._residency.changes

    def flush(self) -> bool:
        """Put what changed since the last flush into the log. Return whether anything did."""
        changes = self._residency.take_changes()
        if self._speaks_otherwise():
            of = self._residency
            self.log.restart(of.media, of.held(), of.stride, hit_points=of.hit_points)
            return True
        self.log.record(changes)
        return self.log.flush()

    def _speaks_otherwise(self) -> bool:
        """Tell whether what is held cannot be said within the log's generation."""
        now, said = self._residency, self.log
        return (now.media, now.stride, now.hit_points) != (said.media, said.stride, said.hit_points)

    def saw(self, load: Load, at: float) -> None:
        """Hold the engine's counters against its events."""
        block_size = self._residency.block_size or load.block_size or UNIT
        if self.engine.events:
            self._silence.saw(load, block_size, at)
        if load.asleep and not self._asleep:  # its clear event comes with the step after it wakes
            self._start_anew("the engine sleeps", lost="")
        self._asleep = bool(load.asleep)

    @property
    def silent_tokens(self) -> int:
        """Uncached prompt tokens that were computed and not announced; 0: no alarm."""
        return self._silence.tokens

    def status(self) -> Status:
        """Say how far the digest can be vouched for."""
        self._count_undecodable()
        events, reason = self._verdict()
        return Status(
            events=events,
            reason=reason,
            block_size=self._residency.block_size,
            blocks=self._residency.blocks,
            batches=self._counters.batches,
            gaps=self._counters.gaps,
            unmatched_removals=self._counters.unmatched_removals,
            undecodable=self._counters.undecodable,
        )

    def _verdict(self) -> tuple[Events, str]:
        if not self.engine.events:
            return Events.NONE, "the engine publishes no events"
        if self._unreachable:
            return Events.UNUSABLE, self._unreachable
        if self._residency.unusable:
            return Events.UNUSABLE, self._residency.unusable
        if self._lost:
            return Events.UNSURE, self._lost
        if tokens := self._silence.tokens:
            return Events.UNSURE, f"no events, though {tokens} uncached prompt tokens were computed"
        if not self._heard:
            return Events.CONNECTING, "no batch of events yet"
        return Events.LIVE, ""
