"""The block pool of one simulated engine: who holds a block, what it caches, what is evicted.

Written by the scheduler in `simulate.core` alone. Knows nothing of time, requests or sockets; what
changes in the cache is left as events, in the order in which it happened. Pure.

Block 0 is reserved, as in vLLM. A block is *in use* (held by requests), *cached* (free, its content
still matches) or *blank* (free, no content). A hash may live in several blocks: each is a copy of
its own, stored and removed by its own event.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NewType

BlockId = NewType("BlockId", int)
BlockHash = NewType("BlockHash", bytes)
"""SHA-256 over parent, tokens and extra keys: opaque, equal on every engine for equal content."""

_FIRST_PARENT = sha256(b"simulated engine: no parent").digest()


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter: `number` is local to this server, `name` is not."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What separates equal tokens: the adapter for every block, the salt for the first one."""

    lora: Lora | None = None
    cache_salt: str | None = None

    def extra_keys(self, block: int) -> list[str] | None:
        """Return what an event says of the block at this position, from 0."""
        keys = [self.lora.name] if self.lora else []
        if block == 0 and self.cache_salt is not None:
            keys.append(self.cache_salt)
        return keys or None


PLAIN = Scope()


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A run of consecutive full blocks of one prompt now has content."""

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    lora: Lora | None
    extra_keys: Sequence[list[str] | None]
    session_id: str | None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of a block was evicted."""

    block_hash: BlockHash


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was emptied."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Chain:
    """Block hashes of one growing token sequence; grows with it, never shrinks."""

    def __init__(self, scope: Scope, block_size: int) -> None:
        self.hashes: list[BlockHash] = []
        self._scope = scope
        self._block_size = block_size
        self._lora = _field(scope.lora.name) if scope.lora else b""

    def extend(self, tokens: Sequence[int]) -> None:
        """Hash the full blocks of `tokens` that are not hashed yet."""
        size = self._block_size
        start = len(self.hashes)
        packed = array("I", tokens[start * size : len(tokens) // size * size]).tobytes()
        parent: bytes = self.hashes[-1] if self.hashes else _FIRST_PARENT
        for at in range(0, len(packed), size * 4):
            extra = self._lora
            if not self.hashes and self._scope.cache_salt is not None:
                extra += _field(self._scope.cache_salt)
            parent = sha256(parent + packed[at : at + size * 4] + extra).digest()
            self.hashes.append(BlockHash(parent))


def _field(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(4, "little") + raw


class BlockPool:
    """Blocks 1 … `total` of an engine that was given `blocks` blocks."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = blocks - 1
        self._holders = [0] * blocks
        self._hashes: list[BlockHash | None] = [None] * blocks
        self._copies: dict[BlockHash, list[BlockId]] = {}
        # Order of allocation: the front goes first. Blank blocks come before cached ones.
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(
            map(BlockId, range(1, blocks))
        )
        self._events: list[KvEvent] = []

    @property
    def free(self) -> int:
        """Blocks that no request holds, cached or blank."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        return self.total - len(self._free)

    def census(self) -> tuple[int, int, int]:
        """Count the blocks afresh: in use, free with content, free and blank."""
        held = sum(holders > 0 for holders in self._holders)
        cached = sum(self._hashes[block] is not None for block in self._free)
        return held, cached, len(self._free) - cached

    def content(self) -> dict[BlockHash, int]:
        """Return every cached hash with its number of copies, held or free."""
        return {block_hash: len(copies) for block_hash, copies in self._copies.items()}

    def take_events(self) -> list[KvEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def find(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Return a block for each leading hash that has content; hold nothing yet."""
        found = []
        for block_hash in hashes:
            copies = self._copies.get(block_hash)
            if not copies:
                break
            found.append(copies[0])
        return found

    def idle(self, blocks: Iterable[BlockId]) -> int:
        """Count those that nobody holds: holding them takes from `free`."""
        return sum(not self._holders[block] for block in blocks)

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """Take found blocks out of the reach of eviction."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks, at most `free`, from the front and drop their content."""
        taken = []
        for _ in range(count):
            block, _nothing = self._free.popitem(last=False)
            self._evict(block)
            self._holders[block] = 1
            taken.append(block)
        return taken

    def _evict(self, block: BlockId) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            return
        self._hashes[block] = None
        copies = self._copies[block_hash]
        copies.remove(block)
        if not copies:
            del self._copies[block_hash]
        self._events.append(BlockRemoved(block_hash))

    def store(self, blocks: Sequence[BlockId], stored: BlockStored) -> None:
        """Give blocks that are held, and have no content yet, the content that `stored` names."""
        for block, block_hash in zip(blocks, stored.block_hashes, strict=True):
            self._hashes[block] = block_hash
            self._copies.setdefault(block_hash, []).append(block)
        self._events.append(stored)

    def announce(self, stored: BlockStored) -> None:
        """Report blocks that are there already, as `kv_cache_report_mode: full` asks."""
        self._events.append(stored)

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Let go of a request's blocks: blank ones go to the front, then the tail of its prefix.

        That blank blocks are used before anything is evicted shows in the captures: the first 40
        blocks after a reset evict nothing, two partly filled and freed ones included.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._hashes[block] is None:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Drop all content, unless a block is in use."""
        if self.in_use:
            return False
        self._hashes = [None] * len(self._hashes)
        self._copies.clear()
        self._events.append(AllBlocksCleared())
        return True
