"""How far one engine's digest has been followed, and whether it can be trusted.

Written by the ingest task alone. Pure: time is an argument, an answer is a return value. The state
machine and the reason of every guard are docs/protocol.md:

    DOWN -> HELLO -> FILLING -> LIVE      a snapshot fills a fresh slot, is checked, then shown
            HELLO ------------> LIVE      deltas follow what was held when the stream came back

It never shows a half-filled snapshot, never writes a snapshot into a slot that is in use, and never
believes a stream that a newer one has replaced.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter

from coordinator.holdings.index import GroupIndex, Slot
from lineside.digest import MASK, Delta, Held, SnapshotChunk, checksum
from lineside.ids import BlockKey, EngineId, Generation

LEASE_S = 60.0
"""Slots of an engine whose stream was lost are kept this long, in the hope that it comes back."""


class Phase(Enum):
    """Where a feed is. DOWN: no stream. HELLO: asked, and nothing that counts was heard since."""

    DOWN = "down"
    HELLO = "hello"
    FILLING = "filling"
    LIVE = "live"


class Reason(Enum):
    """Why a snapshot is asked for (the wire's `Resync.reason`)."""

    GAP = "gap"
    GENERATION = "generation"
    CHECKSUM = "checksum"
    KEY = "key"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Stream:
    """One connection of one agent process. `life` is new at each start of the process."""

    life: str
    connection: int

    def replaces(self, other: "Stream") -> bool:
        """Return whether this stream may take over from a stream of the same node."""
        return self.life != other.life or self.connection > other.connection


@dataclass(frozen=True, slots=True)
class Position:
    """What is held of an engine, for the agent to continue from."""

    generation: Generation
    digest_seq: int


NOTHING = Position(Generation(""), 0)
"""Nothing is held that could be continued: the agent sends a snapshot."""


class Holding:
    """One snapshot and the deltas since: a slot for each medium, each with all faster ones.

    `count` and `checksum` are those of the keys that were put in, as the agent computes them.
    """

    def __init__(self, index: GroupIndex, first: SnapshotChunk) -> None:
        self.engine = first.engine
        self.generation = first.generation
        self.digest_seq = first.digest_seq
        self.hit_points = first.hit_points  # not closed under prefix
        self.stride = first.stride
        self.slots = tuple(index.open_slot() for _ in range(first.media))
        self.count = 0
        self.checksum = 0
        self.removed = 0
        """Keys that deltas took away so far."""
        self._index = index

    @property
    def position(self) -> Position:
        """What has been applied."""
        return Position(self.generation, self.digest_seq)

    def add(self, keys: Sequence[Held]) -> bool:
        """Add keys of the snapshot; return whether each was new and in a medium in use."""
        self.count += len(keys)
        self.checksum = (self.checksum + checksum(keys)) & MASK
        return self._fits(keys) and self._write(self._index.add, keys)

    def apply(self, delta: Delta) -> Reason | None:
        """Apply the next delta, or return what contradicts it; then the holding is void."""
        count = self.count + len(delta.added) - len(delta.removed)
        total = (self.checksum + checksum(delta.added) - checksum(delta.removed)) & MASK
        if (count, total) != (delta.count, delta.checksum):
            return Reason.CHECKSUM
        if not self._fits(delta.added) or not self._fits(delta.removed):
            return Reason.KEY
        if not self._write(self._index.remove, delta.removed):
            return Reason.KEY
        if not self._write(self._index.add, delta.added):
            return Reason.KEY
        self.digest_seq, self.count, self.checksum = delta.digest_seq, count, total
        self.removed += len(delta.removed)
        return None

    def _fits(self, keys: Sequence[Held]) -> bool:
        return max(map(_MEDIUM, keys), default=0) < len(self.slots)

    def _write(self, write: Callable[[Slot, list[BlockKey]], int], keys: Sequence[Held]) -> bool:
        """Write keys to their medium's slot and all slower ones; return whether all took effect."""
        slowest = len(self.slots) - 1
        for level, slot in enumerate(self.slots):
            chosen = [*map(_KEY, keys)] if level == slowest else _up_to(level, keys)
            if write(slot, chosen) != len(chosen):
                return False
        return True

    def show(self) -> None:
        """Let the holding be found."""
        for slot in self.slots:
            self._index.show(slot)

    def free(self) -> None:
        """Take the holding out of answers at once; its keys are swept later."""
        for slot in self.slots:
            self._index.free(slot)


_KEY, _MEDIUM = itemgetter(0), itemgetter(1)


def _up_to(level: int, keys: Sequence[Held]) -> list[BlockKey]:
    return [key for key, medium in keys if medium <= level]


class Feed:
    """One engine's digest. `index_for` gives the index of its group for a snapshot."""

    def __init__(self, engine: EngineId, index_for: Callable[[SnapshotChunk], GroupIndex]) -> None:
        self.engine = engine
        self.phase = Phase.DOWN
        self.visible: Holding | None = None
        self.diverged = False
        """What is visible was contradicted; it stays until a snapshot replaces it."""
        self.snapshots = 0
        self.deltas = 0
        self.dropped = 0
        self.resyncs: Counter[Reason] = Counter()
        self._index_for = index_for
        self._stream: Stream | None = None
        self._lost_at: float | None = None
        self._filling: Holding | None = None
        self._next_chunk = 0
        self._snapshot_asked = False  # until its first chunk comes, nothing else counts

    @property
    def current(self) -> bool:
        """Whether what is visible is what the agent had at the feed's generation and number."""
        return self.phase is Phase.LIVE and not self.diverged

    def connect(self, stream: Stream) -> Position:
        """Follow a new stream; return what to resume from."""
        self._drop_filling()
        self._stream = stream
        self._lost_at = None
        self.phase = Phase.HELLO
        if self.visible is None or self.diverged:
            self._snapshot_asked = True
            return NOTHING
        self._snapshot_asked = False
        return self.visible.position

    def disconnect(self, stream: Stream, now: float) -> None:
        """Note that a stream was lost: what is visible stays for `LEASE_S`."""
        if stream != self._stream:
            return
        self._drop_filling()
        self._stream = None
        self._lost_at = now
        self.phase = Phase.DOWN

    def expire(self, now: float) -> None:
        """Free what is visible when nobody has vouched for it during the lease."""
        if self._lost_at is not None and now - self._lost_at >= LEASE_S:
            self.clear()

    def clear(self) -> None:
        """Free everything."""
        self._drop_filling()
        if self.visible is not None:
            self.visible.free()
        self.visible = None
        self.diverged = False

    def apply(self, stream: Stream, message: SnapshotChunk | Delta) -> Reason | None:
        """Apply a message; return why a snapshot has to be asked for, if it has to."""
        if stream != self._stream:  # a late word of a stream that was replaced or lost
            self.dropped += 1
            return None
        if isinstance(message, SnapshotChunk):
            return self._on_chunk(message)
        return self._on_delta(message)

    def _on_chunk(self, chunk: SnapshotChunk) -> Reason | None:
        if chunk.chunk == 0:
            self._begin(chunk)
        elif self._snapshot_asked:  # the rest of a snapshot that was given up
            self.dropped += 1
            return None
        filling = self._filling
        if filling is None or not self._continues(filling, chunk):
            return self._resync(Reason.SNAPSHOT)
        self._next_chunk += 1
        if not filling.add(chunk.keys):
            return self._resync(Reason.KEY)
        if not chunk.last:
            return None
        if (filling.count, filling.checksum) != (chunk.count, chunk.checksum):
            return self._resync(Reason.CHECKSUM)
        self._swap(filling)
        return None

    def _begin(self, first: SnapshotChunk) -> None:
        """Fill a fresh slot, within a generation too: keys gone meanwhile are in no snapshot."""
        self._drop_filling()
        self._filling = Holding(self._index_for(first), first)
        self._next_chunk = 0
        self._snapshot_asked = False
        self.phase = Phase.FILLING

    def _continues(self, filling: Holding, chunk: SnapshotChunk) -> bool:
        expected = (filling.generation, filling.digest_seq, self._next_chunk)
        return (chunk.generation, chunk.digest_seq, chunk.chunk) == expected

    def _swap(self, filling: Holding) -> None:
        filling.show()
        if self.visible is not None:
            self.visible.free()
        self.visible, self._filling = filling, None
        self.diverged = False
        self.phase = Phase.LIVE
        self.snapshots += 1

    def _on_delta(self, delta: Delta) -> Reason | None:
        if self._snapshot_asked:
            self.dropped += 1
            return None
        if self._filling is not None or self.visible is None:  # no correct agent interleaves them
            return self._resync(Reason.SNAPSHOT)
        if delta.generation != self.visible.generation:
            return self._resync(Reason.GENERATION)
        if delta.digest_seq < self.visible.digest_seq:
            self.dropped += 1
            return None
        if delta.digest_seq == self.visible.digest_seq:
            return self._assured(self.visible, delta)
        if delta.digest_seq > self.visible.digest_seq + 1:
            return self._resync(Reason.GAP)
        if reason := self.visible.apply(delta):
            return self._resync(reason)
        self.phase = Phase.LIVE
        self.deltas += 1
        return None

    def _assured(self, visible: Holding, delta: Delta) -> Reason | None:
        """Take the agent's word that nothing happened since; it ends HELLO for an idle engine."""
        if (visible.count, visible.checksum) != (delta.count, delta.checksum):
            return self._resync(Reason.CHECKSUM)
        self.phase = Phase.LIVE
        return None

    def _resync(self, reason: Reason) -> Reason:
        """Ask for a snapshot. What is visible stays, and is marked; what was filling goes."""
        self._drop_filling()
        self._snapshot_asked = True
        self.diverged = self.visible is not None
        self.phase = Phase.HELLO
        self.resyncs[reason] += 1
        return reason

    def _drop_filling(self) -> None:
        if self._filling is not None:
            self._filling.free()
            self._filling = None
