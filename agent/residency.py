"""What one engine holds in its KV cache, as block keys. Pure: no clock, no I/O, no logging.

Written by that engine's one task, which applies the engine's events in order. Token ids are hashed
and let go; what stays is one small object for each engine key.

Two things are counted. An engine key has copies, by medium: the engine stores a block more than
once and removes each copy by itself. A block key has carriers, by level: several engine keys can
mean the same key, and blocks of several units share the units before they differ.

The level of a block is the slowest medium that a request touches to use it with all its ancestors,
where each block counts in the fastest medium that holds it. Without a level it is not servable, and
what is not servable is not reported: so what is reported is closed under prefix.

An engine with several KV groups reports hit points instead, which are not (see `agent.hybrid`).
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

from agent.blocks import GONE, MASK, ONE, Block, downwards, fastest, total
from agent.hybrid import NotMatched, Windows
from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineKey, KvEvent
from agent.run_keys import run_keys
from lineside.hashing import UNIT, seed
from lineside.ids import BlockKey, Medium

NO_CHAIN = "no KV group of full attention was seen"

_MEDIA = (*Medium, None)
"""From level to what is reported."""


class Residency:
    """Which block keys one engine holds, and where.

    `stride`: every stride-th unit key is reported, counted from the start of the prompt. All unit
    keys are kept, so that it can change at any time.
    """

    def __init__(self, secret: bytes, stride: int) -> None:
        self._secret = secret
        self._stride = stride
        self._blocks: dict[EngineKey, Block] = {}
        self._carriers: dict[BlockKey, int] = {}
        self._before: dict[BlockKey, int] = {}  # levels at the last take, of what changed since
        self._windows = Windows()  # the other KV groups
        self._group: int | None = None  # the full-attention group, once seen
        self._group_told = False  # by more than an offloading tier, which leaves kinds out
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
        self.hit_points = False
        """Whether hit points are reported instead of strided keys (see `agent.hybrid`). A change
        asks for a new generation. `clear` resets it."""
        self.at_least_one = False
        """A store may announce what is held already: it adds no copy where there is one. Counts may
        so be too low, never too high."""
        self._uncounted = 0  # stores that added no copy: as many removals may find none
        self._given_up = ""

    @property
    def unusable(self) -> str:
        """Why nothing of this engine can be matched; empty: it can."""
        return self._given_up or (NO_CHAIN if self.hit_points and self._group is None else "")

    @property
    def stride(self) -> int:
        """Units between two depths at which a key may be reported: of hit points, a block."""
        return self.block_size // UNIT if self.hit_points else self._stride

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
        self._windows = Windows()
        self._group, self._group_told = None, False
        self.media = 1
        self.block_size = 0
        self.hit_points = False
        self._given_up = ""

    def lose(self) -> None:
        """Hold nothing any more, because events were lost. Drops changes not taken yet.

        What engine keys mean is kept, so that blocks stored under them get their keys.
        """
        for block in list(self._blocks.values()):
            if block.key is None:
                block.copies = 0
            if block.engine_key in self._blocks:
                self._drop(block)  # kept from an earlier loss, or without a key: of no use
        self._carriers.clear()
        self._before.clear()
        self._windows.empty()
        for block in self._blocks.values():
            block.copies, block.level = 0, GONE
        self.blocks = self.unkeyed_blocks = self._uncounted = 0

    def restride(self, stride: int) -> None:
        """Report other keys of the same holdings. Of hit points a stride changes nothing.

        Drops changes not taken yet; what is reported depends on copies and chain alone.
        """
        changed, self._stride = stride != self._stride, stride
        if changed and not self.hit_points:
            self.report_anew()

    def report_anew(self) -> None:
        """Work out what is reported from copies and chain. Drops changes not taken yet."""
        self._carriers.clear()
        for block in () if self._given_up else downwards(self._blocks.values()):
            level = fastest(block.copies)
            if block.parent is not None and block.parent.level > level:
                level = block.parent.level
            block.level = level
            if self.hit_points:
                self._windows.place(block)
                self._judge(block)
                continue
            block.restride(self._stride)
            if level != GONE:
                for key in block.reported:
                    self._carriers[key] = self._carriers.get(key, 0) + ONE[level]
        self._before.clear()

    @property
    def changes(self) -> int:
        """Keys that changed since the last take, back and forth included."""
        return len(self._before)

    def take_changes(self) -> dict[BlockKey, Medium | None]:
        """Return what changed since the last take, net; `None` is gone."""
        before, self._before = self._before, {}
        changes: dict[BlockKey, Medium | None] = {}
        for key, old in before.items():
            level = fastest(self._carriers.get(key, 0))
            if level != old:
                changes[key] = _MEDIA[level]
        return changes

    def held(self) -> Mapping[BlockKey, Medium]:
        """Return a copy of all that is reported, changes not taken yet included."""
        return {key: Medium(fastest(counts)) for key, counts in self._carriers.items()}

    # --- stores and removals ----------------------------------------------------------------------

    def _store(self, event: BlockStored) -> None:
        self._observe(event)
        if not self._is_chain(event):
            self._store_elsewhere(event)
            return
        one, units, end = ONE[event.medium], event.block_size // UNIT, 0
        parent = None if event.parent is None else self._blocks.get(event.parent)
        keys = self._unit_keys(event, parent)
        for engine_key in event.keys:
            block = self._blocks.get(engine_key)
            if block is None:
                block = self._blocks[engine_key] = Block(engine_key)
            if end < len(keys):
                if block.key is None:
                    self._place(block, parent, keys[end : end + units])
                parent = block
                end += units
            if self.at_least_one and block.copies & one * MASK:
                self._uncounted += 1
            else:
                block.copies += one
                self.blocks += 1
                self.unkeyed_blocks += block.key is None
            if block.key is not None:
                self._settle(block)

    def _remove(self, event: BlockRemoved) -> None:
        if event.group != self._group:
            self._remove_elsewhere(event)
            return
        one = ONE[event.medium]
        for engine_key in event.keys:
            block = self._blocks.get(engine_key)
            if block is None or not block.copies & one * MASK:
                self._miss()
                self._drop(block)
                continue
            block.copies -= one
            self.blocks -= 1
            if block.key is None:
                self.unkeyed_blocks -= 1
            else:
                self._settle(block)
            if not block.copies:
                self._drop(block)

    def _miss(self) -> None:
        """Note that what was removed was not held."""
        if self._uncounted:
            self._uncounted -= 1
        else:
            self.unmatched_removals += 1

    def _is_chain(self, event: BlockStored) -> bool:
        """Tell whether an event is of the KV group that gives chain and tokens."""
        if event.full_attention and not self._group_told:
            self._group_told = event.medium is Medium.GPU or event.kind is not None
            if self._group is None:
                self._group = event.group
            elif self._group_told and self._group != event.group:
                self._mistook(event.group)
        return event.group == self._group and event.full_attention

    def _mistook(self, group: int | None) -> None:
        """Put right which group the chain comes from, after a tier's events alone."""
        self._withdraw()
        self._forget_blocks()
        self._group = group

    def _observe(self, event: BlockStored) -> None:
        self.media = max(self.media, event.medium + 1)
        # Offloading tiers have block sizes of their own, or leave them out.
        if event.medium is Medium.GPU and event.block_size != self.block_size:
            if self.block_size and event.block_size and self.hit_points:
                self._give_up("KV groups of different block sizes are not matched yet")
            self.block_size = self.block_size or event.block_size
            if event.block_size % UNIT:
                self._give_up(f"block size {event.block_size} is not a multiple of {UNIT}")

    def _unit_keys(self, event: BlockStored, parent: Block | None) -> list[BlockKey]:
        """Return the unit keys of the run's leading blocks, as many as can be computed."""
        if self._given_up or not event.keyable or event.block_size % UNIT:
            return []
        if event.parent is None:
            return run_keys(seed(self._secret, event.lora, event.salt), event)
        if parent is None or parent.key is None:
            return []
        return run_keys(parent.key, event)

    # --- the tree of blocks -----------------------------------------------------------------------

    def _place(self, block: Block, parent: Block | None, keys: Sequence[BlockKey]) -> None:
        """Give a block its keys and its parent. Copies from before were counted as unkeyed."""
        if block.copies:
            self.unkeyed_blocks -= total(block.copies)
        if parent is not None:
            parent.adopt(block)
        block.place(keys, self._stride)
        if self.hit_points:
            block.reported = ()
            self._windows.place(block)

    def _settle(self, block: Block) -> None:
        """Bring the level of a block and of its descendants in line with its copies.

        Touches what changes and one step beyond. A loop: prompts are thousands of blocks deep.
        """
        pending, hybrid = [block], self.hit_points
        while pending:
            block = pending.pop()
            level = 0 if block.copies & MASK else fastest(block.copies)
            if block.parent is not None and block.parent.level > level:
                level = block.parent.level
            if level == block.level:
                continue
            for key in block.reported:
                self._recount(key, block.level, level)
            block.level = level
            if hybrid:
                self._judge(block)
            if block.children is not None:
                pending.extend(block.below())

    def _recount(self, key: BlockKey, old: int, new: int) -> None:
        counts = before = self._carriers.get(key, 0)
        if old != GONE:
            counts -= ONE[old]
        if new != GONE:
            counts += ONE[new]
        if counts:
            self._carriers[key] = counts
        else:
            del self._carriers[key]
        self._before.setdefault(key, fastest(before))

    def _drop(self, block: Block | None) -> None:
        """Forget a block without copies, and ancestors kept only for it.

        One with children stays: it gives them their place, and may come back under them.
        """
        while block is not None and not block.copies and block.children is None:
            del self._blocks[block.engine_key]
            self._windows.displace(block.engine_key)
            parent = block.parent
            if parent is not None:
                parent.disown(block)
            block = parent

    # --- hit points -------------------------------------------------------------------------------

    def _store_elsewhere(self, event: BlockStored) -> None:
        """Count blocks of a KV group that the chain does not come from."""
        if event.medium is Medium.GPU and not self._given_up:  # a tier does not tell kinds
            self._admit(event)
        for engine_key in event.keys:
            if self.at_least_one and self._windows.holds(event.group, event.medium, engine_key):
                self._uncounted += 1
                continue
            if self._windows.store(event.group, event.medium, engine_key):
                self._judge_window(event.group, engine_key)

    def _remove_elsewhere(self, event: BlockRemoved) -> None:
        for engine_key in event.keys:
            left = self._windows.remove(event.group, event.medium, engine_key)
            if left is None:
                self._miss()
            elif not left:
                self._judge_window(event.group, engine_key)

    def _admit(self, event: BlockStored) -> None:
        """Learn of a KV group. The first one turns strided keys into hit points."""
        try:
            if event.group == self._group and not self._group_told:
                self._mistook(None)
            if event.group == self._group:
                raise NotMatched(f"KV group {event.group} has changed what it keeps")
            if not self._windows.admit(event):
                return
        except NotMatched as refused:
            self._give_up(str(refused))
            return
        self.hit_points = True
        self._withdraw()
        for block in self._blocks.values():
            block.reported = ()
            self._judge(block)

    def _judge_window(self, group: int, engine_key: EngineKey) -> None:
        block = self._blocks.get(engine_key)
        if block is not None and block.key is not None:
            for changed in self._windows.settle(group, block):
                self._judge(changed)

    def _judge(self, block: Block) -> None:
        """Report a block's key where it has become a hit point, and no longer where it was one."""
        old, new = self._windows.judge(block)
        if old != new and block.key is not None:
            self._recount(block.key, old, new)

    # --- everything at once -----------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        """Report nothing from now on. Copies are still counted."""
        if self._given_up:
            return
        self._given_up = reason
        self.hit_points = False
        self._windows.stop()
        self._withdraw()
        for block in self._blocks.values():
            block.reported = ()

    def _withdraw(self) -> None:
        for key, counts in self._carriers.items():
            self._before.setdefault(key, fastest(counts))
        self._carriers.clear()

    def _forget_blocks(self) -> None:
        for block in self._blocks.values():  # parent and child hold each other: free them now
            block.parent = block.children = None
        self._blocks.clear()
        self._windows.empty()
        self.blocks = self.unkeyed_blocks = self._uncounted = 0
