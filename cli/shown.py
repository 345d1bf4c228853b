"""Values and tables for people. A missing measurement is a dash; zero is a measurement.

Names come from clients and engines: what a terminal would take as a command is replaced.
"""

import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 160
"""Where there is no terminal, lines are not folded to one."""

TEXT_CHARS = 120


class Out(Console):
    """Prints until its reader has gone, then stays silent: what runs behind it goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def console() -> Console:
    """Return where tables go: standard output, without markup."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Out(markup=False, highlight=False, emoji=False, width=width)


def table(*columns: str, right: str = "") -> Table:
    """Return an empty table; the columns named in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    numbers = right.split(",")
    for name in columns:
        if name in numbers:
            made.add_column(name, justify="right", no_wrap=True)
        else:
            made.add_column(name, overflow="fold")
    return made


def text(value: object) -> str:
    """Return a name or a sentence, safe to print."""
    if value is None or value == "":
        return "-"
    line = printable(str(value))
    return line if len(line) <= TEXT_CHARS else line[: TEXT_CHARS - 1] + "…"


def printable(line: str) -> str:
    """Return a text without what a terminal would take as a command."""
    return "".join(c if c.isprintable() else "?" for c in line)


def number(value: Any) -> str:
    """Return a count."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def seconds(value: float | None) -> str:
    """Return a duration."""
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if abs(value) < 1 else f"{value:.1f} s"


def percent(value: float | None) -> str:
    """Return a share."""
    return "-" if value is None else f"{100 * value:.0f} %"


def moment(unix: float | None) -> str:
    """Return a time, in UTC."""
    return "-" if unix is None else f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S}"
