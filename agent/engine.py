"""One engine, read: its events into its holdings, and what its counters say of them.

A worker's own task applies the events; the node's flush and the scrape of the engine's server call
in between. All run on one loop, and none leaves the worker half-way across an await.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from agent.assignment import AssignedEngine
from agent.checkpoint import Captured, Key, Saved, capture
from agent.digest_log import DigestLog
from agent.holdings import Holdings, Mark
from agent.kv_events import Batch
from agent.sequence import Gap, Item, Place, Restarted, Whole
from agent.silence import Silence
from agent.subscriber import CannotSubscribe
from lineside import logs
from lineside.clock import Clock
from lineside.hashing import UNIT
from lineside.ids import Generation
from lineside.signals import Events, Load, Status

SLICE_S = 0.002
SLICE_EVENTS = 64
"""A burst of events gives the others on the loop a turn after this long, looked at this often."""

QUIET_S = 60.0
"""An engine that has been trusted for so long has no request left that announces what it hits."""

RETRY_S = 5.0
"""After an endpoint could not be opened: most often another process still holds it."""


class Source(Protocol):
    """An engine's event publisher; closing the iterator closes its sockets."""

    undecodable: int
    """Messages of which nothing could be read."""

    @property
    def replays(self) -> int:
        """Replays asked for."""
        ...

    @property
    def place(self) -> Place | None:
        """The last batch that was passed on."""
        ...

    def check(self) -> None:
        """Ask the engine soon whether it is where it seems to be."""
        ...

    def read_anew(self) -> None:
        """Read again soon from the oldest batch that the engine still has."""
        ...

    def items(self) -> AsyncGenerator[Item, None]:
        """Yield batches in order, and where they are not. Raises `CannotSubscribe`."""
        ...


Subscribe: TypeAlias = Callable[[AssignedEngine, Place | None], Source]
"""The place: where the holdings at hand are from; `None`: nothing is held yet."""

Remembered: TypeAlias = Callable[[Key], Awaitable[Saved | str]]
"""Return what a checkpoint says, or why there is none to use."""

_log = logs.get("agent.engine")


@dataclass(slots=True)
class Counters:
    """Of one engine, since the agent's start; they outlive its workers."""

    batches: int = 0
    gaps: int = 0
    undecodable: int = 0
    unmatched_removals: int = 0
    replays: int = 0
    restarts: int = 0


async def nothing_remembered(key: Key) -> Saved | str:
    """Stand in for checkpoints where none are kept."""
    return "checkpoints are off"


