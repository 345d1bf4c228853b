"""Which cache slot holds which block key, for one group of engines.

Written by the ingest task alone; `depths`, `full_scan` and `holds` only read. Pure: no clock, no
I/O, no locks, no logging. It never learns which engine a slot belongs to, and never keeps a set of
keys per slot: that would triple the memory.

    open_slot -> add ... -> show -> add, remove ... -> free -> sweep_step ... -> open_slot

A snapshot is filled into a fresh, invisible slot and shown at once. A freed slot leaves every
answer at once; its bits go shard by shard, and its number is given out again only after that.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import compress, islice
from typing import NewType, TypeAlias

from lineside.ids import BlockKey

Slot = NewType("Slot", int)
"""A bit of the masks. Small and reused, so that masks stay short."""

Run: TypeAlias = tuple[int, int]
"""A depth, and the mask of the slots that hold as much and no more."""

SHARDS = 256
"""By a key's top byte. One is swept, or one dict resized, at a time: 4,000 keys of a million."""

SCAN_BELOW = 256
"""Shorter chains are scanned: about as fast as dividing, and exact for any holdings."""

DEEPEST_PROBES = 8192
"""Keys that `deepest` looks at, 1 ms: as many blocks, of 16 tokens or more, as 131,072 tokens have.
What is held of a longer prompt at a lesser depth alone is not found."""

MASK_SLACK = 4096
"""Masks out of use, beside as many as are in use, before a sweep drops them: under 1 MB."""

_TOP = 56
_REST = (1 << _TOP) - 1
"""Keys a shard's dict: 32 bytes where the whole key takes 48, and its low bits spread evenly.

A shard by the low byte would have to shift the key, and a shift does not make an int smaller.
"""

_REST_BYTES = 32
_MASK_BYTES = 64
_SPARSE_BYTES = 80
"""Bytes per key of a dict that is worth building anew; one just built takes 37 to 55."""


