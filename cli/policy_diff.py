"""`lineside policy diff`: what another set of policies would have made of recorded decisions."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.resources import CLEAN, FINDINGS, Given, given, tell
from cli.shown import console, print_json, table, text
from lineside.findings import Finding, Place
from policies.recorded import Outcome, Recorded, Replay

DESCRIPTION = """\
Decide recorded requests once with the policies in A and once with those in B,
and say where the two differ. A and B are files or folders.

--decisions names what `lineside get decisions --json` prints, or JSON lines.
A record has no headers and no pools' saturation: rules that match on those are
not met.

Exit codes: 0 no difference, 1 differences or findings, 2 usage,
3 could not run."""

EXAMPLES = 3
"""Decisions named for each kind of difference."""

MAX_LINE_BYTES = 16 << 20
"""A record is some kilobytes; a list of all that a coordinator keeps is less than this."""


@dataclass(slots=True)
class Change:
    """Decisions that differ in the same way."""

    count: int = 0
    ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Compared:
    """All decisions, and those that differ, by what both sides say."""

    decisions: int = 0
    changes: dict[tuple[str, str], Change] = field(default_factory=dict)

    @property
    def different(self) -> int:
        """How many decisions differ."""
        return sum(each.count for each in self.changes.values())


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "diff", help="two sets of policies over recorded decisions", description=DESCRIPTION
    )
    command.add_argument("a", metavar="A", help="policies and other resources")
    command.add_argument("b", metavar="B", help="the same, changed")
    command.add_argument(
        "--decisions", required=True, metavar="FILE", help="records, as JSON or JSON lines"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_diff)


def _diff(arguments: argparse.Namespace) -> int:
    a, b = given([arguments.a]), given([arguments.b])
    if findings := (*a.findings, *b.findings):
        return tell(findings, arguments.json)
    try:
        compared = compare(a, b, records(arguments.decisions))
    except Unreadable as error:
        return tell([error.finding], arguments.json)
    if arguments.json:
        print_json(_json(compared))
    else:
        asked = Replay(a.resources).names_headers | Replay(b.resources).names_headers
        console().print(shown(compared, asked))
    return FINDINGS if compared.different else CLEAN


def compare(a: Given, b: Given, recorded: Iterator[Recorded]) -> Compared:
    """Decide each record twice."""
    compared, left, right = Compared(), Replay(a.resources), Replay(b.resources)
    for record in recorded:
        compared.decisions += 1
        before, after = left.outcome(record), right.outcome(record)
        if before != after:
            change = compared.changes.setdefault(_words(before, after), Change())
            change.count += 1
            if len(change.ids) < EXAMPLES:
                change.ids.append(record.id)
    return compared


def _words(before: Outcome, after: Outcome) -> tuple[str, str]:
    if before.words != after.words:
        return before.words, after.words
    return before.words, f"{after.words}, rewritten otherwise"


class Unreadable(Exception):
    """A line that is no record."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def records(name: str) -> Iterator[Recorded]:
    """Yield the records of a file. Raises `Unreadable`, `CouldNotRun`; repeats none of them."""
    try:
        with open(name, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > MAX_LINE_BYTES:
                    raise _no_record(name, number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
                if line.strip():
                    yield from _records(name, number, line)
    except OSError as error:
        why = (error.strerror or "no reason given").lower()
        raise CouldNotRun(f"{name}: cannot be read: {why}") from None


def _records(name: str, number: int, line: bytes) -> Iterator[Recorded]:
    try:
        said: Any = json.loads(line)
        for each in said if isinstance(said, list) else [said]:
            yield msgspec.convert(each, Recorded)
    except (ValueError, RecursionError, msgspec.ValidationError):
        raise _no_record(name, number, "no JSON, or not in the shape of a record") from None


def _no_record(name: str, number: int, why: str) -> Unreadable:
    help = "records are what `lineside get decisions --json` prints"
    return Unreadable(Finding(Place(name, number, 1), "no-record", f"the line is {why}", help))


def _json(compared: Compared) -> dict[str, Any]:
    return {
        "decisions": compared.decisions,
        "different": compared.different,
        "changes": [
            {"a": a, "b": b, "count": change.count, "examples": change.ids}
            for (a, b), change in _most_first(compared)
        ],
    }


def _most_first(compared: Compared) -> list[tuple[tuple[str, str], Change]]:
    return sorted(compared.changes.items(), key=lambda item: (-item[1].count, item[0]))


def shown(compared: Compared, headers: frozenset[str]) -> Group:
    """Return the kinds of difference as a table."""
    count = compared.decisions
    head = f"{count} decision{'s' * (count != 1)}: {compared.different or 'none'} different"
    notes = [Text(f"records have no headers: {', '.join(sorted(headers))}")] if headers else []
    if not compared.changes:
        return Group(Text(head), *notes)
    rows = table("count", "A", "B", "such as", right="count")
    for (a, b), change in _most_first(compared):
        rows.add_row(str(change.count), text(a), text(b), text(", ".join(change.ids)))
    return Group(Text(head), rows, *notes)