class Worker:
    """What the agent knows of one engine under one secret; another secret, another worker.

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
        self.key = Key(engine.id, secret, engine.stride)
        self._holdings = Holdings(engine.id, secret, engine.stride)
        self._silence = Silence()
        self._counters = counters
        self._clock = clock
        self._changed = changed
        self._source: Source | None = None
        self._unreachable = ""  # why there is no source
        self._counted = (0, 0)  # of the source: messages not read, replays
        self._place: Place | None = None  # of the holdings; `None`: nothing, or amid a batch
        self._amid = False  # a batch is being applied
        self._captures: list[asyncio.Future[None]] = []
        self._gap_end = 0
        self._process_start_s: float | None = None
        self._heard = False
        self._begun = False  # has been where the engine is
        self._emptied = False
        self._turn_at = self._distrusted_at = clock.monotonic()

    @property
    def log(self) -> DigestLog:
        """What the streams read."""
        return self._holdings.log

    async def run(self, subscribe: Subscribe, remembered: Remembered = nothing_remembered) -> None:
        """Read until cancelled; return at once where the engine publishes nothing."""
        if self.engine.events and self.engine.replay:  # else nothing could confirm it
            self._restore(await remembered(self.key))
        while self.engine.events:
            self._source = subscribe(self.engine, self._place)
            try:
                await self._read(self._source)
            except CannotSubscribe as cannot:
                self._unreachable = str(cannot)
                self._changed()
            finally:
                self._count()
                self._source, self._counted = None, (0, 0)
            await self._clock.sleep(RETRY_S)
            self._unreachable = ""

    def reads(self, engine: AssignedEngine) -> bool:
        """Tell whether an assignment is of the same publisher, so that `follow` will do."""
        here = self.engine
        return here == replace(
            engine,
            base_url=here.base_url,
            version=here.version,
            stride=here.stride,
            pod=here.pod,
        )

    def follow(self, engine: AssignedEngine) -> None:
        """Take another assignment of the same publisher; nothing has to be read anew."""
        before, self.engine = self.engine, engine
        if engine.stride != before.stride:
            self.key = replace(self.key, stride=engine.stride)
            self._holdings.restride(engine.stride)
            _log.info("stride changed", engine=engine.id, stride=engine.stride)
            self._changed()

    def _restore(self, saved: Saved | str) -> None:
        """Go on from a checkpoint."""
        if isinstance(saved, str):
            _log.info("begins without a checkpoint", engine=self.engine.id, reason=saved)
            return
        saved.residency.restride(self.key.stride)  # may have changed while the file was read
        self._holdings = Holdings(
            self.key.engine, self.key.secret, self.key.stride, saved.residency, saved.lost
        )
        self._place, self._process_start_s = saved.place, saved.process_start_s
        self._heard = True

    async def _read(self, source: Source) -> None:
        async with aclosing(source.items()) as items:
            async for item in items:
                if isinstance(item, Batch):
                    await self._apply(item, source)
                else:
                    self._mark(item)

    async def _apply(self, batch: Batch, source: Source) -> None:
        self._heard, self._amid = True, True
        self._silence.heard(self._clock.monotonic())
        self._counters.batches += 1
        self._counters.undecodable += batch.undecodable
        residency = self._holdings.residency
        unmatched = residency.unmatched_removals
        for start in range(0, len(batch.events), SLICE_EVENTS):
            for event in batch.events[start : start + SLICE_EVENTS]:
                self._holdings.apply(event)
            await self._give_turn()
        self._counters.unmatched_removals += residency.unmatched_removals - unmatched
        self._place, self._amid = source.place, False
        for waiting in self._captures:
            if not waiting.done():
                waiting.set_result(None)
        self._changed()

    async def _give_turn(self) -> None:
        """Let others run now and then: a socket with messages at hand is read without waiting."""
        if self._clock.monotonic() - self._turn_at >= SLICE_S:
            await asyncio.sleep(0)
            self._turn_at = self._clock.monotonic()

    def _mark(self, item: Mark) -> None:
        """Note what becomes of the reading between batches."""
        generation = self.log.generation
        self._holdings.mark(item)
        if isinstance(item, Whole) and not self._begun:
            self._begun = True
            self._holdings.quiet()
        match item:
            case Gap():
                if item.next > self._gap_end:  # what is lost of a gap was counted with it
                    self._counters.gaps += 1
                    self._gap_end = item.next
                reason = item.reason
            case Restarted():
                self._gap_end = 0
                self._counters.restarts += 1
                reason = "the engine restarted"
            case _:
                reason = "what a checkpoint says was confirmed"
        if self.log.generation != generation:
            _log.info("a new generation", engine=self.engine.id, reason=reason)
        self._changed()

    def _count(self) -> None:
        if self._source:
            undecodable, replays = self._counted
            self._counted = (self._source.undecodable, self._source.replays)
            self._counters.undecodable += self._source.undecodable - undecodable
            self._counters.replays += self._source.replays - replays

    def flush(self) -> bool:
        """Put what changed since the last flush into the log. Return whether anything did."""
        return self._holdings.flush()

    @property
    def changes(self) -> int:
        """Keys that changed since the last flush."""
        return self._holdings.residency.changes

    def healed(self, generation: Generation) -> None:
        """Take a coordinator's word that what is said of the engine has proved right."""
        if self._holdings.healed(generation):
            _log.info("holdings vouched for", engine=self.engine.id)
            self._changed()

    def doubted(self, generation: Generation, reason: str, *, overstated: bool) -> None:
        """Take a coordinator's word that what is said of the engine has proved wrong.

        What is in use is announced anew on demand. What the engine's replay buffer still has is a
        beginning, unless it is that which claims too much.
        """
        if generation != self.log.generation:
            return
        self._doubt(f"requests contradicted its events: {reason}")
        if self._source and not overstated:
            self._source.read_anew()

    def _doubt(self, reason: str) -> None:
        self._holdings.doubt(reason)
        _log.info("a new generation", engine=self.engine.id, reason=reason)
        self._changed()

    async def captured(self) -> Captured | None:
        """Return a copy of the holdings after a whole batch; `None`: nothing worth keeping."""
        if self._amid:
            waiting = asyncio.get_running_loop().create_future()
            self._captures.append(waiting)
            try:
                await waiting
            finally:
                self._captures.remove(waiting)
        of = self._holdings
        if self._place is None or of.unproven:
            return None
        return capture(Saved(of.residency, self._place, of.lost, self._process_start_s))

    def saw(self, load: Load, at: float) -> None:
        """Hold the engine's counters against its events."""
        block_size = self._holdings.residency.block_size or load.block_size or UNIT
        if self.engine.events:
            was_silent = bool(self._silence.tokens)
            self._silence.saw(load, block_size, at)
            if self._silence.tokens and not was_silent:
                # It got no number, so no replay brings it: what was removed is not known either.
                self._doubt(_silent(self._silence.tokens))
        if load.emptied and not self._emptied:  # the clear event comes once it is awake
            self._holdings.empty()
            _log.info("a new generation", engine=self.engine.id, reason="the engine sleeps")
            self._changed()
        self._emptied = bool(load.emptied)
        if load.process_start_s is not None:
            before, self._process_start_s = self._process_start_s, load.process_start_s
            if self._source and before not in (None, load.process_start_s):
                self._source.check()  # the end of its connection may have gone unseen

        self._look_for_quiet(at)

    def _look_for_quiet(self, at: float) -> None:
        """Count copies again, once nobody has had reason to ask for announcements for long."""
        if self._holdings.lost:
            self._distrusted_at = at
        elif at - self._distrusted_at >= QUIET_S:
            self._holdings.quiet()

    @property
    def silent_tokens(self) -> int:
        """Uncached prompt tokens that were computed and not announced; 0: no alarm."""
        return self._silence.tokens

    def status(self) -> Status:
        """Say how far the digest can be vouched for."""
        self._count()
        events, reason = self._verdict()
        return Status(
            events=events,
            reason=reason,
            block_size=self._holdings.residency.block_size,
            blocks=self._holdings.residency.blocks,
            batches=self._counters.batches,
            gaps=self._counters.gaps,
            unmatched_removals=self._counters.unmatched_removals,
            undecodable=self._counters.undecodable,
            announce=bool(self._holdings.lost),
            replays=self._counters.replays,
            restarts=self._counters.restarts,
        )

    def _verdict(self) -> tuple[Events, str]:
        if not self.engine.events:
            return Events.NONE, "the engine publishes no KV events"
        if self._unreachable:
            return Events.UNUSABLE, self._unreachable
        if self._holdings.residency.unusable:
            return Events.UNUSABLE, self._holdings.residency.unusable
        behind = self._holdings.behind
        if self._holdings.unproven or (behind and not self._begun):
            return Events.CONNECTING, behind or "the engine is yet to confirm what was remembered"
        if doubt := behind or self._holdings.lost:
            return Events.UNSURE, doubt
        if tokens := self._silence.tokens:
            return Events.UNSURE, _silent(tokens)
        if not (self._heard or self._begun):
            return Events.CONNECTING, "no word from the engine's event publisher yet"
        return Events.LIVE, ""


def _silent(tokens: int) -> str:
    return f"no events, though {tokens} uncached prompt tokens were computed"
