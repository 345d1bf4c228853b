"""The simulated engine's event encoding, byte by byte against the captures."""

from typing import Any

import msgspec
import pytest

from simulate.content import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Lora,
)
from simulate.events import BatchEncoder
from tests.captures import frames, rows


def as_hash(wire: int | bytes) -> BlockHash:
    return BlockHash(wire if isinstance(wire, bytes) else wire.to_bytes(32, "big"))


def as_event(wire: dict[str, Any]) -> KvEvent:
    match wire["type"]:
        case "BlockStored":
            parent, lora = wire["parent_block_hash"], wire["lora_name"]
            return BlockStored(
                block_hashes=[as_hash(value) for value in wire["block_hashes"]],
                parent=None if parent is None else as_hash(parent),
                token_ids=wire["token_ids"],
                block_size=wire["block_size"],
                lora=None if lora is None else Lora(wire["lora_id"], lora),
                extra_keys=wire["extra_keys"],
                session_id=wire.get("session_id"),
            )
        case "BlockRemoved":
            return BlockRemoved(as_hash(wire["block_hashes"][0]))
        case _:
            return AllBlocksCleared()


@pytest.mark.parametrize(
    ("capture", "byte_hashes", "rank"),
    [
        pytest.param("main", False, 0, id="64-bit integer hashes"),
        pytest.param("bytes_cbor_lora", True, 0, id="32-byte hashes and an adapter"),
        pytest.param("dp2_rank1", False, 1, id="a second rank"),
        pytest.param("restart", False, 0, id="after restarts"),
    ],
)
def test_recorded_batches_encode_to_the_recorded_bytes(
    capture: str, byte_hashes: bool, rank: int
) -> None:
    encoder = BatchEncoder(byte_hashes=byte_hashes, rank=rank)
    payloads = [frames(row)[-1] for row in rows(capture)]
    assert payloads
    for payload in payloads:
        ts, events, _ = msgspec.msgpack.decode(payload)
        assert encoder.encode(ts, [as_event(event) for event in events]) == payload
