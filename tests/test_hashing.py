"""Block keys: the chain, the seed, media, stride."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from lineside.hashing import UNIT, chain, mix, pack, seed, strided
from lineside.ids import BlockKey

SEED = seed(b"secret")
TOKENS = list(range(100, 100 + 5 * UNIT))


def test_a_key_is_xxh3_64_of_sixteen_little_endian_tokens_seeded_by_its_parent() -> None:
    first = xxh3_64_intdigest(struct.pack("<16I", *TOKENS[:16]), SEED)
    second = xxh3_64_intdigest(struct.pack("<16I", *TOKENS[16:32]), first)
    assert chain(SEED, pack(TOKENS[:32])) == [first, second]


@pytest.mark.parametrize("tokens", [255, 256, 257, 271, 272, 511, 512, 513, 1000])
def test_rows_of_units_get_the_keys_that_each_unit_gets_alone(tokens: int) -> None:
    packed, key, alone = pack(range(7, 7 + tokens)), SEED, []
    for end in range(64, len(packed) + 1, 64):
        (key,) = chain(key, packed[end - 64 : end])
        alone.append(key)
    assert chain(SEED, packed) == alone


def test_the_published_values_never_change() -> None:
    """Agents and coordinators of different releases must agree: these are the protocol."""
    assert chain(seed(b"secret"), pack(range(48))) == [
        0xD5D974BF54E1F67B,
        0x28195B85942F546F,
        0x61D14606475A1202,
    ]
    assert seed(b"secret", lora="sql", salt="tenant-a") == 0xA0C21C5B3ABD3836
    assert mix(BlockKey(7), [("image", 3)]) == 0x85168E010FCC6EE7


@pytest.mark.parametrize(
    "count", [pytest.param(n, id=f"{n} tokens") for n in (0, 1, 15, 16, 17, 31, 32, 79)]
)
def test_a_partly_filled_unit_has_no_key(count: int) -> None:
    assert len(chain(SEED, pack(TOKENS[:count]))) == count // UNIT


@given(st.lists(st.integers(0, 2**32 - 1), max_size=200), st.integers(0, 12))
def test_a_chain_can_be_continued_at_any_unit(tokens: list[int], cut: int) -> None:
    whole = chain(SEED, pack(tokens))
    head = chain(SEED, pack(tokens[: cut * UNIT]))
    tail = chain(head[-1] if head else SEED, pack(tokens[cut * UNIT :]))
    assert head + tail == whole


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(seed(b"other"), id="another cluster"),
        pytest.param(seed(b"secret", lora="sql"), id="an adapter"),
        pytest.param(seed(b"secret", lora=""), id="an empty adapter name is not none"),
        pytest.param(seed(b"secret", salt="sql"), id="a salt is not an adapter"),
        pytest.param(seed(b"secret", salt=""), id="an empty salt is not none"),
        pytest.param(seed(b"secret", lora="a", salt="bc"), id="both"),
        pytest.param(seed(b"secret", lora="ab", salt="c"), id="both, cut elsewhere"),
    ],
)
def test_seeds_of_different_scopes_share_no_key(other: BlockKey) -> None:
    assert not set(chain(SEED, pack(TOKENS))) & set(chain(other, pack(TOKENS)))


def test_media_change_the_unit_in_which_they_start_and_all_that_follows() -> None:
    plain = chain(SEED, pack(TOKENS))
    with_image = plain[:2] + chain(mix(plain[1], [("image", 4)]), pack(TOKENS[32:]))
    moved = plain[:2] + chain(mix(plain[1], [("image", 5)]), pack(TOKENS[32:]))
    assert not set(plain[2:]) & set(with_image[2:])
    assert not set(moved[2:]) & set(with_image[2:])


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 40))
def test_strides_count_absolute_depth(stride: int, count: int, start: int) -> None:
    keys = [BlockKey(depth) for depth in range(1, count + 1)]
    expected = [key for key in keys if key % stride == 0]
    cut = min(start, count)
    assert strided(keys[:cut], stride) + strided(keys[cut:], stride, cut + 1) == expected


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_out_of_range_is_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        pack([token])
