"""The digest codec: what goes on the wire, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside.digest import (
    MASK,
    MAX_KEYS,
    Delta,
    Held,
    MalformedDigest,
    SnapshotChunk,
    checksum,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
    fingerprint,
)
from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.v1 import agents_pb2 as pb

KEYS = st.tuples(st.integers(0, MASK).map(BlockKey), st.sampled_from(Medium))
HOLDINGS = st.lists(KEYS, unique=True, max_size=40)


@given(HOLDINGS, HOLDINGS, st.integers(0, MASK))
def test_a_delta_survives_the_wire(added: list[Held], removed: list[Held], total: int) -> None:
    delta = Delta(EngineId("e"), Generation("g"), 7, sorted(added), sorted(removed), 3, total)
    read = decode_delta(pb.Delta.FromString(encode_delta(delta).SerializeToString()))
    assert (sorted(read.added), sorted(read.removed)) == (delta.added, delta.removed)
    assert (read.engine, read.generation, read.digest_seq) == ("e", "g", 7)
    assert (read.count, read.checksum) == (3, total)


@given(HOLDINGS, st.booleans(), st.booleans())
def test_a_snapshot_chunk_survives_the_wire(keys: list[Held], last: bool, hits: bool) -> None:
    chunk = SnapshotChunk(
        EngineId("e"), Generation("g"), 7, 0, last, sorted(keys), 1, 2, 4, 3, hit_points=hits
    )
    read = decode_snapshot(pb.SnapshotChunk.FromString(encode_snapshot(chunk).SerializeToString()))
    assert sorted(read.keys) == chunk.keys
    assert (read.last, read.hit_points, read.stride, read.media) == (last, hits, 4, 3)


@given(HOLDINGS, st.randoms())
def test_the_checksum_is_a_sum_over_keys_in_any_order(keys: list[Held], random: object) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert checksum(shuffled) == sum(fingerprint(*held) for held in keys) & MASK


def test_a_key_counts_differently_in_each_medium() -> None:
    assert len({fingerprint(BlockKey(1), medium) for medium in Medium}) == len(Medium)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(pb.MediumKeys(keys=b"1234567"), "multiple of 8", id="a torn key"),
        pytest.param(pb.MediumKeys(medium=9, keys=b"8" * 8), "not known", id="an unknown medium"),
        pytest.param(
            pb.MediumKeys(keys=b"8" * 8 * (MAX_KEYS + 1)), "more than", id="more keys than allowed"
        ),
    ],
)
def test_malformed_keys_are_refused_by_name(keys: pb.MediumKeys, message: str) -> None:
    with pytest.raises(MalformedDigest, match=message):
        decode_delta(pb.Delta(engine="e", added=[keys]))


@pytest.mark.parametrize(("stride", "media"), [(0, 1), (4, 0), (4, 4)])
def test_a_first_chunk_must_say_stride_and_media(stride: int, media: int) -> None:
    with pytest.raises(MalformedDigest, match="lacks"):
        decode_snapshot(pb.SnapshotChunk(engine="e", stride=stride, media=media))
