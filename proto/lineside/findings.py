"""What is wrong with a document that people wrote, with its place. Pure.

Shown as `file:line:col: code: message`, then `help: ...`. Messages are lower case, one line,
without a final stop, with the author's words in backticks; they never repeat a secret.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning"]

HINTED_CHARS = 64
"""Longer words get no hint: no name of ours is as long, and comparing takes time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was said. A variable or a flag has no line."""

    source: str
    line: int | None = None
    col: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.col) if part)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change. A warning is one that may be left as it is."""

    place: Place
    code: str
    message: str
    help: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        warning = "warning: " if self.severity == "warning" else ""
        line = f"{self.place}: {warning}{self.code}: {self.message}"
        return f"{line}\n  help: {self.help}" if self.help else line

    def to_json(self) -> dict[str, str | int | None]:
        """Return the finding for machines."""
        return {
            "file": self.place.source,
            "line": self.place.line,
            "col": self.place.col,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "help": self.help,
        }


def did_you_mean(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return a question that names the nearest known word; empty where none is near.

    `least` is how near, from 0 to 1: at 0.8 a letter or two differ.
    """
    if len(word) > HINTED_CHARS:
        return ""
    names = list(known)
    near = [name for name in names if name.lower() == word.lower()]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=least)
    return f"did you mean `{near[0]}`?" if near else ""
