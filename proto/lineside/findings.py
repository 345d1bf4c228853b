"""What is wrong with a document that people wrote, with its place. Pure.

Shown as `file:line:col: code: message`, then `help: ...`. Messages are lower case, one line,
without a final stop, with the author's words in backticks; they never repeat a secret.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


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
    """One thing to change."""

    place: Place
    code: str
    message: str
    help: str = ""

    def __str__(self) -> str:
        line = f"{self.place}: {self.code}: {self.message}"
        return f"{line}\n  help: {self.help}" if self.help else line

    def to_json(self) -> dict[str, str | int | None]:
        """Return the finding for machines."""
        return {
            "file": self.place.source,
            "line": self.place.line,
            "col": self.place.col,
            "code": self.code,
            "message": self.message,
            "help": self.help,
        }


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known word; empty where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else ""
