"""KV events as vLLM 0.32.0 encodes them: a step's events to the payload of one message. Pure."""

from collections.abc import Sequence

import msgspec

from simulate.content import (
    AllBlocksCleared,
    BlockHash,
    BlockOffloaded,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Medium,
)


class _Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    """Fields in the order of the wire; those with a default are left out when equal to it."""

    block_hashes: list[int] | list[bytes]
    parent_block_hash: int | bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: Medium
    lora_name: str | None
    extra_keys: Sequence[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int] | list[bytes]
    medium: Medium
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", omit_defaults=True):
    pass


class BatchEncoder:
    """Turns a step's events into a payload.

    Hashes leave as their last 8 bytes, a big-endian unsigned integer, or whole with `byte_hashes`.
    """

    def __init__(self, *, byte_hashes: bool = False, rank: int = 0) -> None:
        self._byte_hashes = byte_hashes
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, ts: float, events: Sequence[KvEvent]) -> bytes:
        """Return the payload of one message; `ts` in Unix seconds."""
        return self._encoder.encode([ts, [self._wire(event) for event in events], self._rank])

    def _wire(self, event: KvEvent) -> _Stored | _Removed | _Cleared:
        match event:
            case BlockStored():
                return self._stored(event)
            case BlockOffloaded(block_hash, block_size):
                hashes = self._hashes([block_hash])
                return _Stored(hashes, None, (), block_size, None, "CPU", None)
            case BlockRemoved(block_hash, group, medium):
                told = group if medium == "GPU" else None
                return _Removed(self._hashes([block_hash]), medium, group_idx=told)
            case AllBlocksCleared():
                return _Cleared()

    def _stored(self, event: BlockStored) -> _Stored:
        return _Stored(
            block_hashes=self._hashes(event.block_hashes),
            parent_block_hash=self._hashes([event.parent])[0] if event.parent else None,
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=event.lora.number if event.lora else None,
            medium="GPU",
            lora_name=event.lora.name if event.lora else None,
            extra_keys=event.extra_keys,
            group_idx=event.group,
            kv_cache_spec_kind="sliding_window" if event.window else "full_attention",
            kv_cache_spec_sliding_window=event.window,
            session_id=event.session_id,
        )

    def _hashes(self, hashes: Sequence[BlockHash]) -> list[int] | list[bytes]:
        if self._byte_hashes:
            return list[bytes](hashes)
        return [int.from_bytes(block_hash[-8:], "big") for block_hash in hashes]
