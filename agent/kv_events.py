"""What an engine's KV event publisher says, as values: frames in, events out. Pure.

The only place that knows the publisher's wire format (vLLM 0.10 to 0.33): maps and positional
arrays at both levels, fields that come and go, untagged extra keys. It keeps no state, computes no
block keys, and puts nothing of a message's content into an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from lineside.hashing import pack
from lineside.ids import Medium

EngineKey: TypeAlias = int | bytes
"""The engine's own hash of a block and its whole prefix; opaque. Integers are unsigned."""


class BlockStored(msgspec.Struct, frozen=True, gc=False):
    """A run of consecutive full blocks is in the cache, once more for each key."""

    keys: tuple[EngineKey, ...]
    parent: EngineKey | None
    """The block before the run; `None` at the start of a prompt."""
    packed: bytes
    """The run's token ids, packed for `lineside.hashing`; empty where the engine does not tell."""
    block_size: int
    medium: Medium
    group: int
    full_attention: bool
    lora: str | None
    salt: str | None
    media: tuple[tuple[str, int], ...]
    """(identifier, token of the run) for each media part that starts in the run, in order."""
    keyable: int
    """Leading blocks of the run that nothing but the fields above tells apart from others."""
    kind: str | None = None
    """Of KV group, in the engine's word; `None`: it does not tell. A group that is not of full
    attention lists only blocks that it keeps: its keys, then, are not those of the tokens."""
    window: int | None = None
    """Tokens that the group's attention reaches back to, itself included; `None`: not told."""


class BlockRemoved(msgspec.Struct, frozen=True, gc=False):
    """One copy of each key left the cache."""

    keys: tuple[EngineKey, ...]
    medium: Medium
    group: int


class AllBlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """The cache is empty: every medium, every group."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """One message: what happened in one engine step, in order. `rank` is `None` if not told."""

    seq: int
    ts: float
    rank: int | None
    events: tuple[KvEvent, ...]
    undecodable: int
    """Events left out because their type is unknown or their fields make no sense."""


class Undecodable(ValueError):
    """A message of which no event can be used. The text names the reason, never the content."""

    def __init__(self, reason: str, seq: int | None = None) -> None:
        super().__init__(reason)
        self.seq = seq
        """The message's sequence number, where that much can be read."""


REPLAY_END = b"\xff" * 8
"""Stands in the place of the sequence number in the last reply to a replay request."""


def decode(frames: Sequence[bytes]) -> Batch:
    """Read one message: [topic], sequence number, payload; frames in front are ignored.

    Raises `Undecodable`.
    """
    if len(frames) < 2:
        raise Undecodable(f"{len(frames)} frames instead of 2 or 3")
    number, payload = frames[-2], frames[-1]
    if len(number) != 8:
        raise Undecodable(f"a sequence number of {len(number)} bytes instead of 8")
    seq = int.from_bytes(number, "big")
    wire = _read_whole(payload) or _read_apart(payload, seq)
    read = [_event(event) for event in _joined(wire.events)]
    events = tuple(event for event in read if event is not None)
    return Batch(
        seq=seq,
        ts=wire.ts,
        rank=wire.data_parallel_rank,
        events=events,
        undecodable=len(read) - len(events),
    )


def _read_whole(payload: bytes) -> "_AnyBatch | None":
    """Read a batch and all its events at once; `None`: some of it makes no sense.

    An engine whose cache is full sends an event for each block that it evicts, hundreds in a step.
    """
    for decoder in (_MAP_WHOLE,) if _is_map(payload) else (_MIXED_WHOLE, _ARRAY_WHOLE):
        try:
            return decoder.decode(payload)
        except _UNREADABLE:
            pass
    return None


def _read_apart(payload: bytes, seq: int) -> "_AnyBatch":
    """Read a batch and leave its events packed. Raises `Undecodable`."""
    try:
        return (_MAP_BATCH if _is_map(payload) else _ARRAY_BATCH).decode(payload)
    except _UNREADABLE:
        raise Undecodable("the payload is not a batch of events", seq) from None


def replay_request(seq: int) -> list[bytes]:
    """Return the frames that ask for every batch still buffered from `seq` on."""
    return [b"", seq.to_bytes(8, "big")]


def is_replay_end(frames: Sequence[bytes]) -> bool:
    """Tell whether a reply is the end marker, which does not prove that the replay is whole."""
    return len(frames) >= 2 and frames[-2] == REPLAY_END


# --- the wire: maps from 0.24 on, arrays before; an array has the fields in this order ------------


class _Stored(msgspec.Struct, gc=False, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: list[int] | None = None
    block_size: int | None = None
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class _Removed(msgspec.Struct, gc=False, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, gc=False, tag="AllBlocksCleared"):
    pass


class _StoredArray(_Stored, array_like=True, gc=False, tag="BlockStored"):
    pass


class _RemovedArray(_Removed, array_like=True, gc=False, tag="BlockRemoved"):
    pass


class _ClearedArray(_Cleared, array_like=True, gc=False, tag="AllBlocksCleared"):
    pass


_MapEvent: TypeAlias = _Stored | _Removed | _Cleared
_ArrayEvent: TypeAlias = _StoredArray | _RemovedArray | _ClearedArray
_E = TypeVar("_E", _MapEvent, _ArrayEvent, msgspec.Raw)


class _Batch(msgspec.Struct, Generic[_E], array_like=True):
    ts: float
    events: list[_E]
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct, Generic[_E]):
    ts: float
    events: list[_E]
    data_parallel_rank: int | None = None


