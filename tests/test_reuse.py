"""Reusing the ids of a chat's turns gives the ids of the whole text, or is not done."""

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fastokens
import msgspec
import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator.canonical import Api, Canonical, parse
from coordinator.tokens import reuse
from coordinator.tokens.rendering import NotRendered
from coordinator.tokens.reuse import ENTRY_BYTES, AddedToken, NoReuse, Reuse, Reused, reuse_of
from coordinator.tokens.tokenizer import Tokenizer
from lineside.hashing import pack
from tests.conversations import LETTERS, PIECES

MODEL = Path(__file__).parents[1] / "simulate" / "model"
MARK = "<|im_start|>"
CHAT = f"{MARK}user\nhello<|im_end|>\n{MARK}assistant\nHi."


# --- variants of a tokenizer ----------------------------------------------------------------------

OTHERS = (
    {"content": "<|"},
    {"content": "start|>x"},
    {"content": "\n<|im"},
    {"content": "a<|im_start|>"},
    {"content": "<|im_start|>user"},
    {"content": "word", "single_word": True},
    {"content": "<end>", "rstrip": True},
    {"content": "<begin>", "lstrip": True},
    {"content": "  ", "normalized": True},
    {"content": "hello", "normalized": True},
)
"""Tokens beside the model's own, some of which get in the way of its marks."""

NORMALIZERS = (
    None,
    {"type": "NFC"},
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": "e"}, "content": "<|im_start|>"},
)
"""Without `Strip`, which makes the library panic beside tokens that are found after normalizing."""

SPLITTERS = (
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
    {"type": "WhitespaceSplit"},
)
FLAGS = ("normalized", "single_word", "lstrip", "rstrip")


@dataclass(frozen=True)
class Variant:
    """What is different from the small model's tokenizer.json: what may reach over a cut."""

    normalizer: int = 0
    splitter: int = 0
    flags: tuple[str | None, ...] = (None, None, None)
    """One for each of the model's own tokens."""
    others: tuple[int, ...] = ()

    def described(self) -> str:
        described = json.loads((MODEL / "tokenizer.json").read_text())
        described["normalizer"] = NORMALIZERS[self.normalizer]
        described["pre_tokenizer"] = (described["pre_tokenizer"], *SPLITTERS)[self.splitter]
        for token, flag in zip(described["added_tokens"], self.flags, strict=True):
            token |= {flag: True} if flag else {}
        number = max(described["model"]["vocab"].values()) + 10
        for place, other in enumerate(self.others):
            flags = dict.fromkeys((*FLAGS, "special"), False)
            described["added_tokens"].append({"id": number + place, **flags, **OTHERS[other]})
        return json.dumps(described)


variants = st.builds(
    Variant,
    st.integers(0, len(NORMALIZERS) - 1),
    st.integers(0, len(SPLITTERS)),
    st.tuples(*[st.sampled_from((None, None, *FLAGS))] * 3),
    st.lists(st.integers(0, len(OTHERS) - 1), max_size=2, unique=True).map(tuple),
)


@cache
def slow(variant: Variant = Variant()) -> tuple[reuse.Whole, list[AddedToken]]:
    tokenizer = tokenizers.Tokenizer.from_str(variant.described())
    added = list(tokenizer.get_added_tokens_decoder().values())
    return (
        lambda text: pack(tokenizer.encode(text, add_special_tokens=False).ids),
        msgspec.convert(added, list[AddedToken], from_attributes=True),
    )


@cache
def fast(variant: Variant = Variant()) -> tuple[reuse.Whole, list[AddedToken]] | None:
    try:
        tokenizer = fastokens.Tokenizer.from_json_str(variant.described())
    except ValueError:  # it does not know this kind
        return None
    return (
        lambda text: bytes(tokenizer.encode_batch_flat([text], add_special_tokens=False)[0]),
        msgspec.convert(tokenizer.added_tokens(), list[AddedToken]),
    )


BITS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "start|>", "<end>", "<begin>", "<|"),
    *(" ", "  ", "\n", "word", "hello", "a", "x", "user\n", "<|im_start|>" * 2, "▁"),
    *(" <|im_start|> ", "a<|im_start|>user", "\n<|im_start|>x", "word<|im_start|>e"),
    *(piece[:12] for piece in PIECES),
)
texts = st.lists(st.one_of(st.sampled_from(BITS), st.text(LETTERS, max_size=4)), max_size=12).map(
    "".join
)


@settings(max_examples=40, deadline=None)
@given(variants, st.lists(texts, min_size=1, max_size=12), st.booleans())
def test_no_mark_is_taken_before_which_a_text_may_not_be_cut(
    variant: Variant, asked: list[str], is_fast: bool
) -> None:
    """Without the trial that `reuse_of` makes: the rule alone must do."""
    made = fast(variant) if is_fast else slow(variant)
    assume(made is not None)
    assert made is not None
    whole, added = made
    mark = reuse._mark_of(added, CHAT)
    assume(mark is not None)
    assert mark is not None
    kept = Reuse(mark, whole)
    for text in (*asked, *asked):
        assert kept.encode(text) == whole(text), (mark, text)


