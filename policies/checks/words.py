"""How findings put an author's words. Pure."""

from collections.abc import Iterable

from lineside.documents import clipped

LISTED = 5
"""So many names are told; a message is one line."""


def quoted(word: str) -> str:
    """Return a word in backticks, on one line and not too long."""
    return f"`{clipped(word)}`"


def is_called(name: str) -> str:
    """Return what to say of things that have a name, or one that fits a glob."""
    return f"fits {quoted(name)}" if "*" in name else f"is called {quoted(name)}"


def listed(words: Iterable[str]) -> str:
    """Return some words in backticks."""
    each = [quoted(word) for word in words]
    return ", ".join(each[:LISTED]) + (f" and {len(each) - LISTED} more" if each[LISTED:] else "")
