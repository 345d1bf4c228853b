"""Token ids to block keys: chained xxh3_64 over units of 16 tokens. Pure.

Agent and coordinator both call this and nothing else, so that a prompt seen in an engine's events
and the same prompt seen in a request get the same keys. xxh3 is fast, not a MAC: a collision
misroutes one request, and isolation rests on salts, never on keys.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import cast

from xxhash import xxh3_64_intdigest

from lineside.ids import BlockKey

UNIT = 16
"""Tokens that a key covers beyond its parent."""

UNIT_BYTES = UNIT * 4
HASH = "xxh3_64"


def pack(token_ids: Iterable[int]) -> bytes:
    """Pack token ids as the chain reads them: uint32, little-endian.

    Raises `OverflowError` for an id below 0 or above 2^32 - 1.
    """
    packed = array("I", token_ids)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


_BIG_ENDIAN = array("I", [1]).tobytes()[0] == 0


def seed(secret: bytes, lora: str | None = None, salt: str | None = None) -> BlockKey:
    """Return the parent key of a prompt's first unit.

    The fields are length-prefixed, and absent differs from empty. The model is not among them: keys
    are compared within an engine group only, so that two served names of one model match.
    """
    return BlockKey(xxh3_64_intdigest(_field(secret) + _field(lora) + _field(salt)))


def _field(value: bytes | str | None) -> bytes:
    if value is None:
        return b"\xff" * 8
    raw = value if isinstance(value, bytes) else value.encode()
    return len(raw).to_bytes(8, "little") + raw


def mix(parent: BlockKey, media: Sequence[tuple[str, int]]) -> BlockKey:
    """Return the parent key for a unit in which media parts start.

    `media` holds (identifier, offset within the unit in tokens) of each part that starts in this
    unit, in order. A part is mixed in once; what follows inherits it through the chain.
    """
    mixed = parent.to_bytes(8, "little")
    for identifier, offset in media:
        mixed += _field(identifier) + offset.to_bytes(4, "little")
    return BlockKey(xxh3_64_intdigest(mixed))


def chain(parent: BlockKey, packed: bytes) -> list[BlockKey]:
    """Return the key of each whole unit in `packed`, following `parent`; ignore the rest.

    The hot loop of both processes: about 50 ns a unit in rows that `struct` cuts up at once, and
    twice that where a unit is sliced out by itself.
    """
    key: int = parent
    keys: list[int] = []
    rows = len(packed) // _ROW.size * _ROW.size
    if rows:
        whole = _ROW.iter_unpack(memoryview(packed)[:rows])
        keys = [key := xxh3_64_intdigest(unit, key) for row in whole for unit in row]
    ends = range(rows + UNIT_BYTES, len(packed) + 1, UNIT_BYTES)
    keys += [key := xxh3_64_intdigest(packed[end - UNIT_BYTES : end], key) for end in ends]
    return cast(list[BlockKey], keys)


_ROW = struct.Struct(f"{UNIT_BYTES}s" * 16)


def strided(keys: Sequence[BlockKey], stride: int, first_depth: int = 1) -> list[BlockKey]:
    """Return the keys whose absolute depth is a multiple of `stride`.

    `first_depth` is the depth of `keys[0]`, in units from 1.
    """
    return list(keys[(-first_depth) % stride :: stride])
