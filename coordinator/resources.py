"""A folder of resources, watched: what is good is put into force, what is not is said.

The only writer of `Rules`. A set is taken as a whole: with one error in it the last good set stays,
also when a file cannot be read. Files are read and judged on a thread of their own.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coordinator.rules import Resources, Rules
from lineside import logs
from lineside.findings import Finding, Place
from policies.files import Unreadable, find, read
from policies.lint import lint
from policies.load import load

log = logs.get("coordinator.resources")

LOOK_S = 1.0
"""Between two looks at the files."""

TRIES = 3
"""How often files that change while they are read are read anew at one look."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file: its path, inode, time and size."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A set of files, and what was found in them."""

    stamp: Stamp
    resources: Resources
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What keeps the set from being put into force."""
        return tuple(each for each in self.findings if each.severity == "error")


class Source(Protocol):
    """Where resources come from: it puts them into force, and says what it could not."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the newest resources, warnings too."""
        ...

    @property
    def rejected(self) -> bool:
        """Whether some of the newest resources are not in force."""
        ...

    @property
    def unknown(self) -> bool:
        """Whether there may be guards that are not known, so that every request is refused."""
        ...

    @property
    def away(self) -> str:
        """Why it cannot be read, so that what is known stays in force; empty: it can."""
        ...

    async def start(self) -> tuple[Finding, ...]:
        """Put resources into force; return what keeps this process from starting."""
        ...

    async def run(self) -> None:
        """Follow until cancelled."""
        ...

    def remake(self) -> None:
        """Write again what is in force, where it is in the store, which lost its data."""
        ...

    def shown(self) -> dict[str, object]:
        """Return the state of resources, for people."""
        ...


class ResourceFolder:
    """One folder, or one file."""

    away, unknown = "", False

    def __init__(self, path: Path, rules: Rules, applied: Callable[[Resources], None]) -> None:
        """`applied` hears of the set in force: when it is put there, and at each look."""
        self._path = path
        self._rules = rules
        self._applied = applied
        self._stamp: Stamp | None = None
        self.findings: tuple[Finding, ...] = ()
        """Of the files as they are now, warnings too."""
        self.rejected = False
        """Whether the files are not what is in force."""

    async def start(self) -> tuple[Finding, ...]:
        """Put the files into force; return what keeps them from it."""
        judged = await asyncio.to_thread(look, self._path, self._stamp)
        if judged is not None:
            self._take(judged)
        await asyncio.to_thread(self._applied, self._rules.resources)
        return judged.errors if judged else ()

    def remake(self) -> None:
        """Do nothing: what is in force is in files."""

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            judged = await asyncio.to_thread(look, self._path, self._stamp)
            if judged is not None:
                self._take(judged)
            await asyncio.to_thread(self._applied, self._rules.resources)  # it reads files

    def _take(self, judged: Judged) -> None:
        self._stamp, self.findings = judged.stamp, judged.findings
        self.rejected = bool(judged.errors)
        if self.rejected:
            for finding in judged.errors:
                log.warning("resources rejected", place=str(finding.place), code=finding.code)
            return
        self._rules.swap(judged.resources)
        log.info(
            "resources applied",
            revision=self._rules.revision,
            policies=len(judged.resources.policies),
            warnings=len(judged.findings),
        )

    def shown(self) -> dict[str, object]:
        """Return the state of the files, for people."""
        return {
            "source": str(self._path),
            "rejected": self.rejected,
            "findings": [finding.to_json() for finding in self.findings],
        }


def unfit(path: Path) -> tuple[Finding, ...]:
    """Return what keeps a folder from being put into force; empty: nothing does."""
    judged = look(path, None)
    return judged.errors if judged else ()


def look(path: Path, known: Stamp | None) -> Judged | None:
    """Judge the files below a path; `None`: they are those that are known."""
    try:
        for _ in range(TRIES):
            stamp = _stamps(path)
            if stamp == known:
                return None
            documents = list(read([name for name, *_ in stamp]))
            if _stamps(path) == stamp:  # else a guard may have moved to a file that was read before
                return judge(stamp, documents)
        raise Unreadable(f"{path}: its files change while they are read")
    except (Unreadable, OSError) as error:
        stamp = ((str(error), 0, 0, 0),)
        why = str(error)
        if isinstance(error, OSError):
            why = (error.strerror or "no reason given").lower()
        found = Finding(Place(str(path)), "unreadable", why)
        return None if stamp == known else Judged(stamp, Resources(), (found,))


def judge(stamp: Stamp, documents: Sequence[tuple[str, bytes]]) -> Judged:
    """Load and lint documents."""
    loaded = load(documents)
    findings = list(loaded.findings)
    if not findings:  # what is not whole cannot be judged as a whole
        findings += lint(loaded.resources)
    return Judged(
        stamp, Resources.of([each.resource for each in loaded.resources]), tuple(findings)
    )


def _stamps(path: Path) -> Stamp:
    return tuple(_stamped(name) for name in find([str(path)]))


def _stamped(name: str) -> tuple[str, int, int, int]:
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):  # reading a pipe might never end
        raise Unreadable(f"{name}: is no regular file")
    return name, found.st_ino, found.st_mtime_ns, found.st_size
