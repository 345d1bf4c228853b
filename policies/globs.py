"""Names with `*`, which stands for any run of characters, and nothing else is special. Pure."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

Test: TypeAlias = Callable[[str], bool]


def compile_glob(pattern: str) -> Test:
    """Return a test for whole texts, case-sensitive.

    No regular expression: patterns with many stars meet texts that clients write, and one that
    backtracks could take for ever. This takes one pass over the text.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern.__eq__
    *middle, last = rest

    def test(text: str) -> bool:
        if not (text.startswith(first) and text.endswith(last)):
            return False
        at, end = len(first), len(text) - len(last)
        for part in middle:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return at <= end

    return test


def any_of(patterns: Iterable[str]) -> Callable[[Iterable[str]], bool]:
    """Return a test whether one of some texts fits one of the patterns."""
    tests = [compile_glob(pattern) for pattern in patterns]
    return lambda texts: any(test(text) for text in texts for test in tests)
