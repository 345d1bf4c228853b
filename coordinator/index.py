"""Which cache slot holds which block key, for one group of engines.

Written by the ingest task alone; `depths`, `full_scan` and `holds` only read. Pure: no clock, no I/O,
no locks, no logging. It never learns which engine a slot belongs to, and never holds a set of keys
per slot: that would triple the memory.

    open_slot -> add ... -> show -> add, remove ... -> free -> sweep_step x 256 -> the number is free

A snapshot is filled into a fresh, invisible slot and shown at once. A freed slot disappears from
every answer at once; its bits go shard by shard, and its number is given out again only after that.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NewType

from lineside.ids import BlockKey

Slot = NewType("Slot", int)
"""A bit of the masks. Small and reused, so that masks stay short."""

SHARDS = 256
"""One shard is swept, and one dict resized, at a time: about 4,000 keys of a million."""

SCAN_BELOW = 256
"""Shorter chains are scanned: as fast as dividing, and exact for any holdings."""

MASK_SLACK = 4096
"""Masks that may be out of use, beside as many as were in use, before a sweep drops them."""

_KEY_BYTES = 32
_MASK_BYTES = 192


class GroupIndex:
    """Keys of one stride: `stride` units each, counted by absolute depth.

    A shard is picked by a key's low byte and keyed by the rest: without the byte an int fits 32
    bytes of the allocator instead of 48, and the low bits of the rest still spread over the dict.
    """

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._masks: dict[int, int] = {}
        self._masks_limit = MASK_SLACK
        self._open: set[Slot] = set()
        self._visible = 0
        self._next = 0
        self._reusable: list[Slot] = []
        self._freed: list[Slot] = []
        self._sweep: _Sweep | None = None

    def open_slot(self) -> Slot:
        """Return a fresh slot: empty, invisible, the lowest number that is out of use."""
        if self._reusable:
            slot = heappop(self._reusable)
        else:
            slot = Slot(self._next)
            self._next += 1
        self._open.add(slot)
        return slot

    def add(self, slot: Slot, keys: Iterable[BlockKey]) -> int:
        """Note that a slot holds these keys; return how many it did not hold before."""
        bit, shards, intern = self._bit(slot), self._shards, self._masks.setdefault
        added = 0
        for key in keys:
            shard, rest = shards[key & 255], key >> 8
            mask = shard.get(rest, 0)
            if not mask & bit:
                mask |= bit
                shard[rest] = intern(mask, mask)
                added += 1
        return added

    def remove(self, slot: Slot, keys: Iterable[BlockKey]) -> int:
        """Note that a slot no longer holds these keys; return how many it held before."""
        bit, shards, intern = self._bit(slot), self._shards, self._masks.setdefault
        removed = 0
        for key in keys:
            shard, rest = shards[key & 255], key >> 8
            mask = shard.get(rest, 0)
            if mask & bit:
                mask ^= bit
                if mask:
                    shard[rest] = intern(mask, mask)
                else:
                    del shard[rest]
                removed += 1
        return removed

    def holds(self, slot: Slot, key: BlockKey) -> bool:
        """Return whether an open slot, visible or not, holds a key."""
        return bool(self._shards[key & 255].get(key >> 8, 0) & self._bit(slot))

    def show(self, slot: Slot) -> None:
        """Let a slot appear in answers from now on."""
        self._visible |= self._bit(slot)

    def hide(self, slot: Slot) -> None:
        """Take a slot out of answers; it keeps its keys."""
        self._visible &= ~self._bit(slot)

    def free(self, slot: Slot) -> None:
        """Hide a slot for good; sweeping takes its keys out and releases its number."""
        self.hide(slot)
        self._open.remove(slot)
        self._freed.append(slot)

    def _bit(self, slot: Slot) -> int:
        """Return a slot's bit. A write to a freed slot would outlive the sweep, so it is a fault."""
        if slot not in self._open:
            raise ValueError(f"slot {slot} is not open")
        return 1 << slot

    def depths(self, keys: Sequence[BlockKey]) -> dict[Slot, int]:
        """Return, per visible slot that holds `keys[0]`, how many leading keys it holds.

        From `SCAN_BELOW` keys on, exact only for slots whose holdings are closed under prefix. For
        any other it is some depth at which the slot holds the key.
        """
        if len(keys) < SCAN_BELOW:
            return self.full_scan(keys)
        shards = self._shards
        held = shards[keys[0] & 255].get(keys[0] >> 8, 0) & self._visible
        # `held` are the holders at `low`; `ahead` are probes to the right, the nearest one last.
        depths: dict[Slot, int] = {}
        low, ahead = 0, [(len(keys), 0)]
        while held:
            high, kept = ahead.pop()
            kept &= held
            while kept != held:
                if high - low == 1:
                    depths.update(dict.fromkeys(_slots(held ^ kept), high))
                    break
                ahead.append((high, kept))
                high = (low + high) >> 1
                key = keys[high]
                kept = shards[key & 255].get(key >> 8, 0) & held
            low, held = high, kept
        return depths

    def full_scan(self, keys: Sequence[BlockKey]) -> dict[Slot, int]:
        """Return what `depths` returns by looking at every key: exact for any holdings."""
        shards = self._shards
        depths: dict[Slot, int] = {}
        held = self._visible if keys else 0
        for depth, key in enumerate(keys):
            kept = shards[key & 255].get(key >> 8, 0) & held
            if kept != held:
                if depth:
                    depths.update(dict.fromkeys(_slots(held ^ kept), depth))
                held = kept
                if not held:
                    return depths
        depths.update(dict.fromkeys(_slots(held), len(keys)))
        return depths

    def sweep_step(self) -> bool:
        """Sweep one shard; return False if nothing was left to sweep.

        A sweep takes the bits of slots freed before it began out of every shard, and interns the
        masks still in use anew, so that the others can go.
        """
        if self._sweep is None:
            if not self._freed and len(self._masks) <= self._masks_limit:
                return False
            self._masks = {}
            self._sweep = _Sweep(self._freed, self._masks)
            self._freed = []
        sweep = self._sweep
        self._shards[sweep.shard] = sweep.swept(self._shards[sweep.shard])
        sweep.shard += 1
        if sweep.shard == SHARDS:
            for slot in sweep.slots:
                heappush(self._reusable, slot)
            self._masks_limit = 2 * len(self._masks) + MASK_SLACK
            self._sweep = None
        return True

    @property
    def entries(self) -> int:
        """Keys that some slot holds, freed and not yet swept ones included."""
        return sum(map(len, self._shards))

    @property
    def bytes_estimate(self) -> int:
        """Bytes of the shards, the keys and the masks, as the allocator rounds them."""
        shards = sum(map(sys.getsizeof, self._shards))
        return shards + self.entries * _KEY_BYTES + len(self._masks) * _MASK_BYTES


class _Sweep:
    """One pass over the shards, for the slots that were free when it began."""

    def __init__(self, slots: Sequence[Slot], masks: dict[int, int]) -> None:
        self.slots = slots
        self.shard = 0
        self._survivors = _Survivors(~sum(1 << slot for slot in slots), masks)

    def swept(self, shard: dict[int, int]) -> dict[int, int]:
        survivors = self._survivors
        return {rest: kept for rest, mask in shard.items() if (kept := survivors[mask])}


class _Survivors(dict[int, int]):
    """A mask -> what is left of it, interned: one `dict` look-up per key once a mask is known."""

    def __init__(self, keep: int, masks: dict[int, int]) -> None:
        self._keep = keep
        self._masks = masks

    def __missing__(self, mask: int) -> int:
        kept = mask & self._keep
        self[mask] = kept = self._masks.setdefault(kept, kept)
        return kept


@lru_cache(maxsize=4096)  # full: the masks longest unused are taken apart again
def _slots(mask: int) -> tuple[Slot, ...]:
    """Return the slots of a mask."""
    return tuple(Slot(slot) for slot in range(mask.bit_length()) if mask >> slot & 1)
