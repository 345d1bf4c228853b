"""docs/policies.md is true: its examples load, and every field of every kind is in it."""

import re
from pathlib import Path

import msgspec
import pytest

from policies.cases import tools_in
from policies.load import load
from policies.model import KINDS
from policies.schema import _structs
from policies.state import ClusterState, EngineState, ProviderState

PAGE = (Path(__file__).parent.parent / "docs" / "policies.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: str(text.count("\n")))
def test_an_example_loads(text: str) -> None:
    document = ("policies.md", text.encode())
    found, tools = load([document]), tools_in([document])
    assert found.findings == () and tools.findings == []
    assert found.resources or tools.states or tools.suites


def test_every_field_of_every_kind_is_named() -> None:
    structs = {each for kind in KINDS.values() for each in _structs(kind)}
    structs |= {ClusterState, EngineState, ProviderState}
    fields = {field.encode_name for each in structs for field in msgspec.structs.fields(each)}
    words = set(re.findall(r"[A-Za-z0-9]+", PAGE))
    assert sorted(fields - words) == []


def test_every_code_of_loading_is_in_the_table() -> None:
    listed = set(re.findall(r"`([a-z-]+)`", PAGE.partition("| code | means |")[2].split("\n\n")[0]))
    tested = Path(__file__).with_name("test_policy_load.py").read_text()
    said = set(re.findall(r"\d: ([a-z]+(?:-[a-z]+)?): ", tested)) | {"empty", "syntax", "too-many"}
    assert listed == said
