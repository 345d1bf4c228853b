"""The Dockerfiles, as far as they can be read: what they copy is there, and what they run."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPONENTS = ("agent", "coordinator")
HELPERS = (ROOT / "deploy/charts/lineside/templates/_helpers.tpl").read_text()


def dockerfile(component: str) -> str:
    return (ROOT / "deploy/images" / f"{component}.Dockerfile").read_text().replace("\\\n", "")


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_copied_is_there_and_not_ignored(component: str) -> None:
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile(component), re.M)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in allowed), source


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_runs_its_process_without_rights(component: str) -> None:
    text = dockerfile(component)
    (module,) = re.findall(
        r'^ENTRYPOINT \["/opt/lineside/bin/python", "-m", "(\S+)"\]$', text, re.M
    )
    assert module == f"{component}.main" and importlib.util.find_spec(module)
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.M)
    assert f"runAsUser: {user}\n" in HELPERS
    assert "--require-hashes" in text


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_has_the_python_of_the_lock(component: str) -> None:
    (version,) = re.findall(r"^ARG BASE=\S+python:(\d+\.\d+)-", dockerfile(component), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={version}"
