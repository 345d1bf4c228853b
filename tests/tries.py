"""What clients of a store tried to write, until it is known what became of it: a model with a log.

Each value names the try that it is from, so that whatever stands in a store, or comes out of a
watch, can be told: carried out as its client was told, carried out though its answer was lost, or
not to be explained. Everything is in a file as well, for people.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.state.store import Change, Put, Write

PENDING, LOST, REFUSED = "pending", "its answer was lost", "told that another was first"


@dataclass(slots=True)
class Try:
    """One transaction of one client."""

    number: int
    client: int
    writes: dict[str, bytes | None]
    outcome: int | str = PENDING
    """The revision, or one of the words above."""
    seen: int | None = None
    """The revision at which a watch told of it."""

    @property
    def only_deletes(self) -> bool:
        """Whether nothing is left to tell whose it was, and at which revision."""
        return set(self.writes.values()) == {None}


@dataclass(slots=True)
class Tries:
    """The log. In memory are those alone of which a watch has not told yet what they did."""

    file: Path
    open: dict[int, Try] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    _count: int = 0
    _listed: int = 0

    def begin(self, client: int, writes: Sequence[Write]) -> Try:
        made = Try(self._count, client, {})
        made.writes = {each.key: each.value if isinstance(each, Put) else None for each in writes}
        self.open[made.number] = made
        self._count += 1
        return made

    def next_value(self, client: int) -> bytes:
        """Return what the next try is to write."""
        return b"%d.%d" % (client, self._count)

    def end(self, made: Try, outcome: int | str) -> None:
        made.outcome = outcome
        word = outcome if isinstance(outcome, str) else "carried out"
        self.outcomes[word] += 1
        self._note(made, word, None)
        if made.seen is not None:
            self._close(made)
        elif isinstance(outcome, int) and outcome <= self._listed:
            self.open.pop(made.number)  # while its answer was under way

    def _close(self, made: Try) -> None:
        """A watch has told of it: what it told has to be what the client was told."""
        if made.outcome not in (made.seen, LOST) and not made.only_deletes:
            self._doubt(f"try {made} was told {made.outcome}, and carried out at {made.seen}")
        self.open.pop(made.number, None)

    def heard(self, changes: Sequence[Change]) -> None:
        """Take in what a watch tells, one revision after the other."""
        by_revision: dict[int, dict[str, bytes | None]] = {}
        for change in changes:
            by_revision.setdefault(change.revision, {})[change.key] = change.value
        for revision, there in by_revision.items():
            self._heard(revision, there)

    def _heard(self, revision: int, there: dict[str, bytes | None]) -> None:
        found = [
            each
            for each in self._suspects(there)
            if all(each.writes.get(key, b"none") == value for key, value in there.items())
        ]
        # Of deletions alone several may be meant: rather one that is known, or under way.
        found.sort(key=lambda each: (each.outcome != revision, each.outcome is not PENDING))
        if not found:
            self._doubt(f"revision {revision} is nobody's: {there}")
            return
        made = found[0]
        made.seen = revision
        self._note(made, "seen", revision)
        if made.outcome is not PENDING:
            self._close(made)

    def _suspects(self, there: dict[str, bytes | None]) -> list[Try]:
        numbers = {int(value.partition(b".")[2]) for value in there.values() if value is not None}
        if numbers:
            return [self.open[number] for number in numbers if number in self.open]
        return [each for each in self.open.values() if each.outcome != REFUSED]

    def listed(self, revision: int) -> None:
        """A watch lost some changes: of what was carried out up to here it will not tell."""
        self._listed = revision
        for made in list(self.open.values()):
            if isinstance(made.outcome, int) and made.outcome <= revision:
                self.open.pop(made.number)

    @property
    def missing(self) -> list[Try]:
        """Return the tries that were said to be carried out, and of which no watch told."""
        return [
            each
            for each in self.open.values()
            if isinstance(each.outcome, int) and not each.only_deletes
        ]

    def _doubt(self, text: str) -> None:
        self.unexplained.append(text)
        with self.file.open("a") as file:
            file.write(text + "\n")

    def _note(self, made: Try, word: str, revision: int | None) -> None:
        said = {
            "try": made.number,
            "client": made.client,
            "outcome": made.outcome,
            "seen": revision,
            "writes": {key: value and value.decode() for key, value in made.writes.items()},
        }
        with self.file.open("a") as file:
            file.write(f"{word}: {json.dumps(said)}\n")
