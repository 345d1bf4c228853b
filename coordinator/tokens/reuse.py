"""Token ids of chats' turns, kept for the next request that repeats them.

A special token cuts a text before anything else is done with it, so that what stands before it and
what it begins are encoded by themselves. `reuse_of` finds one before which a tokenizer's chats can
be cut, and tries it; `Reuse` cuts there. Safe in threads. No text and no token id leaves this.
"""

import itertools
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

Whole = Callable[[str], bytes]
"""Encodes a text without the tokens that a tokenizer adds at its ends."""

KEPT_BYTES = 32 * 2**20
"""For each tokenizer: some four million tokens with their texts. Beyond, the oldest half goes."""

ENTRY_BYTES = 100
"""What a table takes for an entry, beside its text and its ids."""

MOST_TURNS = 2_000
"""A text with more is encoded whole: it is no chat, and looking up so much would take longer."""


class Unencodable(ValueError):
    """An encoder failed at a text: its own fault, or half a surrogate pair. Holds nothing of it."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token that is found in a text as it stands, and how."""

    content: str
    normalized: bool
    single_word: bool
    lstrip: bool


@dataclass(frozen=True, slots=True)
class Reused:
    """What was spared so far, and what is kept for it."""

    reused_tokens: int = 0
    encoded_tokens: int = 0
    kept_bytes: int = 0

    def __add__(self, other: "Reused") -> "Reused":
        return Reused(
            self.reused_tokens + other.reused_tokens,
            self.encoded_tokens + other.encoded_tokens,
            self.kept_bytes + other.kept_bytes,
        )


class Reuse:
    """Encodes texts, each turn once as long as it is kept."""

    def __init__(self, mark: str, whole: Whole, limit: int = KEPT_BYTES) -> None:
        self.mark = mark
        """Each piece but the first begins with it."""
        self._whole = whole
        self._generation_bytes = limit // 2
        # Two generations rather than an order of use: reading changes nothing, and needs no lock.
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._young_bytes = self._old_bytes = 0
        self._all = self._encoded = 0
        self._writing = threading.Lock()

    def encode(self, text: str) -> bytes:
        """Return the same as encoding the whole text does. Raises `Unencodable`."""
        mark = self.mark
        parts = text.split(mark, MOST_TURNS)
        if len(parts) == 1 or len(parts) > MOST_TURNS:
            return self._whole(text)
        parts[0] += mark  # no other has it, so what does not begin with the mark is apart
        young, old = self._young, self._old
        ids: list[bytes] = []
        fresh: dict[str, bytes] = {}
        encoded = 0
        for number, part in enumerate(parts):
            found = young.get(part)
            if found is None:
                found = old.get(part)
                if found is None:
                    begun = mark + part if number else part[: -len(mark)]
                    found = self._whole(begun)
                    encoded += len(found)
                fresh[part] = found
            ids.append(found)
        joined = b"".join(ids)
        self._note(fresh, len(joined), encoded)
        return joined

    def counts(self) -> Reused:
        """Return what was spared so far."""
        with self._writing:
            kept = self._young_bytes + self._old_bytes
            return Reused((self._all - self._encoded) // 4, self._encoded // 4, kept)

    def _note(self, fresh: Mapping[str, bytes], size: int, encoded: int) -> None:
        with self._writing:
            self._all += size
            self._encoded += encoded
            for part, ids in fresh.items():
                self._keep(part, ids)

    def _keep(self, part: str, ids: bytes) -> None:
        size = sys.getsizeof(part) + sys.getsizeof(ids) + ENTRY_BYTES
        if part in self._young or size > self._generation_bytes:
            return
        if self._young_bytes + size > self._generation_bytes:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[part] = ids
        self._young_bytes += size


# --- where a text may be cut ----------------------------------------------------------------------


class NoReuse(Exception):
    """Chats are encoded whole. One line that says why."""


def reuse_of(
    whole: Whole,
    added: Sequence[AddedToken],
    chat: str,
    limit: int = KEPT_BYTES,
    *,
    normalizes: bool = True,
) -> Reuse:
    """Return a way to encode that gives the same ids as `whole`. Raises `NoReuse`.

    `chat` is a rendered one of several turns; `added` are all tokens that are found in texts, and
    `normalizes` says whether anything else is done to a text before those that want it are.
    """
    mark = _mark_of(added, chat, normalizes)
    if mark is None:
        raise NoReuse("no special token begins each turn of a chat")
    tried = Reuse(mark, whole)
    try:
        if any(not _is_same(whole, tried, text) for text in (chat, *_samples(mark, added))):
            raise NoReuse("turns encode otherwise by themselves than in a chat")
    except Unencodable:
        raise NoReuse("the encoder fails at some texts") from None
    return Reuse(mark, whole, limit)


def _is_same(whole: Whole, tried: Reuse, text: str) -> bool:
    return whole(text) == tried.encode(text) == tried.encode(text)


def _mark_of(added: Sequence[AddedToken], chat: str, normalizes: bool = True) -> str | None:
    """Return the token before which a chat can be cut most often, the first of several."""
    there = (token for token in added if token.content in chat)
    safe = [token.content for token in there if _is_safe(token, added, normalizes)]
    mark = max(safe, key=lambda content: (chat.count(content), -chat.index(content)), default=None)
    return mark if mark is not None and chat.count(mark) > 1 else None


_NO_WORD = ("Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sm")
"""Categories of which no character is a part of a word, or a space, by any encoder's rule. Of marks
and other symbols some are."""


def _is_safe(token: AddedToken, added: Sequence[AddedToken], normalizes: bool) -> bool:
    """Whether a text may be cut before this token wherever it stands.

    It must be found in a text as it stands, whatever stands before it, and not reach back. No
    other may begin before it and reach into it, or take its place; and one before it that looks for
    the end of a word, or takes spaces, must find the same as at the end of a text.
    """
    content = token.content
    if (token.normalized and normalizes) or token.single_word or token.lstrip:
        return False
    if unicodedata.category(content[0]) not in _NO_WORD:
        return False
    others = [other for other in added if other.content != content]
    # Those that want a text normalized are looked for in what the rest has left, normalized or not.
    if token.normalized and any(_meet(o.content, content) for o in others if not o.normalized):
        return False
    return not _reaches_into(content, content) and not any(
        other.content.startswith(content) or _reaches_into(other.content, content)
        for other in others
    )


def _meet(one: str, other: str) -> bool:
    """Whether both can stand in a text so that they overlap."""
    return (
        one.startswith(other)
        or other.startswith(one)
        or _reaches_into(one, other)
        or _reaches_into(other, one)
    )


def _reaches_into(other: str, content: str) -> bool:
    """Whether both can stand in a text so that `other` begins earlier and they overlap."""
    tails = (other[begin:] for begin in range(1, len(other)))
    return any(tail.startswith(content) or content.startswith(tail) for tail in tails)


_ENDS = ("", " ", "\n", "word", "  f(x):\n\treturn x\r\n\n", "12 'S", "e\u0301 \U0001f682", "東京")

TRIED_TOKENS = 100
"""Other tokens that are tried beside the mark; some tokenizers have hundreds alike."""


def _samples(mark: str, added: Sequence[AddedToken]) -> Iterator[str]:
    """Yield texts in which something can go wrong at the mark, on either side."""
    for before, after in itertools.product(_ENDS, repeat=2):
        yield f"{before}{mark}{after}"
        yield f"{mark}{before}{mark}{mark}{after}"
    for token in added[:TRIED_TOKENS]:
        other = token.content
        yield f"a{other}{mark}{other} {mark} {other}a {other} {mark}"
