"""The prefix cache of one simulated engine: what a request finds, holds, fills and lets go of.

Written by the scheduler in `simulate.core` alone. Knows blocks and chains, not requests, steps or
time. Pure.

A model has one KV group that attends to everything, and may have a second one that attends to a
sliding window. Both take their blocks from one pool. The window group gives blocks back that its
window has left, and keeps in the cache those alone that the same prompt would need if it came
again, as the capture of such a model shows: nothing that was decoded, nothing that is deeper.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulate.blocks import BlockId, BlockPool
from simulate.content import BlockStored, Chain, KvEvent, Scope


@dataclass(slots=True, eq=False)
class Held:
    """What one request has in the cache. Written by `PrefixCache` alone."""

    scope: Scope
    session_id: str | None
    chain: Chain
    hit_point: int
    """Depth, in blocks, at which the same prompt would be hit: before its last token."""
    report_hits: bool
    blocks: list[BlockId] = field(default_factory=list)
    window: list[BlockId | None] = field(default_factory=list)
    """Of the window group, `None` where the window has passed."""
    announced: int = 0
    """Leading blocks whose content is in the cache."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What a request can start with: `depth` blocks on the GPU, then `loaded` from the CPU."""

    blocks: Sequence[BlockId] = ()
    window: Sequence[BlockId] = ()
    loaded: int = 0

    @property
    def depth(self) -> int:
        return len(self.blocks)


NO_HITS = Hits()


class PrefixCache:
    """One engine's KV groups over one pool. `window`: tokens of the sliding window, 0 for none."""

    def __init__(
        self, blocks: int, block_size: int, *, window: int = 0, cpu_blocks: int = 0
    ) -> None:
        groups = 2 if window else 1
        self.pool = BlockPool(blocks, block_size, groups=groups, cpu_blocks=cpu_blocks)
        self._size = block_size
        self._window = window
        self._reach = -(-(window - 1) // block_size) if window else 0
        """Blocks of the window group that a hit needs before it."""
        self._full_group = groups - 1

    def open(
        self,
        prompt: Sequence[int],
        scope: Scope,
        session_id: str | None = None,
        *,
        report_hits: bool = False,
    ) -> Held:
        """Return what a new request holds: nothing yet."""
        chain = Chain(scope, self._size)
        chain.extend(prompt)
        return Held(scope, session_id, chain, (len(prompt) - 1) // self._size, report_hits)

    def find(self, held: Held, tokens: int) -> Hits:
        """Return what a request of `tokens` tokens can start with; hold nothing yet.

        At least its last token is always computed: that one's output is the next token.
        """
        hashes = held.chain.hashes[: (tokens - 1) // self._size]
        blocks = self.pool.find(hashes, self._full_group)
        if self._window:
            return self._within_window(held, blocks)
        loaded = self.pool.cpu.leading(hashes[len(blocks) :])
        return Hits(blocks, loaded=loaded)

    def _within_window(self, held: Held, blocks: Sequence[BlockId]) -> Hits:
        """Cut hits to the deepest point before which the window group has what it needs."""
        hashes = held.chain.hashes
        for depth in range(len(blocks), 0, -1):
            needed = hashes[max(0, depth - self._reach) : depth]
            window = self.pool.find(needed, group=0)
            if len(window) == len(needed):
                return Hits(blocks[:depth], window)
        return NO_HITS

    def grow(
        self, held: Held, tokens: Sequence[int], computed: int, end: int, hits: Hits = NO_HITS
    ) -> bool:
        """Give a request the blocks for its tokens from `computed` to `end`; tell if that worked.

        `hits` come with the first blocks. What does not fit changes nothing but that blocks which
        the window has left are free.
        """
        self._leave_window(held, computed)
        count = -(-end // self._size)
        fresh = count - len(held.blocks) - hits.depth
        room = self.pool.free - self.pool.idle(hits.blocks) - self.pool.idle(hits.window)
        if fresh * (2 if self._window else 1) > room:
            return False
        self._take(held, tokens, hits)
        if self._window:
            held.window += self.pool.allocate(count - len(held.window))
        held.blocks += self.pool.allocate(fresh)
        full = end // self._size
        if full > held.announced:
            self._store(held, tokens, full)
        return True

    def _take(self, held: Held, tokens: Sequence[int], hits: Hits) -> None:
        if not hits.depth:
            return
        self.pool.hold(hits.window)
        self.pool.hold(hits.blocks)
        held.blocks += hits.blocks
        if self._window:
            held.window += [None] * (hits.depth - len(hits.window))
            held.window += hits.window
        if held.report_hits:  # of a window group nothing is known
            self.pool.announce(self._stored(held, tokens, 0, hits.depth))
        held.announced = hits.depth

    def _leave_window(self, held: Held, computed: int) -> None:
        """Release what the window has left when `computed` tokens are behind."""
        if not self._window:
            return
        passed = min(max(0, computed - self._window + 1) // self._size, len(held.window))
        self.pool.release([block for block in held.window[:passed] if block is not None])
        held.window[:passed] = [None] * passed

    def _store(self, held: Held, tokens: Sequence[int], full: int) -> None:
        start = held.announced
        if self._window:
            self._store_window(held, tokens, start, full)
        self.pool.store(held.blocks[start:full], self._stored(held, tokens, start, full))
        held.announced = full

    def _store_window(self, held: Held, tokens: Sequence[int], start: int, full: int) -> None:
        first = max(start, held.hit_point - self._reach)
        last = max(first, min(full, held.hit_point))
        kept = [block for block in held.window[first:last] if block is not None]
        stored = BlockStored(
            block_hashes=held.chain.hashes[first:last],
            parent=held.chain.hashes[start - 1] if start else None,
            token_ids=tokens[start * self._size : full * self._size],
            block_size=self._size,
            lora=held.scope.lora,
            extra_keys=[held.scope.extra_keys(block) for block in range(first, last)] or None,
            session_id=held.session_id,
            group=0,
            window=self._window,
        )
        self.pool.store(kept, stored)

    def _stored(self, held: Held, tokens: Sequence[int], start: int, end: int) -> BlockStored:
        return BlockStored(
            block_hashes=held.chain.hashes[start:end],
            parent=held.chain.hashes[start - 1] if start else None,
            token_ids=tokens[start * self._size : end * self._size],
            block_size=self._size,
            lora=held.scope.lora,
            extra_keys=[held.scope.extra_keys(block) for block in range(start, end)],
            session_id=held.session_id,
            group=self._full_group,
        )

    def release(self, held: Held) -> None:
        """Let go of everything a request holds; its content stays until it is evicted."""
        self.pool.release([block for block in held.window if block is not None])
        self.pool.release(held.blocks)
        held.window, held.blocks, held.announced = [], [], 0

    def take_events(self) -> list[KvEvent]:
        """Return what happened since the last call, in order."""
        return self.pool.take_events()
