"""Globs cut all texts into regions: each has one witness, whatever the globs are."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.globs import compile_glob
from policies.regions import TooMany, witnesses

PATTERNS = st.lists(st.text("ab*", min_size=1, max_size=4), max_size=4)


def region(globs: list[str], text: str) -> tuple[bool, ...]:
    return tuple(compile_glob(glob)(text) for glob in globs)


@pytest.mark.parametrize(
    ("globs", "likely", "expected"),
    [
        pytest.param([], (), ("x",), id="no glob: one region"),
        pytest.param(["*"], (), ("x",), id="all texts fit"),
        pytest.param(["glm-5"], ("other",), ("other", "glm-5"), id="a name, and the rest"),
        pytest.param(
            ["glm-*", "glm-5"], (), ("glm-x", "glm-5", "g"), id="one glob within the other"
        ),
        pytest.param(["a*", "*b"], (), ("ax", "xb", "x", "ab"), id="globs that overlap"),
    ],
)
def test_there_is_one_witness_for_each_region(
    globs: list[str], likely: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert witnesses(globs, likely) == expected


@given(PATTERNS)
@settings(max_examples=100, deadline=None)
def test_every_text_is_in_the_region_of_a_witness(globs: list[str]) -> None:
    found = [region(globs, text) for text in witnesses(globs)]
    texts = ("".join(letters) for n in range(1, 6) for letters in product("abc", repeat=n))
    assert {region(globs, text) for text in texts} <= set(found)
    assert len(found) == len(set(found))


def test_too_many_regions_end_the_search() -> None:
    globs = [f"*{letter}{letter}*" for letter in "abcdefghijklmnop"]
    with pytest.raises(TooMany):
        witnesses(globs)


def test_a_thousand_names_are_few() -> None:
    assert len(witnesses([f"org/model-{n}" for n in range(1000)])) == 1001
