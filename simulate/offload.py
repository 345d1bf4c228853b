"""The CPU tier of one simulated engine: blocks that were evicted from the GPU and can come back.

Written by the block pool alone. Pure.
"""

from collections import OrderedDict
from collections.abc import Sequence

from simulate.content import BlockHash, BlockOffloaded, BlockRemoved, KvEvent


class CpuTier:
    """Room for `blocks` blocks; the one used longest ago gives way."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._held: OrderedDict[BlockHash, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, block_hash: BlockHash) -> list[KvEvent]:
        """Take in a block that leaves the GPU; return what to tell before it is gone there."""
        if not self._blocks or block_hash in self._held:
            return []
        events: list[KvEvent] = []
        if len(self._held) == self._blocks:
            oldest, _ = self._held.popitem(last=False)
            events.append(BlockRemoved(oldest, medium="CPU"))
        self._held[block_hash] = None
        return [*events, BlockOffloaded(block_hash, self._block_size)]

    def leading(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are here, and note that they were used."""
        count = 0
        for block_hash in hashes:
            if block_hash not in self._held:
                break
            self._held.move_to_end(block_hash)
            count += 1
        return count

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
