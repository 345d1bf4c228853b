"""The definitions for a cluster: as committed, structural, of one mind with `load` and `lint`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.cel import RULES
from policies.checks.codes import CODES
from policies.crd import GROUP, MARK, NAMINGS, PART_OF, definitions
from policies.lint import lint
from policies.load import load
from policies.model import API_VERSION, KINDS
from tests.crd_cases import GOOD, REFUSED_BY_RULE, REFUSED_BY_SCHEMA
from tests.generators import manifests

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
DEFINITIONS = {each["spec"]["names"]["kind"]: each for each in definitions()}
SCHEMAS = {
    kind: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for kind, each in DEFINITIONS.items()
}

WORDS = {
    "type",
    "format",
    "description",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "x-kubernetes-validations",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
}

ONLY_FOUND_BY_LINT = {
    "address": "a URL's parts; the pattern says the rest",
    "contradictory-match": "every bound against every other, below a thousand rules",
    "drops-everything": "what an exclude can reach",
    "duplicate-name": "each name with every other; lists are ordered, so no map by name",
    "never-drops": "what an exclude can reach",
    "nothing-considered": "what a route can reach",
    "proof-failed": "all policies together",
    "proof-malformed": "an annotation",
    "proof-undecided": "all policies together",
    "reserved-header": "a list that grows; names of headers have no case",
    "reserved-parameter": "a list that grows",
    "set-max-tokens": "names in mappings of any value",
    "unknown-api": "a glob against each of them",
    "unknown-backend": "other resources",
    "unknown-model": "other resources",
    "unmatchable-header": "names in mappings",
    "unsendable-header": "names in mappings",
}
"""Errors that no rule in CEL says, with the reason."""


def parts(schema: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every part of a schema with its path."""
    yield at, schema
    for name, inner in schema.get("properties", {}).items():
        yield from parts(inner, f"{at}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from parts(schema[word], f"{at}[]")


def wrong(schema: Any, value: Any, at: str = "") -> list[str]:
    """Return where a value is not what a structural schema says; CEL aside."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }
    kind = schema["type"]
    if not isinstance(value, kinds[kind]) or isinstance(value, bool) != (kind == "boolean"):
        return [f"{at}: {kind}"]
    found = [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
    if kind == "object":
        open_ = schema.get("additionalProperties")
        for name, inner in value.items():
            said = schema.get("properties", {}).get(name, open_)
            found += wrong(said, inner, f"{at}.{name}") if said else [f"{at}.{name}: unknown"]
    if kind == "array":
        found += [line for n, each in enumerate(value) for line in wrong(schema["items"], each, at)]
    checks = {
        "enum": lambda said: value in said,
        "pattern": lambda said: re.search(said, value),
        "minLength": lambda said: len(value) >= said,
        "maxLength": lambda said: len(value) <= said,
        "minItems": lambda said: len(value) >= said,
        "maxItems": lambda said: len(value) <= said,
        "maxProperties": lambda said: len(value) <= said,
        "minimum": lambda said: value > said if schema.get("exclusiveMinimum") else value >= said,
        "maximum": lambda said: value <= said,
    }
    return found + [
        f"{at}: {w}" for w, holds in checks.items() if w in schema and not holds(schema[w])
    ]


def loaded(document: Any) -> Any:
    return load([("r.json", json.dumps(document).encode())])


def spec_findings(document: Any) -> list[str]:
    """Return what is wrong with a resource's fields, as its definition says it."""
    return wrong(SCHEMAS[document["kind"]]["properties"]["spec"], document["spec"])


@pytest.mark.parametrize(
    ("path", "text"), list(manifests().crds()), ids=lambda each: getattr(each, "name", "")
)
def test_the_committed_definitions_are_the_generated_ones(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make manifests`"


def test_every_kind_has_a_definition_with_names_of_its_own() -> None:
    assert NAMINGS.keys() == DEFINITIONS.keys() == KINDS.keys()
    names = [each["spec"]["names"] for each in DEFINITIONS.values()]
    called = [
        name for each in names for name in (each["plural"], each["singular"], *each["shortNames"])
    ]
    assert len(set(called)) == len(called)
    for kind, each in DEFINITIONS.items():
        mark = each["metadata"]["annotations"][MARK]
        assert re.fullmatch(r"[0-9a-f]{16}", mark)
        assert each["metadata"] == {
            "name": f"{NAMINGS[kind].plural}.{GROUP}",
            "labels": PART_OF,
            "annotations": {MARK: mark},
        }
        assert f"{each['spec']['group']}/{each['spec']['versions'][0]['name']}" == API_VERSION


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_a_schema_is_structural(kind: str) -> None:
    for at, part in parts(SCHEMAS[kind]):
        assert part.keys() <= WORDS, at
        if part.get("x-kubernetes-preserve-unknown-fields"):
            assert "type" not in part or part["type"] == "object", at
        else:
            assert part.get("type"), at
        assert not ("properties" in part and "additionalProperties" in part), at
        if part.get("type") == "array":
            assert {"items", "maxItems"} <= part.keys(), at
        if "pattern" in part:  # RE2 looks neither ahead nor behind, and has no `\Z`
            assert not re.search(r"\\Z|\(\?[=!<]", part["pattern"]), at
    assert "default" not in json.dumps(SCHEMAS[kind]).split('"')


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_columns_show_fields_that_there_are(kind: str) -> None:
    always = {".metadata.creationTimestamp", '.status.conditions[?(@.type=="Accepted")].status'}
    known = {at for at, _ in parts(SCHEMAS[kind])} | always
    columns = DEFINITIONS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]
    assert {column["jsonPath"] for column in columns} <= known
    assert columns[-1]["name"] == "Age"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_published_policies_and_examples_are_valid(path: Path) -> None:
    resources = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] in KINDS]
    assert resources
    assert [spec_findings(each) for each in resources] == [[] for _ in resources]


@pytest.mark.parametrize(
    ("code", "document"),
    [pytest.param(code, document, id=name) for name, code, document in REFUSED_BY_RULE],
)
def test_lint_says_what_a_rule_in_cel_says(code: str, document: Any) -> None:
    assert spec_findings(document) == []
    read = loaded(document)
    assert read.findings == ()
    assert code in {each.code for each in lint(read.resources)}


@pytest.mark.parametrize(
    "document", [pytest.param(document, id=name) for name, _, document in REFUSED_BY_SCHEMA]
)
def test_load_refuses_what_the_schema_refuses(document: Any) -> None:
    assert spec_findings(document) != []
    assert loaded(document).findings != ()


@pytest.mark.parametrize("document", [pytest.param(document, id=name) for name, document in GOOD])
def test_load_takes_what_the_schema_takes(document: Any) -> None:
    assert spec_findings(document) == []
    assert loaded(document).findings == ()


def test_every_error_is_a_rule_or_has_a_reason_not_to_be() -> None:
    said = {rule.code for rules in RULES.values() for rule in rules}
    errors = {code for code, each in CODES.items() if each.severity == "error"}
    assert said | ONLY_FOUND_BY_LINT.keys() == errors
    assert not said & ONLY_FOUND_BY_LINT.keys()
    assert {code for _, code, _ in REFUSED_BY_RULE} == said