@settings(max_examples=30, deadline=None)
@given(st.lists(texts, min_size=1, max_size=20), st.sampled_from([400, 2000, 2**20]))
def test_texts_are_encoded_as_without_and_memory_stays_bounded(
    asked: list[str], limit: int
) -> None:
    for made in (fast, slow):
        found = made()
        assert found is not None
        whole, added = found
        kept = reuse_of(whole, added, CHAT, limit)
        for text in (*asked, *asked):
            assert kept.encode(text) == whole(text)
            assert kept.counts().kept_bytes <= limit


# --- which tokens may be cut before ---------------------------------------------------------------


def token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **{**dict.fromkeys(FLAGS[:3], False), **flags})


@pytest.mark.parametrize(
    ("added", "mark"),
    [
        pytest.param([token("<b>"), token("<e>")], "<b>", id="the first of those as frequent"),
        pytest.param([token("<b>"), token("<e>"), token("</s>")], "</s>", id="the most frequent"),
        pytest.param([token("<b>", lstrip=True), token("<e>")], "<e>", id="takes spaces before it"),
        pytest.param([token("<b>", normalized=True)], None, id="may come of normalizing"),
        pytest.param([token("<b>", single_word=True)], None, id="looks at what stands before it"),
        pytest.param([token("<b>"), token("\n<")], None, id="another may begin before it"),
        pytest.param([token("<b>"), token("x<b>y")], None, id="another contains it"),
        pytest.param([token("<b>"), token("<b>>")], None, id="another begins alike"),
        pytest.param([token("<b>"), token("<b")], "<b>", id="another is its beginning"),
        pytest.param([token("s</s")], None, id="it may overlap itself"),
        pytest.param([token("one")], None, id="it may end a word"),
        pytest.param([token("\u0301b>")], None, id="a mark of the letter before it"),
        pytest.param([token("\u24d1b>")], None, id="a symbol that is a letter"),
        pytest.param([token("\n<e>")], None, id="another may take its space"),
        pytest.param([token("<start>")], None, id="only at the start"),
        pytest.param([], None, id="none"),
    ],
)
def test_a_mark_can_be_cut_before_wherever_it_stands(
    added: list[AddedToken], mark: str | None
) -> None:
    chat = "<start><b>one</s>\n<e><b>two</s>\n<e></s>" + "\u0301b>\u24d1b>" * 2
    assert reuse._mark_of(added, chat) == mark


@pytest.mark.parametrize(
    ("other", "mark"),
    [
        pytest.param(token("<m>", normalized=True), "<b>", id="both are looked for together"),
        pytest.param(token("b>x"), None, id="begins later, and is looked for first"),
        pytest.param(token("b"), None, id="within it"),
        pytest.param(token("<b", lstrip=True), None, id="its beginning, with spaces before"),
        pytest.param(token("b>x", normalized=True), "<b>", id="begins later"),
    ],
)
def test_without_a_normalizer_a_token_that_wants_one_is_only_looked_for_later(
    other: AddedToken, mark: str | None
) -> None:
    added = [token("<b>", normalized=True), other]
    assert reuse._mark_of(added, "<b>one<b>two", normalizes=True) is None
    assert reuse._mark_of(added, "<b>one<b>two", normalizes=False) == mark


def test_an_encoder_that_looks_further_than_it_says_is_found_out() -> None:
    def first_only(text: str) -> bytes:
        return text.replace(" ", "_", 1).encode()

    with pytest.raises(NoReuse, match=r"^turns encode otherwise by themselves than in a chat$"):
        reuse_of(first_only, [token(MARK)], CHAT)


def test_without_a_mark_it_is_said_why() -> None:
    with pytest.raises(NoReuse, match=r"^no special token begins each turn of a chat$"):
        reuse_of(str.encode, [token("<|im_end|>")], CHAT)


# --- what is kept ---------------------------------------------------------------------------------


