"""Which blocks a hybrid engine's other KV groups hold, and where they let a prefix be used. Pure.

Written by the engine's `Residency`, which owns the tree of blocks; that comes from the group that
gives chain and tokens. Of every other group only the presence of its blocks counts.

A group with a sliding window keeps what its window reaches, and forgets the rest. So a prefix can
be used at some depths only: where the chain is held, and each window group holds the blocks that
its window reaches back to. The block that ends there is a *hit point*.

A run is the number of blocks without a gap that a group holds up to a block, as far as its window
reaches. Where all runs are full there is a hit point; and a change is felt no further on than the
window is long.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from agent.blocks import GONE, Block
from agent.kv_events import BlockStored, EngineKey
from lineside.ids import Medium

Run: TypeAlias = tuple[int, int, int]
"""Blocks held in gpu; in gpu or cpu; in gpu, cpu or disk."""

Copies: TypeAlias = dict[tuple[int, Medium], dict[EngineKey, int]]

_NO_RUN: Run = (0, 0, 0)
_TO_THE_START = sys.maxsize

_WINDOWS = {"sliding_window", "sliding_window_mla"}
_KIND_CHARS = 40
"""Of an unknown kind: a reason is for people."""


class NotMatched(ValueError):
    """A KV group whose part in a hit is not known. The text is the reason, for people."""


class _Group:
    """One group: how many blocks before a hit it needs, and the runs of those it holds."""

    __slots__ = ("reach", "runs")

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.runs: dict[EngineKey, Run] = {}


class Windows:
    """The KV groups of one engine beside the one that its chain comes from.

    Given `reaches` and `copies` of a checkpoint, every block has to be placed and judged next.
    """

    def __init__(
        self, reaches: Mapping[int, int] | None = None, copies: Copies | None = None
    ) -> None:
        self._groups = {number: _Group(reach) for number, reach in (reaches or {}).items()}
        self.copies = copies or {}
        """Of each block, by KV group and medium. Groups not admitted yet are among them."""
        self._hits: dict[EngineKey, int] = {}

    def copy(self) -> "Windows":
        """Return the groups with their copies, without what follows from them and the chain."""
        return Windows(self.reaches(), {place: dict(of) for place, of in self.copies.items()})

    def reaches(self) -> dict[int, int]:
        """Return how many blocks before a hit each known group needs."""
        return {number: group.reach for number, group in self._groups.items()}

    def admit(self, event: BlockStored) -> bool:
        """Learn what a group needs; return whether it is new. Raises `NotMatched`.

        After a new one everything has to be judged afresh.
        """
        known, reach = self._groups.get(event.group), _reach(event)
        if known is not None:
            if known.reach != reach:
                raise NotMatched(f"KV group {event.group} has changed what it keeps")
            return False
        self._groups[event.group] = _Group(reach)
        self._hits.clear()
        return True

    def stop(self) -> None:
        """Know no hit points any more. Copies are still counted."""
        self._groups.clear()
        self._hits.clear()

    def empty(self) -> None:
        """Forget the blocks of all groups, not the groups."""
        self.copies.clear()
        self._hits.clear()
        for group in self._groups.values():
            group.runs.clear()

    # --- copies -----------------------------------------------------------------------------------

    def store(self, group: int, medium: Medium, key: EngineKey) -> bool:
        """Count a copy; return whether it is the first one there."""
        copies = self.copies.setdefault((group, medium), {})
        copies[key] = before = copies.get(key, 0) + 1
        return before == 1

    def remove(self, group: int, medium: Medium, key: EngineKey) -> int | None:
        """Count a copy less; return how many are left there. `None`: there was none."""
        copies = self.copies.get((group, medium), {})
        if key not in copies:
            return None
        copies[key] -= 1
        return copies[key] or copies.pop(key)

    def holds(self, group: int, medium: Medium, key: EngineKey) -> bool:
        """Tell whether there is a copy there."""
        return key in self.copies.get((group, medium), ())

    def _level(self, group: int, key: EngineKey) -> int:
        for medium in Medium:
            if key in self.copies.get((group, medium), ()):
                return medium
        return GONE

    # --- runs and hit points ----------------------------------------------------------------------

    def place(self, block: Block) -> None:
        """Begin with a block that has got its place in the chain, and has nothing below it."""
        for number, group in self._groups.items():
            run = self._run(number, group, block)
            if run != _NO_RUN:
                group.runs[block.engine_key] = run

    def displace(self, key: EngineKey) -> None:
        """Forget the place of a block that has nothing below it. Its copies stay."""
        for group in self._groups.values():
            group.runs.pop(key, None)

    def settle(self, number: int, block: Block) -> Iterator[Block]:
        """Bring a group's runs in line with its copies of a block that has a place.

        Gives the blocks to judge anew. Touches what changes and one step beyond.
        """
        group = self._groups.get(number)
        pending = [block] if group is not None else []
        while group is not None and pending:
            block = pending.pop()
            before = group.runs.get(block.engine_key, _NO_RUN)
            run = self._run(number, group, block)
            if run == before:
                continue
            if run == _NO_RUN:
                del group.runs[block.engine_key]
            else:
                group.runs[block.engine_key] = run
            yield block
            pending.extend(block.below())

    def _run(self, number: int, group: _Group, block: Block) -> Run:
        level = self._level(number, block.engine_key)
        if level == GONE:
            return _NO_RUN
        reach, parent = group.reach, block.parent
        if parent is None:
            before = (reach, reach, reach)
        else:
            before = group.runs.get(parent.engine_key, _NO_RUN)
        gpu, cpu, disk = (
            min(reach, length + 1) if level <= medium else 0
            for medium, length in zip(Medium, before, strict=True)
        )
        return gpu, cpu, disk

    def judge(self, block: Block) -> tuple[int, int]:
        """Return the level of a block as a hit point: what it was at the last call, what it is."""
        key, level = block.engine_key, block.level
        for group in self._groups.values():
            if level == GONE:
                break
            run = group.runs.get(key, _NO_RUN)
            level = max(level, run.index(group.reach) if group.reach in run else GONE)
        before = self._hits.get(key, GONE)
        if level != before:
            if level == GONE:
                del self._hits[key]
            else:
                self._hits[key] = level
        return before, level


def _reach(event: BlockStored) -> int:
    """Return how many blocks before a hit an event's group needs. Raises `NotMatched`."""
    group, kind = event.group, event.kind
    if kind is None:
        raise NotMatched(f"KV group {group} does not tell its kind")
    if event.full_attention:
        return _TO_THE_START
    if kind not in _WINDOWS:
        raise NotMatched(f"KV groups of kind `{kind[:_KIND_CHARS]}` are not matched yet")
    if not event.window or event.window < 1:
        raise NotMatched(f"KV group {group} does not tell its window")
    if event.block_size < 1:
        raise NotMatched(f"KV group {group} does not tell its block size")
    return -(-(event.window - 1) // event.block_size)
