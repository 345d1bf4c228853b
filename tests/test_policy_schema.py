"""The schema for editors takes what `load` takes, and refuses what it refuses."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from policies.load import load
from policies.schema import json_schema

EXAMPLES = sorted((Path(__file__).parent.parent / "policies" / "examples").glob("*.yaml"))
SCHEMA = json_schema()

SILENT = {"$schema", "$defs", "title", "description", "default"}


def wrong(schema: Any, value: Any, at: str = "") -> list[str]:
    """Return where a value is not what a schema says. Knows the words that ours has, no others."""
    if "$ref" in schema:
        assert set(schema) <= {"$ref", *SILENT}
        return wrong(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], value, at)
    found: list[str] = []
    for word, said in schema.items():
        if word not in SILENT:
            found += _WORDS[word](schema, said, value, at)
    return found


def _type(_: Any, said: str, value: Any, at: str) -> list[str]:
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    right = isinstance(value, (int, float) if said == "number" else kinds[said])
    return [] if right and isinstance(value, bool) == (said == "boolean") else [f"{at}: {said}"]


def _properties(schema: Any, said: Any, value: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [
        line
        for key, inner in said.items()
        if key in value
        for line in wrong(inner, value[key], f"{at}/{key}")
    ]


def _additional(schema: Any, said: Any, value: Any, at: str) -> list[str]:
    others = set(value) - set(schema.get("properties", ())) if isinstance(value, dict) else set()
    if said is False:
        return [f"{at}: {each}" for each in sorted(others)]
    return [line for each in others for line in wrong(said, value[each], f"{at}/{each}")]


def _items(_: Any, said: Any, value: Any, at: str) -> list[str]:
    items = value if isinstance(value, list) else []
    return [line for n, each in enumerate(items) for line in wrong(said, each, f"{at}/{n}")]


def _if(schema: Any, said: Any, value: Any, at: str) -> list[str]:
    return [] if wrong(said, value, at) else wrong(schema["then"], value, at)


def _ok(right: bool, at: str, word: str) -> list[str]:
    return [] if right else [f"{at}: {word}"]


_WORDS: dict[str, Any] = {
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "if": _if,
    "then": lambda *_: [],
    "allOf": lambda _, said, value, at: [x for each in said for x in wrong(each, value, at)],
    "propertyNames": lambda _, said, value, at: [x for key in value for x in wrong(said, key, at)],
    "required": lambda _, said, value, at: [f"{at}: no {x}" for x in said if x not in value],
    "const": lambda _, said, value, at: _ok(value == said, at, "const"),
    "enum": lambda _, said, value, at: _ok(value in said, at, "enum"),
    "pattern": lambda _, said, value, at: _ok(bool(re.search(said, str(value))), at, "pattern"),
    "minLength": lambda _, said, value, at: _ok(len(str(value)) >= said, at, "minLength"),
    "maxLength": lambda _, said, value, at: _ok(len(str(value)) <= said, at, "maxLength"),
    "minItems": lambda _, said, value, at: _ok(len(value) >= said, at, "minItems"),
    "maxItems": lambda _, said, value, at: _ok(len(value) <= said, at, "maxItems"),
    "minimum": lambda _, said, value, at: _ok(value >= said, at, "minimum"),
    "maximum": lambda _, said, value, at: _ok(value <= said, at, "maximum"),
    "exclusiveMinimum": lambda _, said, value, at: _ok(value > said, at, "exclusiveMinimum"),
}


def _resources(path: Path) -> list[Any]:
    documents = yaml.safe_load_all(path.read_text())
    return [each for each in documents if each["kind"] != "ClusterState"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_what_the_schema_says(path: Path) -> None:
    assert [wrong(SCHEMA, each) for each in _resources(path)] == [[] for _ in _resources(path)]


BURST = next(path for path in EXAMPLES if path.stem == "burst-policy")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"specs": {}}, ": specs", id="a field too many"),
        pytest.param({"kind": "InferencePolcy"}, "/kind: enum", id="no such kind"),
        pytest.param({"apiVersion": "v1"}, "/apiVersion: const", id="another version"),
        pytest.param(
            {"spec": {"rules": [{"name": "r", "route": {"selct": []}}]}},
            "/spec/rules/0/route: selct",
            id="a typo deep inside",
        ),
        pytest.param(
            {"spec": {"rules": [{"name": "r", "route": {"onEmpty": "reject"}}]}},
            "/spec/rules/0/route/onEmpty: enum",
            id="a word in the wrong case",
        ),
        pytest.param({"spec": {"rules": []}}, "/spec/rules: minItems", id="no rules"),
        pytest.param(
            {"spec": {"rules": [{"name": "r", "matches": None}]}},
            "/spec/rules/0/matches: array",
            id="null",
        ),
        pytest.param(
            {"spec": {"rules": [{"name": "r", "limits": [{"window": "1x"}]}]}},
            "/spec/rules/0/limits/0/window: pattern",
            id="no time",
        ),
    ],
)
def test_what_load_refuses_the_schema_refuses(change: dict[str, Any], said: str) -> None:
    (document,) = copy.deepcopy(_resources(BURST))
    document |= change
    assert said in wrong(SCHEMA, document)
    assert load([("p.json", json.dumps(document).encode())]).findings != ()


def test_a_window_is_a_time_for_both() -> None:
    (document,) = copy.deepcopy(_resources(BURST))
    document["spec"]["rules"][0]["limits"] = [{"window": "15m", "requests": 5}]
    assert wrong(SCHEMA, document) == []
    assert load([("p.json", json.dumps(document).encode())]).findings == ()


def test_fields_have_their_meaning() -> None:
    route = SCHEMA["$defs"]["Route"]
    assert route["description"] == "Where requests go."
    assert route["properties"]["select"]["description"].startswith("Tried in order")
    assert "null" not in msgspec.json.encode(SCHEMA).decode()
