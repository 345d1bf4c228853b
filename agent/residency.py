"""What one engine holds in its KV cache, as block keys. Pure: no clock, no I/O, no logging.

Written by that engine's one task, which applies the engine's events in order. Token ids are hashed
and let go; what stays is one small object for each engine key.

Two things are counted. An engine key has copies, by medium: the engine stores a block more than
once and removes each copy by itself. A block key has carriers, by level: several engine keys can
mean the same key, and blocks of several units share the units before they differ.

The level of a block is the slowest medium that a request touches to use it with all its ancestors,
where each block counts in the fastest medium that holds it. Without a level it is not servable, and
what is not servable is not reported: so what is reported is closed under prefix.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import assert_never

from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineKey, KvEvent
from lineside.hashing import UNIT, UNIT_BYTES, chain, mix, seed, strided
from lineside.ids import BlockKey, Medium

HYBRID = "hybrid attention is not matched yet"

_GONE = len(Medium)
"""The level of what is not servable: slower than every medium, so that `max` hands it down."""

_MEDIA = (*Medium, None)
"""From level to what is reported."""

# Counts by medium, packed into one integer to save memory: 32 bits each, far more than an engine
# has blocks. A block held once on the GPU counts 1, which Python keeps one object of.
_BITS = 32
_MASK = 2**_BITS - 1
_ONE = tuple(1 << _BITS * medium for medium in Medium)


class _Block:
    """An engine key. One without `key` is held, but what it means is not known: it has no place."""

    __slots__ = ("children", "copies", "engine_key", "key", "level", "parent", "phase", "reported")

    def __init__(self, engine_key: EngineKey) -> None:
        self.engine_key = engine_key
        self.copies = 0
        self.level = _GONE
        self.key: BlockKey | None = None  # of its last unit
        self.phase = 0  # units from the start of the prompt to its end, modulo the stride
        self.reported: tuple[BlockKey, ...] = ()
        self.parent: _Block | None = None  # `None`: first of its prompt
        # Most blocks have one child, and a set costs twice a block.
        self.children: _Block | set[_Block] | None = None


class Residency:
    """Which block keys one engine holds, and where.

    `stride`: every stride-th unit key is reported, counted from the start of the prompt.
    """

    def __init__(self, secret: bytes, stride: int) -> None:
        self._secret = secret
        self._stride = stride
        self._blocks: dict[EngineKey, _Block] = {}
        self._carriers: dict[BlockKey, int] = {}
        self._before: dict[BlockKey, int] = {}  # levels at the last take, of what changed since
        self._other_groups: dict[tuple[int, Medium, EngineKey], int] = {}
        self._group: int | None = None  # the full-attention group, once seen
        self.media = 1
        """Slowest medium in use + 1. A change asks for a new generation. `clear` resets it."""
        self.block_size = 0
        """Tokens; 0: not known yet."""
        self.blocks = 0
        """Copies held in all media, in the full-attention group."""
        self.unkeyed_blocks = 0
        """Of `blocks`, those that no block key is known for."""
        self.unmatched_removals = 0
        """Removals of what was not held, over all lives of the engine."""
        self.unusable = ""
        """Why nothing of this engine can be matched; empty: it can."""

    def apply(self, event: KvEvent) -> None:
        """Apply one event; the order is the engine's."""
        match event:
            case BlockRemoved():
                self._remove(event)
            case BlockStored():
                self._store(event)
            case AllBlocksCleared():
                self._withdraw()
                self._forget_blocks()
            case _:
                assert_never(event)

    def clear(self) -> None:
        """Start empty, as for a new life of the engine. Drops changes not taken yet."""
        self._forget_blocks()
        self._carriers.clear()
        self._before.clear()
        self._group = None
        self.media = 1
        self.block_size = 0
        self.unusable = ""

    def take_changes(self) -> dict[BlockKey, Medium | None]:
        """Return what changed since the last take, net; `None` is gone."""
        before, self._before = self._before, {}
        changes: dict[BlockKey, Medium | None] = {}
        for key, old in before.items():
            level = _fastest(self._carriers.get(key, 0))
            if level != old:
                changes[key] = _MEDIA[level]
        return changes

    def held(self) -> Mapping[BlockKey, Medium]:
        """Return a copy of all that is reported, changes not taken yet included."""
        return {key: Medium(_fastest(counts)) for key, counts in self._carriers.items()}

    # --- stores and removals ----------------------------------------------------------------------

    def _store(self, event: BlockStored) -> None:
        if not self._is_matched_group(event):
            for engine_key in event.keys:
                place = (event.group, event.medium, engine_key)
                self._other_groups[place] = self._other_groups.get(place, 0) + 1
            return
        self._observe(event)
        one, units, end = _ONE[event.medium], event.block_size // UNIT, 0
        parent = None if event.parent is None else self._blocks.get(event.parent)
        keys = self._unit_keys(event, parent)
        self.blocks += len(event.keys)
        for engine_key in event.keys:
            block = self._blocks.get(engine_key)
            if block is None:
                block = self._blocks[engine_key] = _Block(engine_key)
            if end < len(keys):
                if block.key is None:
                    self._place(block, parent, keys[end : end + units])
                parent = block
                end += units
            block.copies += one
            if block.key is None:
                self.unkeyed_blocks += 1
            else:
                self._settle(block)

    def _remove(self, event: BlockRemoved) -> None:
        if event.group != self._group:
            for engine_key in event.keys:
                self._remove_other((event.group, event.medium, engine_key))
            return
        one = _ONE[event.medium]
        for engine_key in event.keys:
            block = self._blocks.get(engine_key)
            if block is None or not block.copies & one * _MASK:
                self.unmatched_removals += 1
                continue
            block.copies -= one
            self.blocks -= 1
            if block.key is None:
                self.unkeyed_blocks -= 1
            else:
                self._settle(block)
            if not block.copies:
                self._drop(block)

    def _remove_other(self, place: tuple[int, Medium, EngineKey]) -> None:
        copies = self._other_groups.pop(place, 0)
        if copies > 1:
            self._other_groups[place] = copies - 1
        elif not copies:
            self.unmatched_removals += 1

    def _is_matched_group(self, event: BlockStored) -> bool:
        if self._group is None and event.full_attention:
            self._group = event.group
        if event.group == self._group and event.full_attention:
            return True
        self._give_up(HYBRID)
        return False

    def _observe(self, event: BlockStored) -> None:
        self.media = max(self.media, event.medium + 1)
        # Offloading tiers have block sizes of their own, or leave them out.
        if event.medium is Medium.GPU and event.block_size != self.block_size:
            self.block_size = self.block_size or event.block_size
            if event.block_size % UNIT:
                self._give_up(f"block size {event.block_size} is not a multiple of {UNIT}")

    def _unit_keys(self, event: BlockStored, parent: _Block | None) -> list[BlockKey]:
        """Return the unit keys of the run's leading blocks, as many as can be computed."""
        if self.unusable or not event.keyable or event.block_size % UNIT:
            return []
        if event.parent is None:
            return run_keys(seed(self._secret, event.lora, event.salt), event)
        if parent is None or parent.key is None:
            return []
        return run_keys(parent.key, event)

    # --- the tree of blocks -----------------------------------------------------------------------

    def _place(self, block: _Block, parent: _Block | None, keys: Sequence[BlockKey]) -> None:
        """Give a block its keys and its parent. Copies from before were counted as unkeyed."""
        if block.copies:
            self.unkeyed_blocks -= _total(block.copies)
        before = 0
        if parent is not None:
            before = parent.phase
            block.parent = parent
            _adopt(parent, block)
        block.key = keys[-1]
        phase = before + len(keys)
        if phase >= self._stride:
            block.reported = tuple(strided(keys, self._stride, before + 1))
            phase %= self._stride
        block.phase = phase

    def _settle(self, block: _Block) -> None:
        """Bring the level of a block and of its descendants in line with its copies.

        Touches what changes and one step beyond. A loop: prompts are thousands of blocks deep.
        """
        pending = [block]
        while pending:
            block = pending.pop()
            level = _fastest(block.copies)
            if block.parent is not None and block.parent.level > level:
                level = block.parent.level
            if level == block.level:
                continue
            for key in block.reported:
                self._recount(key, block.level, level)
            block.level = level
            if block.children is not None:
                pending.extend(_children(block))

    def _recount(self, key: BlockKey, old: int, new: int) -> None:
        counts = before = self._carriers.get(key, 0)
        if old != _GONE:
            counts -= _ONE[old]
        if new != _GONE:
            counts += _ONE[new]
        if counts:
            self._carriers[key] = counts
        else:
            del self._carriers[key]
        self._before.setdefault(key, _fastest(before))

    def _drop(self, block: _Block | None) -> None:
        """Forget a block without copies, and ancestors kept only for it.

        One with children stays: it gives them their place, and may come back under them.
        """
        while block is not None and not block.copies and block.children is None:
            del self._blocks[block.engine_key]
            parent, block.parent = block.parent, None
            if parent is not None:
                _disown(parent, block)
            block = parent

    # --- everything at once -----------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        """Report nothing from now on. Copies are still counted."""
        if self.unusable:
            return
        self.unusable = reason
        self._withdraw()
        for block in self._blocks.values():
            block.reported = ()

    def _withdraw(self) -> None:
        for key, counts in self._carriers.items():
            self._before.setdefault(key, _fastest(counts))
        self._carriers.clear()

    def _forget_blocks(self) -> None:
        for block in self._blocks.values():  # parent and child hold each other: free them now
            block.parent = block.children = None
        self._blocks.clear()
        self._other_groups.clear()
        self.blocks = self.unkeyed_blocks = 0


