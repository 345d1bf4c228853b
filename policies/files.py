"""Finds and reads the files that hold resources. Parses nothing.

A folder stands for all `*.yaml`, `*.yml` and `*.json` below it; hidden files and folders are left
out, among them the ones that a mounted ConfigMap is made of.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lineside.nodes import MAX_BYTES

ENDINGS = (".yaml", ".yml", ".json")

MAX_FILES = 10_000
"""Found in folders; more are no policies, and are not read."""

STDIN = "-"


class Unreadable(Exception):
    """A file or a folder that cannot be read, or what cannot be meant by it."""


def find(names: Iterable[str], most: int = MAX_FILES) -> list[str]:
    """Return the files that names stand for, each once. Raises `Unreadable`."""
    found: dict[str, str] = {}
    for name in names:
        files = _below(name, most) if name != STDIN and os.path.isdir(name) else [name]
        if not files:
            raise Unreadable(f"{name}: there is no {', '.join(f'*{end}' for end in ENDINGS)} in it")
        for file in files:
            found.setdefault(file if file == STDIN else os.path.realpath(file), file)
        if len(found) > most:
            raise Unreadable(f"{name}: there are more than {most} files in it")
    return list(found.values())


def read(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and bytes, of too large ones a beginning. Raises `Unreadable`."""
    for name in files:
        yield ("stdin", sys.stdin.buffer.read(MAX_BYTES + 1)) if name == STDIN else _bytes(name)


def _bytes(name: str) -> tuple[str, bytes]:
    try:
        with Path(name).open("rb") as file:
            return name, file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"{name}: cannot be read: {_why(error)}") from None


def _below(folder: str, most: int) -> list[str]:
    def unreadable(error: OSError) -> None:
        raise Unreadable(f"{error.filename}: cannot be read: {_why(error)}")

    found: list[str] = []
    for here, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            os.path.join(here, name)
            for name in sorted(files)
            if name.endswith(ENDINGS) and not name.startswith(".")
        ]
        if len(found) > most:
            break
    return found


def _why(error: OSError) -> str:
    return (error.strerror or "no reason given").lower()
