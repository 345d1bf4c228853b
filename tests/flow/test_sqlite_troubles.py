"""A coordinator on a SQLite file that is locked, cannot be written, or has no room: what it says.

It does not start then; one that runs serves on, and says why nothing is kept.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.gateways import coordinator, until

pytestmark = pytest.mark.flow

FREE = "127.0.0.1:0"


def started(store: Path) -> tuple[int, str]:
    """Start a coordinator that cannot; return its exit code, and its last word."""
    config = {"transport": "plaintext", "store": f"sqlite:{store}"}
    config |= dict.fromkeys(("http", "grpc", "admin"), FREE)
    done = subprocess.run(
        [sys.executable, "-m", "coordinator.main", "--config", "-"],
        input=json.dumps(config).encode(),
        capture_output=True,
        timeout=30,
    )
    return done.returncode, done.stderr.decode().strip().splitlines()[-1]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file as another process may."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small disk: only root can have one that is full, or that cannot be written."""
    if os.geteuid() != 0:
        pytest.skip("NOT TRIED: a full disk, and one that cannot be written, take root")
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


def test_one_that_is_locked_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with locked(path):
        code, said = started(path)
    why = "SQLite: database is locked: another process has held it for more than 2.5 s"
    assert (code, said) == (3, f"could not run: cannot use the store `sqlite:{path}`: {why}")


def test_one_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("a letter\n" * 200)
    code, said = started(path)
    why = "SQLite: file is not a database: the file is another one's"
    assert (code, why in said) == (3, True)
    assert path.read_text() == "a letter\n" * 200


def test_a_disk_that_cannot_be_written_is_said_to_be(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        (folder / "s.db").touch()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        code, said = started(folder / "s.db")
    why = "SQLite: attempt to write a readonly database: the file, its folder or its disk"
    assert (code, why in said) == (3, True), said


def test_a_disk_without_room_is_said_to_be(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        fill(folder)
        code, said = started(folder / "s.db")
    assert (code, "SQLite: database or disk is full: make room" in said) == (3, True), said


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
