"""Digests as values, their checksum, their packing, their limits. Pure; the only digest codec."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.v1 import agents_pb2 as pb

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

CHUNK_KEYS = 2048
"""Keys in one message: applied in one step of the coordinator's loop, about 1 ms."""

MAX_KEYS = CHUNK_KEYS
"""A message that adds or removes more is refused as malformed."""

MASK = 2**64 - 1

Held: TypeAlias = tuple[BlockKey, Medium]


class MalformedDigest(ValueError):
    """A message that no correct peer sends. Says which field is wrong."""


@dataclass(frozen=True, slots=True)
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


def fingerprint(key: BlockKey, medium: Medium) -> int:
    """Return what a held key adds to the checksum (sum modulo 2^64)."""
    return xxh3_64_intdigest(_FINGERPRINT.pack(key, medium))


_FINGERPRINT = struct.Struct("<QB")


def checksum(held: Iterable[Held]) -> int:
    """Return the checksum of whole holdings, in any order."""
    return sum(fingerprint(key, medium) for key, medium in held) & MASK


_WIRE = {Medium.GPU: pb.GPU, Medium.CPU: pb.CPU, Medium.DISK: pb.DISK}


def pack_keys(held: Sequence[Held]) -> list[pb.MediumKeys]:
    """Pack keys by medium, 8 bytes little-endian each."""
    packed = []
    for medium in Medium:
        keys = [key for key, at in held if at == medium]
        if keys:
            packed.append(
                pb.MediumKeys(medium=_WIRE[medium], keys=struct.pack(f"<{len(keys)}Q", *keys))
            )
    return packed


def unpack_keys(packed: Iterable[pb.MediumKeys]) -> list[Held]:
    """Unpack keys by medium. Raises `MalformedDigest`."""
    held: list[Held] = []
    for part in packed:
        if len(part.keys) % 8:
            raise MalformedDigest("`keys` is not a multiple of 8 bytes")
        try:
            medium = Medium(part.medium)
        except ValueError:
            raise MalformedDigest(f"medium `{part.medium}` is not known") from None
        held.extend((key, medium) for (key,) in struct.iter_unpack("<Q", part.keys))
        if len(held) > MAX_KEYS:
            raise MalformedDigest(f"more than {MAX_KEYS} keys in one message")
    return held


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


def encode_delta(delta: Delta) -> pb.Delta:
    """Translate to the wire."""
    return pb.Delta(
        engine=delta.engine,
        generation=delta.generation,
        digest_seq=delta.digest_seq,
        added=pack_keys(delta.added),
        removed=pack_keys(delta.removed),
        count=delta.count,
        checksum=delta.checksum,
    )


def decode_delta(wire: pb.Delta) -> Delta:
    """Translate from the wire. Raises `MalformedDigest`."""
    return Delta(
        engine=EngineId(wire.engine),
        generation=Generation(wire.generation),
        digest_seq=wire.digest_seq,
        added=unpack_keys(wire.added),
        removed=unpack_keys(wire.removed),
        count=wire.count,
        checksum=wire.checksum,
    )