_AnyBatch: TypeAlias = _Batch[Any] | _MapBatch[Any]

_ARRAY_BATCH = msgspec.msgpack.Decoder(_Batch[msgspec.Raw])
_MAP_BATCH = msgspec.msgpack.Decoder(_MapBatch[msgspec.Raw])
_ARRAY_WHOLE = msgspec.msgpack.Decoder(_Batch[_ArrayEvent])
_MIXED_WHOLE = msgspec.msgpack.Decoder(_Batch[_MapEvent])
_MAP_WHOLE = msgspec.msgpack.Decoder(_MapBatch[_MapEvent])
_ARRAY_EVENT = msgspec.msgpack.Decoder(_ArrayEvent)
_MAP_EVENT = msgspec.msgpack.Decoder(_MapEvent)

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)

_MEDIA = {
    None: Medium.GPU,  # only the device's own cache leaves its medium out
    "GPU": Medium.GPU,
    "CPU": Medium.CPU,
    "STORAGE": Medium.DISK,
    "DISK": Medium.DISK,
}

_FULL_ATTENTION = {None, "full_attention", "mla_attention", "sink_full_attention"}
"""Kinds of KV group that keep every block of a prompt; `None` comes from engines before 0.22."""


def _is_map(packed: bytes | msgspec.Raw) -> bool:
    view = memoryview(packed)
    return len(view) > 0 and (0x80 <= view[0] <= 0x8F or view[0] in (0xDE, 0xDF))


def _joined(events: "Sequence[_MapEvent | msgspec.Raw]") -> "list[_MapEvent | msgspec.Raw]":
    """Make one removal of those that follow each other in a medium and a group.

    Taking events one by one costs more than what they say: an engine whose cache is full removes
    each block by an event of its own.
    """
    joined: list[_MapEvent | msgspec.Raw] = []
    last: _Removed | None = None
    for event in events:
        if not isinstance(event, _Removed):
            last = None
        elif last and (event.medium, event.group_idx) == (last.medium, last.group_idx):
            last.block_hashes += event.block_hashes
            continue
        else:
            last = event if event.medium in _MEDIA else None
        joined.append(event)
    return joined


def _event(wire: _MapEvent | msgspec.Raw) -> KvEvent | None:
    try:
        if isinstance(wire, msgspec.Raw):
            wire = (_MAP_EVENT if _is_map(wire) else _ARRAY_EVENT).decode(wire)
        if isinstance(wire, _Removed):
            return BlockRemoved(
                _engine_keys(wire.block_hashes), _MEDIA[wire.medium], wire.group_idx or 0
            )
        return _stored(wire) if isinstance(wire, _Stored) else AllBlocksCleared()
    except (*_UNREADABLE, KeyError):  # KeyError: a medium that we do not know
        return None


def _engine_keys(hashes: list[int | bytes]) -> tuple[EngineKey, ...]:
    return tuple([_unsigned(key) if type(key) is int and key < 0 else key for key in hashes])


def _unsigned(key: int) -> int:
    return key & (2**64 - 1)


def _stored(wire: _Stored) -> BlockStored:
    parent = wire.parent_block_hash
    block_size = wire.block_size or 0
    packed = pack(wire.token_ids or ())
    salt, media, keyable = _extras(wire, block_size)
    if not packed or len(packed) != 4 * block_size * len(wire.block_hashes):
        keyable = 0  # the engine does not say which tokens belong to which hash
    if wire.lora_id and wire.lora_name is None:
        keyable = 0  # before 0.14 an adapter has a number only, which means nothing elsewhere
    return BlockStored(
        keys=_engine_keys(wire.block_hashes),
        parent=_unsigned(parent) if isinstance(parent, int) else parent,
        packed=packed,
        block_size=block_size,
        medium=_MEDIA[wire.medium],
        group=wire.group_idx or 0,
        full_attention=wire.kv_cache_spec_kind in _FULL_ATTENTION,
        lora=wire.lora_name,
        salt=salt,
        media=media,
        keyable=keyable,
        kind=wire.kv_cache_spec_kind,
        window=wire.kv_cache_spec_sliding_window,
    )


def _extras(wire: _Stored, block_size: int) -> tuple[str | None, tuple[tuple[str, int], ...], int]:
    """Sort out a run's extra keys: (salt, starts of media parts, leading blocks understood).

    They come untagged, for each block in this order: LoRA name, media parts, cache salt (first
    block of a prompt only), digests of prompt embeddings. A media part is a pair on every block
    that it touches; its offset is negative where it goes on from a block before. Up to 0.19 it was
    a bare identifier, which does not tell where the part starts. On a prompt's first block such an
    identifier is taken for a salt: its keys then match no request, which is no loss.
    """
    count = len(wire.block_hashes)
    if wire.extra_keys is None or not any(wire.extra_keys):
        return None, (), count
    if len(wire.extra_keys) != count:
        return None, (), 0
    salt: str | None = None
    media: list[tuple[str, int]] = []
    for index, extra in enumerate(wire.extra_keys):
        first_block = index == 0 and wire.parent_block_hash is None
        for place, value in enumerate(extra or ()):
            match value:
                case str() if place == 0 and value == wire.lora_name:
                    pass
                case [str() as identifier, int() as offset] if offset < block_size:
                    if offset >= 0:
                        media.append((identifier, index * block_size + offset))
                case str() if first_block and salt is None:
                    salt = value
                case _:
                    understood = index * block_size
                    return salt, tuple(part for part in media if part[1] < understood), index
    return salt, tuple(media), count
