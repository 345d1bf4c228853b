"""Engines' keys: read beside the event loop, kept while their file is away, shown to no message."""

import threading
from pathlib import Path

import pytest

from coordinator.config import EngineSpec
from coordinator.credentials import KEY_BYTES, Credentials, read_key

URL = "http://engine:8000"


def credentials(file: Path) -> Credentials:
    return Credentials.of([EngineSpec(url=URL, api_key_file=str(file)), EngineSpec(url="http://b")])


async def test_a_key_is_read_on_a_thread_and_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def read(path: Path, setting: str) -> tuple[str | None, str]:
        threads.append(threading.get_ident())
        return read_key(path, setting)

    monkeypatch.setattr("coordinator.credentials.read_key", read)
    (file := tmp_path / "key").write_text("s3cret\n")
    of = credentials(file)
    assert (await of.look(URL + "/"), await of.look("http://b")) == ("", "")
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert of.headers(URL) == {"authorization": "Bearer s3cret"}
    assert of.headers("http://b") == {}


async def test_a_key_counts_until_another_one_can_be_read(tmp_path: Path) -> None:
    of = credentials(file := tmp_path / "key")
    assert await of.look(URL) == "`api_key_file` cannot be read: No such file or directory"
    file.write_text("one")
    assert await of.look(URL) == ""
    file.write_text("not\none")
    assert await of.look(URL) == ""
    assert of.headers(URL) == {"authorization": "Bearer one"}
    file.write_text("two")
    assert await of.look(URL) == ""
    assert of.headers(URL) == {"authorization": "Bearer two"}


@pytest.mark.parametrize("text", ["", "two words", "two\nlines", "x" * (KEY_BYTES + 1), "kéy"])
def test_what_is_no_key_is_not_repeated(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "key").write_text(text, encoding="latin-1")
    assert read_key(file, "s") == (None, "`s` must hold one key: a line of printable characters")