def run_keys(parent: BlockKey, event: BlockStored) -> list[BlockKey]:
    """Return the key of each unit in the run's keyable blocks, which follow `parent`.

    A media part is mixed in once, before the unit in which it starts; what follows inherits it.
    """
    packed = event.packed[: event.keyable * event.block_size * 4]
    if not event.media:
        return chain(parent, packed)
    keys: list[BlockKey] = []
    begin = 0
    for unit, parts in groupby(sorted(event.media, key=_start), lambda part: part[1] // UNIT):
        keys += chain(parent, packed[begin : unit * UNIT_BYTES])
        parent = mix(keys[-1] if keys else parent, [(name, at % UNIT) for name, at in parts])
        begin = unit * UNIT_BYTES
    return keys + chain(parent, packed[begin:])


def _start(part: tuple[str, int]) -> int:
    return part[1]


def _fastest(counts: int) -> int:
    """Return the fastest medium that counts something, as a level."""
    if counts & _MASK:
        return 0
    if not counts:
        return _GONE
    return 1 if counts >> _BITS & _MASK else 2


def _total(counts: int) -> int:
    return sum(counts >> _BITS * medium & _MASK for medium in Medium)


def _children(block: _Block) -> Iterable[_Block]:
    children = block.children
    if children is None:
        return ()
    return children if isinstance(children, set) else (children,)


def _adopt(parent: _Block, child: _Block) -> None:
    children = parent.children
    if children is None:
        parent.children = child
    elif isinstance(children, set):
        children.add(child)
    else:
        parent.children = {children, child}


def _disown(parent: _Block, child: _Block) -> None:
    if isinstance(parent.children, set):
        parent.children.discard(child)
        if parent.children:
            return
    parent.children = None
