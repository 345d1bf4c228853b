"""Names stand for files as people expect, also where a cluster mounts them."""

from pathlib import Path

import pytest

from lineside.nodes import MAX_BYTES
from policies import files


def test_a_folder_stands_for_its_files_in_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/c.yml", "a/d.json", ".git/e.yaml", ".f.yaml", "g.txt", "b.yaml~"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = files.find([str(tmp_path), str(tmp_path / "a"), str(tmp_path / "b.yaml")])
    assert [Path(each).relative_to(tmp_path).as_posix() for each in found] == [
        "b.yaml",
        "a/c.yml",
        "a/d.json",
    ]
    assert [text for _, text in files.read(found)] == [b"b.yaml", b"a/c.yml", b"a/d.json"]


def test_a_mounted_config_map_is_read_once(tmp_path: Path) -> None:
    data = tmp_path / "..2026_11_30"
    data.mkdir()
    (data / "p.yaml").write_text("p")
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    assert files.find([str(tmp_path)]) == [str(tmp_path / "p.yaml")]


def test_of_a_large_file_a_beginning_is_read(tmp_path: Path) -> None:
    with (tmp_path / "p.yaml").open("wb") as file:
        file.truncate(10 * MAX_BYTES)
    ((_, text),) = files.read([str(tmp_path / "p.yaml")])
    assert len(text) == MAX_BYTES + 1


@pytest.mark.parametrize("name", ["none.yaml", "folder"])
def test_what_cannot_be_read_says_why(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(files.Unreadable, match=f"{name}: (cannot be read|there is no)"):
        list(files.read(files.find([str(tmp_path / name)])))


def test_folders_of_too_many_files_are_not_read(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(files.Unreadable, match="more than 2 files"):
        files.find([str(tmp_path)], most=2)
