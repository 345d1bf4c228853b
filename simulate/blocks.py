"""The block pool of one simulated engine: who holds a block, what it caches, what is evicted.

Written by `simulate.cache` alone. Knows nothing of time, requests or sockets; what changes in the
cache is left as events, in the order in which it happened. Pure.

Block 0 is reserved, as in vLLM. A block is *in use* (held by requests), *cached* (free, its content
still matches) or *blank* (free, no content). A hash may live in several blocks: each is a copy of
its own, stored and removed by its own event.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NewType

from simulate.content import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KvEvent
from simulate.offload import CpuTier

BlockId = NewType("BlockId", int)


class BlockPool:
    """Blocks 1 … `total` of an engine that was given `blocks` blocks, shared by all KV groups."""

    def __init__(
        self, blocks: int, block_size: int, *, groups: int = 1, cpu_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self.total = blocks - 1
        self.cpu = CpuTier(cpu_blocks, block_size)
        self._holders = [0] * blocks
        self._hashes: list[BlockHash | None] = [None] * blocks
        self._groups = bytearray(blocks)
        self._copies: list[dict[BlockHash, list[BlockId]]] = [{} for _ in range(groups)]
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

    def content(self, group: int = 0) -> dict[BlockHash, int]:
        """Return every hash that a group has cached with its number of copies, held or free."""
        return {block_hash: len(copies) for block_hash, copies in self._copies[group].items()}

    def take_events(self) -> list[KvEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def find(self, hashes: Iterable[BlockHash], group: int = 0) -> list[BlockId]:
        """Return a block for each leading hash that has content; hold nothing yet."""
        found = []
        for block_hash in hashes:
            copies = self._copies[group].get(block_hash)
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
        group = self._groups[block]
        self._hashes[block] = None
        copies = self._copies[group][block_hash]
        copies.remove(block)
        if not copies:
            del self._copies[group][block_hash]
        self._events += self.cpu.keep(block_hash)
        self._events.append(BlockRemoved(block_hash, group))

    def store(self, blocks: Sequence[BlockId], stored: BlockStored) -> None:
        """Give blocks that are held, and have no content yet, the content that `stored` names."""
        for block, block_hash in zip(blocks, stored.block_hashes, strict=True):
            self._hashes[block] = block_hash
            self._groups[block] = stored.group
            self._copies[stored.group].setdefault(block_hash, []).append(block)
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
        for copies in self._copies:
            copies.clear()
        self.cpu.clear()
        self._events.append(AllBlocksCleared())
        return True
