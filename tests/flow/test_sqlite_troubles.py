"""A coordinator on a SQLite file that is locked, cannot be written, or has no room: what it says.

It does not start then; one that runs serves on, and says why nothing is kept.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.gateways import coordinator
from tests.waiting import until

pytestmark = pytest.mark.flow

FREE = "127.0.0.1:0"
LETTER = "a letter\n" * 200

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(
    not IS_ROOT, reason="NOT TRIED: a full disk, and one that cannot be written, take root"
)


class Refusal:
    """A coordinator that cannot start."""

    def __init__(self, store: Path) -> None:
        self.store = store
        config = {"transport": "plaintext", "store": f"sqlite:{store}"}
        config |= dict.fromkeys(("http", "grpc", "admin"), FREE)
        self._running = subprocess.Popen(
            [sys.executable, "-m", "coordinator.main", "--config", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(config).encode())
        self._running.stdin.close()
        self._running.stdin = None  # or `communicate` flushes it
        self.said = ""

    def end(self) -> None:
        """Wait for its end, and keep its last word."""
        _, said = self._running.communicate(timeout=30)
        self.said = said.decode().strip().splitlines()[-1]

    def kill(self) -> None:
        """Leave nothing behind, if it has not ended."""
        self._running.kill()
        self._running.wait()

    @property
    def code(self) -> int | None:
        return self._running.returncode


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file as another process may."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small disk, as only root can."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with (folder / "rest").open("wb", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError:
            pass


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refusal]:
    """Start one coordinator on each trouble, all at once, and wait for their ends."""
    folder = tmp_path_factory.mktemp("troubles")
    (folder / "letter").write_text(LETTER)
    with ExitStack() as stack:
        stack.enter_context(locked(folder / "locked"))
        stores = {"locked": folder / "locked", "letter": folder / "letter"}
        if IS_ROOT:
            read_only = stack.enter_context(disk(folder / "read-only"))
            (read_only / "s.db").touch()
            subprocess.run(["mount", "-o", "remount,ro", read_only], check=True)
            full = stack.enter_context(disk(folder / "full"))
            fill(full)
            stores |= {"read-only": read_only / "s.db", "full": full / "s.db"}
        begun = {}
        for name, store in stores.items():
            begun[name] = Refusal(store)
            stack.callback(begun[name].kill)
        for each in begun.values():
            each.end()
    return begun


def test_one_that_is_locked_is_said_to_be(refusals: dict[str, Refusal]) -> None:
    found = refusals["locked"]
    why = "SQLite: database is locked: another process has held it for more than 2.5 s"
    said = f"could not run: cannot use the store `sqlite:{found.store}`: {why}"
    assert (found.code, found.said) == (3, said)


def test_one_that_is_something_else_is_left_alone(refusals: dict[str, Refusal]) -> None:
    found = refusals["letter"]
    why = "SQLite: file is not a database: the file is another one's"
    assert (found.code, why in found.said) == (3, True), found.said
    assert found.store.read_text() == LETTER


@needs_root
def test_a_disk_that_cannot_be_written_is_said_to_be(refusals: dict[str, Refusal]) -> None:
    found = refusals["read-only"]
    why = "SQLite: attempt to write a readonly database: the file, its folder or its disk"
    assert (found.code, why in found.said) == (3, True), found.said


@needs_root
def test_a_disk_without_room_is_said_to_be(refusals: dict[str, Refusal]) -> None:
    found = refusals["full"]
    why = "SQLite: database or disk is full: make room"
    assert (found.code, why in found.said) == (3, True), found.said


@needs_root
async def test_one_that_runs_when_the_room_ends_serves_on_and_says_so(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        async with coordinator(store=f"sqlite:{folder / 's.db'}") as running:

            async def away() -> str:
                degraded = (await running.debug("/readyz"))["degraded"]
                return next((each for each in degraded if "the store is away" in each), "")

            async def full() -> bool:
                return "SQLite: database or disk is full: make room" in await away()

            async def well() -> bool:
                return await away() == ""

            await until(well)
            fill(folder)
            await until(full, 10)
            (folder / "rest").unlink()
            await until(well, 10)
