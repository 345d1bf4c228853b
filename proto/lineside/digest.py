"""Digests as values, their checksum, their packing, their limits. Pure; the only digest codec."""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, repeat, starmap
from typing import TypeAlias, cast

from xxhash import xxh3_64_intdigest

from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.v1 import agents_pb2 as pb

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

CHUNK_KEYS = 2048
"""Keys in one message: applied in one step of the coordinator's loop, about 1 ms."""

MAX_KEYS = CHUNK_KEYS
"""A message with more is refused as malformed."""

MAX_DELTAS = 64
"""Deltas in one message: applied in one step too, and each costs as much as a dozen keys."""

MAX_REPORTS = 512
"""Statuses, and loads, in one message."""

MAX_CLAIMED = 256
"""Keys of one engine in a word on what is in flight; of more claims the common beginnings are told.
"""

KEY_BYTES = 8

MAX_HANDLES = 4096
"""Engines and generations that one stream can name at a time."""

MASK = 2**64 - 1

Held: TypeAlias = tuple[BlockKey, Medium]


class MalformedDigest(ValueError):
    """A message that no correct peer sends. Says which field is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk:
    """A part of an engine's holdings at `digest_seq`. `count` and `checksum` hold on the last."""

    engine: EngineId
    generation: Generation
    digest_seq: int
    chunk: int
    last: bool
    keys: Sequence[Held]
    count: int
    checksum: int
    stride: int
    media: int
    hit_points: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed since `digest_seq - 1`; `count` and `checksum` are those after it."""

    engine: EngineId
    generation: Generation
    digest_seq: int
    added: Sequence[Held]
    removed: Sequence[Held]
    count: int
    checksum: int


_FINGERPRINT = struct.Struct("<QB")


def checksum(held: Iterable[Held]) -> int:
    """Return the checksum of holdings in any order: what each adds, modulo 2^64."""
    return sum(map(xxh3_64_intdigest, starmap(_FINGERPRINT.pack, held))) & MASK


TOO_MANY_KEYS = f"more than {MAX_KEYS} keys in one message"

_WIRE = {Medium.GPU: pb.GPU, Medium.CPU: pb.CPU, Medium.DISK: pb.DISK}
_READ = {wire: medium for medium, wire in _WIRE.items()}


def pack_keys(held: Sequence[Held]) -> list[pb.MediumKeys]:
    """Pack keys by medium, 8 bytes little-endian each."""
    by_medium: dict[Medium, list[BlockKey]] = {}
    for key, medium in held:
        by_medium.setdefault(medium, []).append(key)
    return [
        pb.MediumKeys(medium=_WIRE[medium], keys=_little_endian(array("Q", keys)).tobytes())
        for medium, keys in sorted(by_medium.items())
    ]


def unpack_keys(packed: Iterable[pb.MediumKeys]) -> list[Held]:
    """Unpack keys by medium. Raises `MalformedDigest`."""
    held: list[Held] = []
    for part in packed:
        keys = part.keys
        count, torn = divmod(len(keys), 8)
        if torn:
            raise MalformedDigest("`keys` is not a multiple of 8 bytes")
        if (medium := _READ.get(part.medium)) is None:
            raise MalformedDigest(f"medium `{part.medium}` is not known")
        if len(held) + count > MAX_KEYS:
            raise MalformedDigest(TOO_MANY_KEYS)
        numbers = _little_endian(array("Q", keys))
        held.extend(zip(cast(Iterable[BlockKey], numbers), repeat(medium)))
    return held


def _little_endian(numbers: "array[int]") -> "array[int]":
    """Turn numbers as this machine writes them into those of the wire, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def encode_snapshot(chunk: SnapshotChunk) -> pb.SnapshotChunk:
    """Translate to the wire."""
    return pb.SnapshotChunk(
        engine=chunk.engine,
        generation=chunk.generation,
        digest_seq=chunk.digest_seq,
        chunk=chunk.chunk,
        last=chunk.last,
        keys=pack_keys(chunk.keys),
        count=chunk.count,
        checksum=chunk.checksum,
        stride=chunk.stride,
        media=chunk.media,
        kind=pb.HIT_POINTS if chunk.hit_points else pb.STRIDED,
    )


def decode_snapshot(wire: pb.SnapshotChunk) -> SnapshotChunk:
    """Translate from the wire. Raises `MalformedDigest`."""
    if wire.chunk == 0 and not (wire.stride >= 1 and 1 <= wire.media <= len(Medium)):
        raise MalformedDigest("the first chunk lacks `stride` or `media`")
    return SnapshotChunk(
        engine=EngineId(wire.engine),
        generation=Generation(wire.generation),
        digest_seq=wire.digest_seq,
        chunk=wire.chunk,
        last=wire.last,
        keys=unpack_keys(wire.keys),
        count=wire.count,
        checksum=wire.checksum,
        stride=wire.stride,
        media=wire.media,
        hit_points=wire.kind == pb.HIT_POINTS,
    )


class DeltaPacker:
    """Packs one stream's deltas; names each engine's generation once."""

    def __init__(self) -> None:
        self._handles: dict[EngineId, int] = {}
        self._named: dict[EngineId, Generation] = {}

    def pack(self, delta: Delta) -> pb.Delta:
        """Translate the next delta to the wire."""
        packed = pb.Delta(
            handle=self._handle(delta.engine),
            digest_seq=delta.digest_seq,
            added=pack_keys(delta.added),
            removed=pack_keys(delta.removed),
            count=delta.count,
            checksum=delta.checksum,
        )
        if self._named.get(delta.engine) != delta.generation:
            self._named[delta.engine] = delta.generation
            packed.engine, packed.generation = delta.engine, delta.generation
        return packed

    def forget(self, engine: EngineId) -> None:
        """Free the handle of an engine that is read no more."""
        self._handles.pop(engine, None)
        self._named.pop(engine, None)

    def _handle(self, engine: EngineId) -> int:
        if engine not in self._handles:
            used = set(self._handles.values())
            self._handles[engine] = next(number for number in count() if number not in used)
        return self._handles[engine]


class DeltaReader:
    """Reads one stream's deltas, in the order in which they were sent."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[EngineId, Generation]] = {}

    def read(self, packed: Sequence[pb.Delta]) -> list[Delta]:
        """Translate one message's deltas. Raises `MalformedDigest`."""
        if len(packed) > MAX_DELTAS:
            raise MalformedDigest(f"more than {MAX_DELTAS} deltas in one message")
        deltas = [self._delta(delta) for delta in packed]
        if sum(len(delta.added) + len(delta.removed) for delta in deltas) > MAX_KEYS:
            raise MalformedDigest(TOO_MANY_KEYS)
        return deltas

    def _delta(self, wire: pb.Delta) -> Delta:
        if wire.engine:
            if wire.handle >= MAX_HANDLES:
                raise MalformedDigest(f"a handle is not below {MAX_HANDLES}")
            self._named[wire.handle] = EngineId(wire.engine), Generation(wire.generation)
        if (named := self._named.get(wire.handle)) is None:
            raise MalformedDigest("a delta's handle stands for no engine")
        return Delta(
            *named,
            wire.digest_seq,
            unpack_keys(wire.added),
            unpack_keys(wire.removed),
            wire.count,
            wire.checksum,
        )
