"""The committed wire code is what the .proto files give."""

from importlib import resources
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTO = ROOT / "proto"
KNOWN = resources.files("grpc_tools") / "_proto"
"""Google's own messages."""

SOURCES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.glob("lineside/v1/*.proto"))


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("proto")
    arguments = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{PROTO}", f"-I{KNOWN}", *arguments, *SOURCES]) == 0
    return target


def test_regenerating_changes_nothing(regenerated: Path) -> None:
    """`make proto` mends it."""
    fresh = {p.relative_to(regenerated): p.read_text() for p in regenerated.rglob("*.py*")}
    committed = {
        p.relative_to(PROTO): p.read_text()
        for p in (PROTO / "lineside" / "v1").iterdir()
        if p.suffix in (".py", ".pyi")
    }
    assert fresh == committed
