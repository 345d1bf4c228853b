"""What one engine holds, and the recent changes of it, for any number of streams to read.

Written by the engine's worker alone; streams read it through cursors. Pure. It never waits for a
stream and keeps no queue for one: the ring of recent deltas is the only queue, and a stream that
falls off it reads one snapshot instead. The state machine is docs/protocol.md.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from lineside.digest import (
    CHUNK_KEYS,
    MASK,
    Delta,
    Held,
    SnapshotChunk,
    checksum,
)
from lineside.ids import BlockKey, EngineId, Generation, Medium

RING_KEYS = 32_768
"""Keys in the ring, about 4 MB: half a minute of an engine that prefills 30k tokens a second."""

RING_DELTAS = 4096
"""Deltas in the ring: 80 s at a flush every 20 ms."""

DELTA_KEYS = CHUNK_KEYS
"""Keys in one delta, which is applied in one step; a larger change, such as that of an engine that
clears its cache, is read as a snapshot. In one window no engine fills 130,000 tokens.
"""


def new_generation() -> Generation:
    """Return a token that no engine had before."""
    return Generation(secrets.token_hex(8))


class DigestLog:
    """The truth of one engine at `digest_seq`, and the changes since.

    At most `ring_keys` keys and `ring_deltas` deltas are kept, oldest dropped first.
    """

    def __init__(
        self,
        engine: EngineId,
        stride: int,
        *,
        ring_keys: int = RING_KEYS,
        ring_deltas: int = RING_DELTAS,
        delta_keys: int = DELTA_KEYS,
        chunk_keys: int = CHUNK_KEYS,
        fresh: Callable[[], Generation] = new_generation,
    ) -> None:
        self.engine = engine
        self.chunk_keys = chunk_keys
        self._ring_keys = ring_keys
        self._ring_deltas = ring_deltas
        self._delta_keys = min(delta_keys, ring_keys)
        self._fresh = fresh
        self.restart(1, {}, stride, hit_points=False)

    def restart(
        self,
        media: int,
        held: Mapping[BlockKey, Medium],
        stride: int | None = None,
        *,
        hit_points: bool | None = None,
    ) -> None:
        """Start a new generation with these holdings; every stream reads a snapshot next.

        Due whenever what was said before is void: the engine restarted, an event is lost for good,
        or key scheme, stride, kind of keys or `media` (slowest medium in use + 1) changed.
        """
        if stride is not None:
            self.stride = stride
        if hit_points is not None:
            self.hit_points = hit_points
        self.media = media
        self.generation = self._fresh()
        self.digest_seq = 0
        self.held = dict(held)
        self.checksum = checksum(self.held.items())
        self._before: dict[BlockKey, Medium | None] = {}
        self._ring: deque[Delta] = deque()
        self._keys_in_ring = 0

    def record(self, changes: Mapping[BlockKey, Medium | None]) -> None:
        """Note where keys are now; `None`: gone. Streams see it after the next flush."""
        for key, medium in changes.items():
            if medium is not None and medium >= self.media:
                raise ValueError(f"medium {medium.name} needs a new generation")
            self._before.setdefault(key, self.held.get(key))
            if medium is None:
                self.held.pop(key, None)
            else:
                self.held[key] = medium

    def flush(self) -> bool:
        """Close the window: put its net change into the ring. Return whether there was one."""
        added, removed = self._net_change()
        self._before.clear()
        if not added and not removed:
            return False
        self.digest_seq += 1
        self.checksum = (self.checksum + checksum(added) - checksum(removed)) & MASK
        self._append(added, removed)
        return True

    def _net_change(self) -> tuple[list[Held], list[Held]]:
        """Return what came and what went; what did both within the window is in neither."""
        added: list[Held] = []
        removed: list[Held] = []
        for key, before in self._before.items():
            now = self.held.get(key)
            if now == before:
                continue
            if before is not None:
                removed.append((key, before))
            if now is not None:
                added.append((key, now))
        return added, removed

    def _append(self, added: list[Held], removed: list[Held]) -> None:
        size = len(added) + len(removed)
        if size > self._delta_keys:  # a hole in the ring: whoever is behind it reads a snapshot
            self._ring.clear()
            self._keys_in_ring = 0
            return
        self._ring.append(
            Delta(
                self.engine,
                self.generation,
                self.digest_seq,
                added,
                removed,
                len(self.held),
                self.checksum,
            )
        )
        self._keys_in_ring += size
        while self._keys_in_ring > self._ring_keys or len(self._ring) > self._ring_deltas:
            self._keys_in_ring -= _size(self._ring.popleft())

    def resume(self, generation: Generation, digest_seq: int) -> "Cursor":
        """Return a cursor for a reader that is at this place, or has nothing ("", 0).

        It starts with the deltas that follow if they are at hand and smaller than a snapshot.
        """
        cursor = Cursor(self)
        if self._is_cheaper_than_snapshot(generation, digest_seq):
            cursor.follow(generation, digest_seq)
        return cursor

    def _is_cheaper_than_snapshot(self, generation: Generation, digest_seq: int) -> bool:
        behind = self.digest_seq - digest_seq
        if generation != self.generation or not 0 <= behind <= len(self._ring):
            return False
        return sum(map(_size, islice(reversed(self._ring), behind))) <= len(self.held)

    def delta(self, digest_seq: int) -> Delta | None:
        """Return the delta that led to `digest_seq`, if it is still in the ring."""
        back = self.digest_seq - digest_seq
        return self._ring[-1 - back] if 0 <= back < len(self._ring) else None

    def assurance(self) -> Delta:
        """Return a delta that changes nothing: count and checksum at `digest_seq`."""
        return Delta(
            self.engine, self.generation, self.digest_seq, [], [], len(self.held), self.checksum
        )


def _size(delta: Delta) -> int:
    return len(delta.added) + len(delta.removed)


class Cursor:
    """One stream's place in a log: a snapshot is due, under way, or read; then deltas follow."""

    def __init__(self, log: DigestLog) -> None:
        self.log = log
        self._generation = log.generation
        self._next_seq = 0
        self._snapshot: Iterator[SnapshotChunk] | None = None
        self._snapshot_due = True
        self._assurance_due = False

    def follow(self, generation: Generation, digest_seq: int) -> None:
        """Take the reader's word that it has everything up to `digest_seq`."""
        self._generation = generation
        self._next_seq = digest_seq + 1
        self._snapshot_due = False
        self._assurance_due = True

    def resync(self) -> None:
        """Begin again with a snapshot: the reader's copy cannot be trusted."""
        self._snapshot_due = True

    def next(self) -> SnapshotChunk | Delta | None:
        """Return what the stream has to send next; `None`: nothing for now."""
        if self._generation != self.log.generation or self._snapshot_due:
            self._begin_snapshot()
        if self._snapshot is not None:
            if chunk := next(self._snapshot, None):
                return chunk
            self._snapshot = None
        if self._next_seq > self.log.digest_seq:
            return self._assure()
        self._assurance_due = False
        if delta := self.log.delta(self._next_seq):
            self._next_seq += 1
            return delta
        self._begin_snapshot()  # fell off the ring
        return self.next()

    def _assure(self) -> SnapshotChunk | Delta | None:
        """Confirm the place of a reader that resumed and has missed nothing.

        Without it a coordinator could not tell an idle engine from one that is yet to answer.
        """
        if not self._assurance_due:
            return None
        self._assurance_due = False
        # Changes not flushed yet are in `held` already; what is confirmed must be one number's.
        return self.next() if self.log.flush() else self.log.assurance()

    def _begin_snapshot(self) -> None:
        """Copy the truth at one `digest_seq`, in one step; what follows is relative to it."""
        self.log.flush()
        self._generation = self.log.generation
        self._next_seq = self.log.digest_seq + 1
        self._snapshot = _chunks(self.log)
        self._snapshot_due = self._assurance_due = False


def _chunks(log: DigestLog) -> Iterator[SnapshotChunk]:
    """Return the chunks of what is held now; at least one, however little that is."""
    held = (
        log.held.copy()
    )  # ten times faster than a list of pairs, which each chunk makes its own of
    keys = iter(held.items())
    starts = range(0, max(len(held), 1), log.chunk_keys)
    template = SnapshotChunk(
        engine=log.engine,
        generation=log.generation,
        digest_seq=log.digest_seq,
        chunk=0,
        last=False,
        keys=(),
        count=len(held),
        checksum=log.checksum,
        stride=log.stride,
        media=log.media,
        hit_points=log.hit_points,
    )
    return (
        replace(
            template,
            chunk=number,
            last=start + log.chunk_keys >= len(held),
            keys=list(islice(keys, log.chunk_keys)),
        )
        for number, start in enumerate(starts)
    )