class GroupIndex:
    """Keys of one stride: one in `stride` unit keys, counted by absolute depth."""

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
        bit, shards, masks = self._bit(slot), self._shards, self._masks
        alone, top, low, added = masks.setdefault(bit, bit), _TOP, _REST, 0
        for key in keys:
            shard, rest = shards[key >> top], key & low
            mask = shard.get(rest)
            if mask is None:
                shard[rest] = alone
                added += 1
            elif not mask & bit:
                mask |= bit
                shard[rest] = masks.setdefault(mask, mask)
                added += 1
        return added

    def remove(self, slot: Slot, keys: Iterable[BlockKey]) -> int:
        """Note that a slot no longer holds these keys; return how many it held before."""
        bit, shards, masks = self._bit(slot), self._shards, self._masks
        top, low, removed = _TOP, _REST, 0
        for key in keys:
            shard, rest = shards[key >> top], key & low
            mask = shard.get(rest, 0)
            if mask == bit:
                del shard[rest]
                removed += 1
            elif mask & bit:
                mask ^= bit
                shard[rest] = masks.setdefault(mask, mask)
                removed += 1
        return removed

    def holds(self, slot: Slot, key: BlockKey) -> bool:
        """Return whether an open slot, visible or not, holds a key."""
        return bool(self._shards[key >> _TOP].get(key & _REST, 0) & self._bit(slot))

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
        """Return a slot's bit. A freed slot is a fault: what is written would outlive the sweep."""
        if slot not in self._open:
            raise ValueError(f"slot {slot} is not open")
        return 1 << slot

    def depths(self, keys: Sequence[BlockKey], step: int = 1) -> dict[Slot, int]:
        """Return, per visible slot that holds the first key, how many leading keys it holds.

        Of `keys` every `step`-th counts: a caller with all unit keys need not copy them. From
        `SCAN_BELOW` keys on, exact only for slots whose holdings are closed under prefix; for any
        other it is some depth at which the slot holds the key.
        """
        return _by_slot(self.runs(keys, step))

    def runs(self, keys: Sequence[BlockKey], step: int = 1) -> list[Run]:
        """Return what `depths` returns by depth: few, where slots are many."""
        length, first = len(keys) // step, step - 1
        if length < SCAN_BELOW:
            return self._scan(keys[first::step] if step > 1 else keys)
        shards, top, rest, key = self._shards, _TOP, _REST, keys[first]
        held = shards[key >> top].get(key & rest, 0) & self._visible
        runs: list[Run] = []
        # All of `held` hold the key at `low`; `ahead` has the probes that some of them failed.
        low, ahead = 0, [(length, 0)]
        while held:
            high, kept = ahead.pop()
            kept &= held
            if kept != held:
                while high - low > 1:
                    middle = (low + high) >> 1
                    key = keys[middle * step + first]
                    found = shards[key >> top].get(key & rest, 0) & held
                    if found == held:
                        low = middle
                    else:
                        ahead.append((high, kept))
                        high, kept = middle, found
                runs.append((high, held ^ kept))
            low, held = high, kept
        return runs

    def full_scan(self, keys: Sequence[BlockKey]) -> dict[Slot, int]:
        """Return what `depths` returns by looking at every key: exact for any holdings."""
        return _by_slot(self._scan(keys))

    def _scan(self, keys: Sequence[BlockKey]) -> list[Run]:
        runs: list[Run] = []
        if not keys:
            return runs
        shards, top, rest, key = self._shards, _TOP, _REST, keys[0]
        before = shards[key >> top].get(key & rest, 0)
        held = before & self._visible
        for depth, key in enumerate(keys):
            if not held:
                return runs
            mask = shards[key >> top].get(key & rest, 0)
            if mask is not before:  # interned: the same object means the same holders
                before, kept = mask, mask & held
                if kept != held:
                    runs.append((depth, held ^ kept))
                    held = kept
        if held:
            runs.append((len(keys), held))
        return runs

    def unclosed(self, keys: Sequence[BlockKey], step: int = 1) -> tuple[Slot, ...]:
        """Return the visible slots that hold a key of a prompt and lack one before it.

        There are none where holdings are closed under prefix, which `depths` takes for granted.
        """
        shards, top, rest = self._shards, _TOP, _REST
        unbroken, wrong = self._visible, 0
        for key in keys[step - 1 :: step]:
            found = shards[key >> top].get(key & rest, 0) & self._visible
            wrong |= found & ~unbroken
            unbroken &= found
        return slots_of(wrong)

    def deepest(self, keys: Sequence[BlockKey], step: int = 1) -> dict[Slot, int]:
        """Return, per visible slot, the depth of the last key that it holds; omit zeros.

        Of `keys` every `step`-th counts. For holdings that are not closed under prefix: looks from
        the end on until each visible slot is found, at no more than `DEEPEST_PROBES` keys.
        """
        shards, top, rest, left = self._shards, _TOP, _REST, self._visible
        depths: dict[Slot, int] = {}
        if not left:
            return depths
        ends = keys[step - 1 :: step]
        for probes, key in enumerate(islice(reversed(ends), DEEPEST_PROBES)):
            found = shards[key >> top].get(key & rest, 0) & left
            if found:
                depths.update(dict.fromkeys(slots_of(found), len(ends) - probes))
                left ^= found
                if not left:
                    break
        return depths

    def sweep_step(self) -> bool:
        """Sweep one shard; return False if nothing was left to sweep.

        A sweep takes the slots that were free when it began out of every shard, and gathers the
        masks in use, so that the others can go.
        """
        if self._sweep is None:
            if not self._freed and len(self._masks) <= self._masks_limit:
                return False
            self._sweep = _Sweep(self._freed)
            self._freed, self._masks = [], {}
        sweep = self._sweep
        self._shards[sweep.shard] = sweep.swept(self._shards[sweep.shard], self._masks)
        sweep.shard += 1
        if sweep.shard == SHARDS:
            for slot in sweep.slots:
                heappush(self._reusable, slot)
            self._masks_limit = 2 * len(self._masks) + MASK_SLACK
            self._sweep = None
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no slot is in use and nothing is left of any: the index can be dropped."""
        return not (self._open or self._freed or self._sweep)

    @property
    def entries(self) -> int:
        """Keys that some slot holds, freed and not yet swept ones included."""
        return sum(map(len, self._shards))

    @property
    def bytes_estimate(self) -> int:
        """Bytes of the shards, the keys and the masks, as the allocator rounds them."""
        tables = sum(map(sys.getsizeof, self._shards)) + sys.getsizeof(self._masks)
        return tables + self.entries * _REST_BYTES + len(self._masks) * _MASK_BYTES


class _Sweep:
    """One pass over the shards."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.shard = 0
        self._doomed = sum(1 << slot for slot in slots)

    def swept(self, shard: dict[int, int], masks: dict[int, int]) -> dict[int, int]:
        """Return a shard without the pass's slots, its masks interned in `masks`."""
        doomed = self._doomed
        # `compress` over the shard takes two thirds of the time of a comprehension.
        for rest in list(compress(shard, map(doomed.__and__, shard.values()))):
            if kept := shard[rest] & ~doomed:
                shard[rest] = masks.setdefault(kept, kept)
            else:
                del shard[rest]
        masks.update(zip(shard.values(), shard.values(), strict=True))
        # A dict does not shrink when keys go, only when it is built anew.
        sparse = sys.getsizeof(shard) > _SPARSE_BYTES * len(shard)
        return dict(shard) if sparse else shard


def _by_slot(runs: Sequence[Run]) -> dict[Slot, int]:
    """Return each slot's depth."""
    held = 0
    for _, mask in runs:
        held |= mask
    depths = _blank(held).copy()
    for depth, mask in runs:
        for slot in slots_of(mask):
            depths[slot] = depth
    return depths


@lru_cache(maxsize=1024)  # full: the masks longest unused are taken apart again
def _blank(mask: int) -> dict[Slot, int]:
    """Return an answer to copy and fill in: a copy never grows, which halves its cost."""
    return dict.fromkeys(slots_of(mask), 0)


@lru_cache(maxsize=4096)  # as above
def slots_of(mask: int) -> tuple[Slot, ...]:
    """Return the slots of a mask."""
    return tuple(Slot(slot) for slot in range(mask.bit_length()) if mask >> slot & 1)
