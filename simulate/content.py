"""What a block contains: its hash, what separates equal tokens, and the events about it. Pure."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NewType

BlockHash = NewType("BlockHash", bytes)
"""SHA-256 over parent, tokens and extra keys: opaque, equal on every engine for equal content."""

Medium = Literal["GPU", "CPU"]

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
    """A run of consecutive full blocks of one prompt now has content.

    With a `window`, tokens and parent span the run, and the hashes are those of the blocks in it
    that the sliding-window group keeps: any number, also none.
    """

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    lora: Lora | None
    extra_keys: Sequence[list[str] | None] | None
    session_id: str | None
    group: int = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BlockOffloaded:
    """A block is in CPU memory now; its tokens were told when it was stored on the GPU."""

    block_hash: BlockHash
    block_size: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One copy of a block was evicted."""

    block_hash: BlockHash
    group: int = 0
    medium: Medium = "GPU"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was emptied."""


KvEvent = BlockStored | BlockOffloaded | BlockRemoved | AllBlocksCleared


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
