"""The CustomResourceDefinitions of the kinds, made of the structs that `load` reads. Pure.

What a cluster's schema cannot say, `load` and `lint` find when a coordinator reads the resource:
what names in mappings are made of, names that are there twice in a list, and all that depends on
other resources. No default is written into stored resources: a coordinator knows its own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

from policies.cel import RULES, Rule
from policies.checks.codes import CODES
from policies.model import API_VERSION
from policies.schema import json_schema
from policies.status import CONDITION, IN_FORCE, MAX_CONDITIONS

Json: TypeAlias = dict[str, Any]

GROUP, VERSION = API_VERSION.split("/")

PART_OF = {"app.kubernetes.io/part-of": "lineside"}
"""By this label the chart tells our definitions from another product's of the same group."""

MARK = "lineside.dev/definition"
"""Annotation with a digest of the definition. An API server rewrites what it stores, so nothing
else tells whether it is the one that a release has."""

CATEGORY = "lineside"

MAX_ITEMS = 256
"""Of a list that has no bound of its own: the API server refuses a rule in CEL whose worst case it
cannot bound."""

MAX_ENTRIES = 64
"""Of a mapping, for the same reason."""

BOUNDS: Mapping[tuple[str, str], int] = {
    ("Rule", "matches"): 32,
    ("Rule", "limits"): 16,
    ("Route", "exclude"): 32,
    ("Route", "select"): 32,
    ("Stage", "split"): 16,
}
"""Tighter bounds of what is nested: the API server multiplies them."""

_KEPT = frozenset(
    {"type", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minimum"}
    | {"maximum", "required"}
)
_NOT_SAID = frozenset({"title", "description", "default", "propertyNames"})


@dataclass(frozen=True, slots=True)
class Column:
    """What `kubectl get` prints."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Only with `-o wide`."""


_ACCEPTED = Column("Accepted", '.status.conditions[?(@.type=="Accepted")].status')


@dataclass(frozen=True, slots=True)
class Naming:
    """What a kind is called, and what a list of it shows."""

    plural: str
    short: str
    columns: tuple[Column, ...]


NAMINGS: Mapping[str, Naming] = {
    "InferencePolicy": Naming(
        "inferencepolicies",
        "ipol",
        (Column("Priority", ".spec.priority", "integer"), Column("Mode", ".spec.mode")),
    ),
    "InferencePool": Naming(
        "inferencepools", "ipool", (Column("Worker Sets", ".spec.workerSets"),)
    ),
    "InferenceProvider": Naming(
        "inferenceproviders",
        "iprov",
        (Column("Type", ".spec.type"), Column("Base URL", ".spec.baseURL", wide=True)),
    ),
    "InferenceWorkerSet": Naming(
        "inferenceworkersets", "iws", (Column("Selector", ".spec.selector"),)
    ),
    "GatewayBackend": Naming(
        "gatewaybackends",
        "gwb",
        (
            Column("Pool", ".spec.pool"),
            Column("Provider", ".spec.provider"),
            Column("Failure Mode", ".spec.failureMode", wide=True),
        ),
    ),
}


def definitions() -> Iterator[Json]:
    """Yield each kind's definition, as the API server takes it."""
    parts = json_schema()["$defs"]
    for kind, naming in NAMINGS.items():
        spec = {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": naming.plural,
                "singular": kind.lower(),
                "shortNames": [naming.short],
                "categories": [CATEGORY],
            },
            "versions": [_version(kind, naming, parts)],
        }
        digest = sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{naming.plural}.{GROUP}",
                "labels": dict(PART_OF),
                "annotations": {MARK: digest},
            },
            "spec": spec,
        }


def _version(kind: str, naming: Naming, parts: Json) -> Json:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            *map(_column, (*naming.columns, _ACCEPTED)),
            _column(Column("Age", ".metadata.creationTimestamp", "date")),
        ],
        "schema": {"openAPIV3Schema": _resource(kind, parts)},
    }


def _column(column: Column) -> Json:
    said = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**said, "priority": 1} if column.wide else said


def _resource(kind: str, parts: Json) -> Json:
    """Return a kind's schema. Of what every resource has, the API server checks more by itself."""
    written = parts[kind]
    return {
        "type": "object",
        "description": written["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(written["properties"]["spec"], parts),
            "status": _status(),
        },
    }


def _structural(part: Json, parts: Json, where: tuple[str, str] = ("", "")) -> Json:
    """Return a schema without references, in the words of OpenAPI that a cluster allows.

    `where` is the struct and the field that it is of.
    """
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        is_struct = "properties" in parts[name]
        said = _struct(name, parts) if is_struct else _structural(parts[name], parts)
        return {**said, "description": words} if (words := _said_of(part)) else said
    said = {word: value for word, value in part.items() if word in _KEPT}
    if words := _said_of(part):
        said["description"] = words
    unknown = part.keys() - _KEPT - _NOT_SAID - _TRANSLATED.keys()
    assert not unknown, f"a cluster's schema has no word for {sorted(unknown)}"
    for word in _TRANSLATED.keys() & part.keys():
        said |= _TRANSLATED[word](part, parts)
    if "enum" in said:
        said.setdefault("type", "string")
    if said.get("type") == "array":
        said.setdefault("maxItems", BOUNDS.get(where, MAX_ITEMS))
    if said.get("type") == "object":
        said |= {"maxProperties": MAX_ENTRIES}
        said.setdefault("additionalProperties", {"x-kubernetes-preserve-unknown-fields": True})
    return said


def _struct(name: str, parts: Json) -> Json:
    part = parts[name]
    properties = {
        field: _structural(inner, parts, (name, field))
        for field, inner in part["properties"].items()
    }
    said: Json = {"type": "object"}
    for word in ("description", "required"):
        if part.get(word):
            said[word] = part[word]
    said["properties"] = properties
    if name in RULES:
        said["x-kubernetes-validations"] = [_validation(rule) for rule in RULES[name]]
    return said


def _said_of(part: Json) -> str:
    """Return what a field means, with its default, in words that are not Python's."""
    said = str(part.get("description", "")).replace("`None`:", "Left out:")
    if (default := part.get("default")) not in (None, {}, (), []):
        said += f" Default: `{json.dumps(default)}`."
    return said.strip()


def _validation(rule: Rule) -> Json:
    return {"rule": rule.expression, "message": f"{rule.code}: {CODES[rule.code].meaning}"}


_TRANSLATED: Mapping[str, Any] = {
    "items": lambda part, parts: {"items": _structural(part["items"], parts)},
    "additionalProperties": lambda part, parts: {
        "additionalProperties": _structural(part["additionalProperties"], parts)
    },
    "const": lambda part, _: {"enum": [part["const"]]},
    "exclusiveMinimum": lambda part, _: {
        "minimum": part["exclusiveMinimum"],
        "exclusiveMinimum": True,
    },
}


def _status() -> Json:
    """Return what a coordinator says of a resource, in Kubernetes' own form for conditions."""
    return {
        "type": "object",
        "description": "What a coordinator made of the resource.",
        "properties": {
            "conditions": {
                "type": "array",
                "maxItems": MAX_CONDITIONS,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": CONDITION,
            },
            "inForce": IN_FORCE,
        },
    }
