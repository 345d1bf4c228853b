"""The digest codec: what goes on the wire, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside.digest import (
    MASK,
    MAX_DELTAS,
    MAX_HANDLES,
    MAX_KEYS,
    Delta,
    DeltaPacker,
    DeltaReader,
    Held,
    MalformedDigest,
    SnapshotChunk,
    checksum,
    decode_snapshot,
    encode_snapshot,
)
from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.v1 import agents_pb2 as pb

KEYS = st.tuples(st.integers(0, MASK).map(BlockKey), st.sampled_from(Medium))
HOLDINGS = st.lists(KEYS, unique=True, max_size=40)


BY_MEDIUM = HOLDINGS.map(lambda held: sorted(held, key=lambda each: each[1]))
DELTAS = st.builds(
    Delta,
    st.sampled_from("abc").map(EngineId),
    st.sampled_from("gh").map(Generation),
    digest_seq=st.integers(0, 2**63),
    added=BY_MEDIUM,
    removed=BY_MEDIUM,
    count=st.integers(0, 2**32),
    checksum=st.integers(0, MASK),
)


@given(st.lists(DELTAS, max_size=12), st.sampled_from(["", "a"]))
def test_deltas_survive_the_wire_in_order(deltas: list[Delta], forgotten: str) -> None:
    packer, reader, read = DeltaPacker(), DeltaReader(), []
    for delta in deltas:
        packed = pb.Delta.FromString(packer.pack(delta).SerializeToString())
        read += reader.read([packed])
        packer.forget(EngineId(forgotten))  # and assigned anew
    assert read == deltas


def test_engine_and_generation_are_named_once() -> None:
    packer = DeltaPacker()
    said = [("a", "g"), ("b", "g"), ("a", "g"), ("b", "h"), ("b", "h")]
    packed = [
        packer.pack(Delta(EngineId(engine), Generation(generation), 1, [], [], 0, 0))
        for engine, generation in said
    ]
    assert [(delta.handle, delta.engine, delta.generation) for delta in packed] == [
        (0, "a", "g"),
        (1, "b", "g"),
        (0, "", ""),
        (1, "b", "h"),
        (1, "", ""),
    ]


@pytest.mark.parametrize(
    ("deltas", "says"),
    [
        pytest.param([pb.Delta(handle=3)], "stands for no engine", id="a handle never named"),
        pytest.param(
            [pb.Delta(handle=MAX_HANDLES, engine="e")], "not below", id="a handle out of bounds"
        ),
        pytest.param(
            [pb.Delta(engine="e")] * (MAX_DELTAS + 1), "more than 64 deltas", id="many deltas"
        ),
        pytest.param(
            [pb.Delta(engine="e", added=[pb.MediumKeys(keys=b"8" * 8 * 1100)])] * 2,
            "more than 2048 keys",
            id="many keys in two deltas",
        ),
    ],
)
def test_malformed_deltas_are_refused_by_name(deltas: list[pb.Delta], says: str) -> None:
    with pytest.raises(MalformedDigest, match=says):
        DeltaReader().read(deltas)


@given(HOLDINGS, st.booleans(), st.booleans())
def test_a_snapshot_chunk_survives_the_wire(keys: list[Held], last: bool, hits: bool) -> None:
    chunk = SnapshotChunk(
        engine=EngineId("e"),
        generation=Generation("g"),
        digest_seq=7,
        chunk=0,
        last=last,
        keys=sorted(keys),
        count=1,
        checksum=2,
        stride=4,
        media=3,
        hit_points=hits,
    )
    read = decode_snapshot(pb.SnapshotChunk.FromString(encode_snapshot(chunk).SerializeToString()))
    assert sorted(read.keys) == chunk.keys
    assert (read.last, read.hit_points, read.stride, read.media) == (last, hits, 4, 3)


@given(HOLDINGS, st.randoms())
def test_the_checksum_is_a_sum_over_keys_in_any_order(keys: list[Held], random: object) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert checksum(shuffled) == sum(checksum([held]) for held in keys) & MASK


def test_a_key_counts_differently_in_each_medium() -> None:
    assert len({checksum([(BlockKey(1), medium)]) for medium in Medium}) == len(Medium)


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
        DeltaReader().read([pb.Delta(engine="e", added=[keys])])


@pytest.mark.parametrize(("stride", "media"), [(0, 1), (4, 0), (4, 4)])
def test_a_first_chunk_must_say_stride_and_media(stride: int, media: int) -> None:
    with pytest.raises(MalformedDigest, match="lacks"):
        decode_snapshot(pb.SnapshotChunk(engine="e", stride=stride, media=media))
