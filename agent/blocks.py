"""One engine's tree of blocks: each prompt's blocks in order, shared beginnings once. Pure.

Written by the engine's `Residency` alone; `agent.hybrid` reads it.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from agent.kv_events import EngineKey
from lineside.hashing import strided
from lineside.ids import BlockKey, Medium

GONE = len(Medium)
"""The level of what is not servable: slower than every medium, so that `max` hands it down."""

# Counts by medium, packed into one integer to save memory: 32 bits each, far more than an engine
# has blocks. A block held once on the GPU counts 1, which Python keeps one object of.
_BITS = 32
MASK = 2**_BITS - 1
ONE = tuple(1 << _BITS * medium for medium in Medium)

KEY_BYTES = 8


class Block:
    """An engine key. One without `key` is held, but what it means is not known: it has no place."""

    __slots__ = (
        "children",
        "copies",
        "engine_key",
        "inner",
        "key",
        "level",
        "parent",
        "phase",
        "reported",
    )

    def __init__(self, engine_key: EngineKey) -> None:
        self.engine_key = engine_key
        self.copies = 0
        self.level = GONE
        self.key: BlockKey | None = None  # of its last unit
        self.inner = b""  # the keys of the units before, packed: any stride can be reported
        self.phase = 0  # units from the start of the prompt to its end, modulo the stride
        self.reported: tuple[BlockKey, ...] = ()
        self.parent: Block | None = None  # `None`: first of its prompt
        # Most blocks have one child, and a set costs twice a block.
        self.children: Block | set[Block] | None = None

    def place(self, keys: Sequence[BlockKey], stride: int) -> None:
        """Take the keys of its units, and find those that are reported, counting on from before.

        The block before has its place already.
        """
        self.key = keys[-1]
        if len(keys) > 1:
            self.inner = array("Q", keys[:-1]).tobytes()
        before = 0 if self.parent is None else self.parent.phase
        phase = before + len(keys)
        if phase >= stride:
            self.reported = tuple(strided(keys, stride, before + 1))
            phase %= stride
        self.phase = phase

    def restride(self, stride: int) -> None:
        """Find the keys that are reported at another stride. The block before has done so."""
        before = 0 if self.parent is None else self.parent.phase
        phase = before + len(self.inner) // KEY_BYTES + 1
        self.reported = ()
        if phase >= stride and self.key is not None:
            inner = cast(Sequence[BlockKey], array("Q", self.inner)) if self.inner else ()
            self.reported = tuple(strided([*inner, self.key], stride, before + 1))
            phase %= stride
        self.phase = phase

    def below(self) -> "Iterable[Block]":
        """Return the blocks that follow this one."""
        children = self.children
        if children is None:
            return ()
        return children if isinstance(children, set) else (children,)

    def adopt(self, child: "Block") -> None:
        """Let a block follow this one."""
        child.parent = self
        if self.children is None:
            self.children = child
        elif isinstance(self.children, set):
            self.children.add(child)
        else:
            self.children = {self.children, child}

    def disown(self, child: "Block") -> None:
        """Undo `adopt`."""
        child.parent = None
        if isinstance(self.children, set):
            self.children.discard(child)
            if self.children:
                return
        self.children = None


def downwards(blocks: Iterable[Block]) -> Iterator[Block]:
    """Return the blocks that have a place, each after the one before it."""
    pending = [block for block in blocks if block.parent is None and block.key is not None]
    while pending:
        block = pending.pop()
        yield block
        pending.extend(block.below())


def fastest(counts: int) -> int:
    """Return the fastest medium that counts something, as a level."""
    if counts & MASK:
        return 0
    if not counts:
        return GONE
    return 1 if counts >> _BITS & MASK else 2


def total(counts: int) -> int:
    """Return the copies in all media."""
    return sum(counts >> _BITS * medium & MASK for medium in Medium)