class Spy:
    """An encoder that gives four bytes for each letter, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> bytes:
        self.asked.append(text)
        return text.encode("utf-32-le")


def test_a_turn_is_encoded_once() -> None:
    spy = Spy()
    kept = Reuse("<m>", spy)
    assert kept.encode("top<m>one<m>two<m>") == "top<m>one<m>two<m>".encode("utf-32-le")
    assert spy.asked == ["top", "<m>one", "<m>two", "<m>"]
    spy.asked.clear()
    assert kept.encode("top<m>one<m>two<m>three") == "top<m>one<m>two<m>three".encode("utf-32-le")
    assert spy.asked == ["<m>three"]
    size = sum(
        sys.getsizeof(part) + sys.getsizeof(ids) + ENTRY_BYTES
        for part, ids in (
            ("top<m>", "top".encode("utf-32-le")),
            *((part, f"<m>{part}".encode("utf-32-le")) for part in ("one", "two", "", "three")),
        )
    )
    assert kept.counts() == Reused(reused_tokens=15, encoded_tokens=26, kept_bytes=size)


def test_what_stands_first_is_not_taken_for_a_turn() -> None:
    kept = Reuse("<m>", Spy())
    for text in ("one<m>one<m><m>", "<m>one<m>", "<m><m>one", "one<m>"):
        assert kept.encode(text) == text.encode("utf-32-le")


def test_what_is_asked_again_outlives_what_is_not() -> None:
    spy = Spy()
    kept = Reuse("<m>", spy, limit=20_000)
    for number in range(200):
        kept.encode(f"<m>system<m>question {number}")
    assert spy.asked.count("<m>system") == 1
    assert kept.counts().kept_bytes <= 20_000
    kept.encode("<m>question 0")
    assert spy.asked.count("<m>question 0") == 2


def test_a_text_of_nothing_but_marks_is_encoded_whole_and_not_kept() -> None:
    spy = Spy()
    kept = Reuse("<m>", spy)
    text = "<m>x" * 100_000
    assert kept.encode(text) == text.encode("utf-32-le")
    assert (spy.asked, kept.counts()) == ([text], Reused())


def test_a_turn_larger_than_all_room_is_not_kept() -> None:
    kept = Reuse("<m>", Spy(), limit=5_000)
    assert kept.encode("<m>" + "x" * 5_000) == ("<m>" + "x" * 5_000).encode("utf-32-le")
    assert kept.counts().kept_bytes < 1_000


def test_a_text_that_cannot_be_encoded_raises_and_leaves_nothing() -> None:
    found = fast()
    assert found is not None
    kept = reuse_of(*found, CHAT)
    with pytest.raises((TypeError, UnicodeEncodeError)):
        kept.encode(f"{MARK}user\n\ud800")
    assert kept.counts() == Reused()


def test_an_encoder_that_panics_at_some_texts_is_used_for_the_others(tmp_path: Path) -> None:
    """A token takes spaces of which another wants some: the library's own fault."""
    described = json.loads(Variant(others=(6,)).described())
    described["normalizer"] = {"type": "StripAccents"}  # the faster one does not know it
    for added in described["added_tokens"]:
        added["rstrip"] = added["content"] == MARK
        added["lstrip"] = added["content"] == "<end>"
        added["content"] = added["content"].replace("<end>", "  ")
    for file in MODEL.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = Tokenizer.load(str(tmp_path))
    assert (tokenizer.encoder, tokenizer.reuse) == ("tokenizers", None)
    assert tokenizer.no_reuse == "the encoder fails at some texts"
    assert tokens(tokenizer, {"messages": [{"role": "user", "content": "fine"}]})
    with pytest.raises(NotRendered):
        bad = f"{MARK}   x"
        tokens(tokenizer, {"messages": [{"role": "user", "content": bad}]})


def test_threads_share_it() -> None:
    found = slow()
    assert found is not None
    whole, added = found
    kept = reuse_of(whole, added, CHAT, limit=8_000)
    asked = [f"{MARK}system{MARK}question {n % 40}{MARK}again {n % 7}" for n in range(400)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(kept.encode, asked)) == [whole(text) for text in asked]
    counted = kept.counts()
    total = sum(len(whole(text)) for text in asked) // 4
    assert counted.reused_tokens + counted.encoded_tokens == total
    assert counted.kept_bytes <= 8_000


# --- in a tokenizer -------------------------------------------------------------------------------


def tokens(tokenizer: Tokenizer, body: Mapping[str, Any]) -> bytes:
    canonical = parse(Api.OPENAI_CHAT, {}, json.dumps({"model": "m", **body}).encode())
    assert isinstance(canonical, Canonical), canonical
    return tokenizer.tokens(canonical)


def test_the_next_turn_of_a_chat_encodes_what_is_new() -> None:
    tokenizer = Tokenizer.load(str(MODEL))
    assert tokenizer.reuse is not None and tokenizer.no_reuse == ""
    short = tokens(tokenizer, {"messages": [{"role": "user", "content": "Where?"}]})
    assert short and tokenizer.reuse.counts() == Reused()
    messages = [{"role": "user", "content": "A signal box is a building. " * 800}]
    first = len(tokens(tokenizer, {"messages": messages})) // 4
    assert tokenizer.reuse.counts().encoded_tokens == first
    messages += [
        {"role": "assistant", "content": f"It says {MARK}user."},
        {"role": "user", "content": "Which?"},
    ]
    second = len(tokens(tokenizer, {"messages": messages})) // 4
    counted = tokenizer.reuse.counts()
    assert counted.reused_tokens + counted.encoded_tokens == first + second
    assert 0 < counted.encoded_tokens - first < 40
    encoded = counted.encoded_tokens
    assert tokens(tokenizer, {"messages": messages, "add_special_tokens": True})
    assert tokens(tokenizer, {"messages": messages})
    assert tokenizer.reuse.counts().encoded_tokens == encoded
