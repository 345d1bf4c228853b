"""A folder of resources at one look: what is read, and that it is one set."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coordinator import resources
from coordinator.resources import look, unfit
from policies.files import read

GUARD = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: stays }
spec:
  rules:
  - name: data
    route:
      exclude: [ { name: g, if: { tag: pii }, drop: { backend: { type: Provider } } } ]
"""
PLAIN = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: plain }
spec: { rules: [ { name: all, route: { select: [ { type: Local } ] } } ] }
"""


def names(folder: Path) -> list[str]:
    judged = look(folder, None)
    assert judged is not None and judged.errors == ()
    return sorted(each.metadata.name for each in judged.resources.policies)


def test_a_guard_that_moves_while_files_are_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = tmp_path / "a.yaml", tmp_path / "z.yaml"
    first.write_text(PLAIN)
    last.write_text(GUARD)

    def moving(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        documents = read(files)
        yield next(documents)
        if last.read_text() == GUARD:
            first.write_text(GUARD)
            last.write_text(PLAIN)
        yield from documents

    monkeypatch.setattr(resources, "read", moving)
    assert names(tmp_path) == ["plain", "stays"]


def test_files_that_never_rest_are_not_put_into_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(PLAIN)

    def changing(files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield from read(files)
        file.write_text(file.read_text() + "\n")

    monkeypatch.setattr(resources, "read", changing)
    judged = look(tmp_path, None)
    assert judged is not None
    assert [each.message for each in judged.errors] == [
        f"{tmp_path}: its files change while they are read"
    ]


def test_a_pipe_among_the_files_is_named_and_nobody_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(PLAIN)
    pipe = tmp_path / "b.yaml"
    os.mkfifo(pipe)
    judged = look(tmp_path, None)
    assert judged is not None
    assert [each.message for each in judged.errors] == [f"{pipe}: is no regular file"]
    pipe.unlink()
    assert names(tmp_path) == ["plain"]


def test_a_folder_that_is_not_there_is_said_in_a_few_words(tmp_path: Path) -> None:
    (finding,) = unfit(tmp_path / "nope")
    assert str(finding) == f"{tmp_path}/nope: unreadable: no such file or directory"
