"""Values and tables for people; one line of JSON for machines.

A missing measurement is a dash; zero is a measurement. Names come from clients and engines: what a
terminal would take as a command is replaced.
"""

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

PIPED_WIDTH = 1000
"""Where there is no terminal, lines are not folded to one."""

GAP = 1 + 1
"""Between columns: a table's padding, left and right."""

FOLDED_CHARS = 12
"""Of a folded column: narrower ones nobody can read. What is too wide then the terminal folds."""

NAME_CHARS = 24
"""Of a model's name in a table with much else."""

TEXT_CHARS = 120


class Out(Console):
    """Prints until its reader has gone, then stays silent: what runs behind it goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Print; nothing is left out of what is wider than the terminal."""
        super().print(*objects, crop=crop, **options)


class Readable(Table):
    """A table whose columns are never folded to a few letters."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = 0
        for column in self.columns:
            cells = (column.header, *column.cells)
            longest = max(cell_len(line) for cell in cells for line in str(cell).split("\n"))
            column.min_width = longest if column.no_wrap else min(longest, FOLDED_CHARS)
            least += column.min_width + GAP
        room = max(least - GAP, options.max_width)
        yield from super().__rich_console__(console, options.update(max_width=room))


@dataclass(frozen=True, slots=True)
class Fitting:
    """The first of two forms where there is room for it, else the second."""

    wide: Table
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=PIPED_WIDTH), self.wide).maximum
        yield self.wide if needed <= options.max_width else self.narrow


def console() -> Console:
    """Return where tables go: standard output, without markup."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Out(markup=False, highlight=False, emoji=False, width=width)


def table(*columns: str, right: str = "", whole: str = "") -> Table:
    """Return an empty table; the columns in `right` hold numbers, those in `whole` are not folded.

    Others are folded where the table would be wider than what it is shown on.
    """
    made = Readable(box=None, pad_edge=False, header_style="bold")
    numbers, unfolded = (list(filter(None, names.split(","))) for names in (right, whole))
    for name in columns:
        if name in numbers or name in unfolded:
            made.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
        else:
            made.add_column(name, overflow="fold")
    return made


def text(value: object) -> str:
    """Return a name or a sentence, safe to print."""
    if value is None or value == "":
        return "-"
    line = printable(str(value))
    return line if len(line) <= TEXT_CHARS else line[: TEXT_CHARS - 1] + "…"


def short(name: object) -> str:
    """Return a model's name without its owner, its middle left out where it is long."""
    said = text(name).rpartition("/")[2]
    if len(said) <= NAME_CHARS:
        return said
    half = NAME_CHARS // 2
    return f"{said[: NAME_CHARS - half]}…{said[1 - half :]}"


def printable(line: str) -> str:
    """Return a text without what a terminal would take as a command."""
    return "".join(c if c.isprintable() else "?" for c in line)


def number(value: Any) -> str:
    """Return a count."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def count(value: float | None) -> str:
    """Return a count, by thousands or millions where it is large."""
    if value is None or abs(value) < 99_950:
        return number(value)
    return f"{value / 1e3:.0f}k" if abs(value) < 999_500 else f"{value / 1e6:.1f}M"


def pair(one: float | None, other: float | None) -> str:
    """Return two durations, their unit once where it is one."""
    said, also = seconds(one), seconds(other)
    unit = said.partition(" ")[2]
    is_one = unit and also.partition(" ")[2] == unit
    return f"{said.partition(' ')[0] if is_one else said} / {also}"


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


def print_json(value: Any) -> None:
    """Print one line of JSON, at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
