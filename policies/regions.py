"""The texts that a set of globs can tell apart: one witness for each. Pure.

Globs split all texts into regions: two texts are in the same one when the same globs fit both.
`witnesses` finds every region that has a text in it, by walking the texts letter by letter and
keeping, of each glob, the places it could have come to. What no policy can tell apart needs to be
tried once only, and what `prove` has tried for all witnesses holds for all texts.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TypeAlias

from policies.globs import compile_glob

MAX_PLACES = 400_000
"""So many places in globs are looked at, about a fifth of a second of work. Beyond, `TooMany`.

A thousand names without a star need 60,000; a dozen globs such as `*ab*` are too many.
"""

_LETTERS = "xyzwvutsrqponmlkjihgfedcba0123456789"


State: TypeAlias = frozenset[tuple[int, int]]
"""For each glob, the places in it that a text may have come to."""


class TooMany(Exception):
    """The globs tell more texts apart than can be tried."""


def witnesses(globs: Iterable[str], likely: Sequence[str] = ()) -> tuple[str, ...]:
    """Return one text for each region, the `likely` ones first where they stand for theirs."""
    patterns = tuple(dict.fromkeys(globs))
    found: dict[frozenset[int], str] = {}
    tests = [compile_glob(pattern) for pattern in patterns]
    nice = (*likely, *(pattern.replace("*", "x") for pattern in patterns))
    for text in nice:
        if text:
            found.setdefault(frozenset(i for i, test in enumerate(tests) if test(text)), text)
    for region, text in _walk(patterns):
        found.setdefault(region, text)
    return tuple(found.values())


def _walk(patterns: Sequence[str]) -> Iterator[tuple[frozenset[int], str]]:
    """Yield every region with its shortest text, which has one letter at least."""
    other = _other_letter(patterns)
    start = _closure(patterns, ((i, 0) for i in range(len(patterns))))
    seen = {start}
    waiting = deque([(start, "")])
    left = MAX_PLACES
    while waiting:
        state, text = waiting.popleft()
        for letter in sorted({*_letters(patterns, state), other}):
            left -= len(state)
            if left < 0:
                raise TooMany
            after = _step(patterns, state, letter)
            if text == "" or after not in seen:
                yield frozenset(i for i, at in after if at == len(patterns[i])), text + letter
            if after not in seen:
                seen.add(after)
                waiting.append((after, text + letter))


def _step(patterns: Sequence[str], state: State, letter: str) -> State:
    return _closure(
        patterns,
        (
            (i, at if patterns[i][at] == "*" else at + 1)
            for i, at in state
            if at < len(patterns[i]) and patterns[i][at] in ("*", letter)
        ),
    )


def _closure(patterns: Sequence[str], places: Iterable[tuple[int, int]]) -> State:
    """Add the places behind stars, which stand for nothing as well."""
    reached = set()
    for i, start in places:
        at = start
        reached.add((i, at))
        while at < len(patterns[i]) and patterns[i][at] == "*":
            at += 1
            reached.add((i, at))
    return frozenset(reached)


def _letters(patterns: Sequence[str], state: State) -> Iterator[str]:
    return (patterns[i][at] for i, at in state if at < len(patterns[i]) and patterns[i][at] != "*")


def _other_letter(patterns: Sequence[str]) -> str:
    used = set("".join(patterns))
    plain = next((letter for letter in _LETTERS if letter not in used), None)
    return plain or next(letter for letter in map(chr, count(0x3B1)) if letter not in used)
