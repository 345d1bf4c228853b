"""The JSON Schema of the kinds, for editors: made of the structs, so that it says what `load` does.

It takes what the author of a file writes; fields that a cluster adds are not in it.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import msgspec

from lineside.meanings import field_docs
from lineside.schema import item_type, nested, unwrapped, value_type
from policies.model import API_VERSION, KINDS

Json: TypeAlias = dict[str, Any]


def json_schema() -> Json:
    """Return the schema of one document that holds any of the kinds."""
    _, parts = msgspec.json.schema_components(KINDS.values(), ref_template="#/$defs/{name}")
    structs = {struct.__name__: struct for kind in KINDS.values() for struct in _structs(kind)}
    definitions = {name: _adjusted(part) for name, part in parts.items()}
    for name, struct in structs.items():
        _describe(definitions[name], struct)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Resources of {API_VERSION}",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {"apiVersion": {"const": API_VERSION}, "kind": {"enum": list(KINDS)}},
        # Not `oneOf`: an editor then shows what is wrong in the one that is meant.
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}},
                "then": {"$ref": f"#/$defs/{kind}"},
            }
            for kind in KINDS
        ],
        "$defs": definitions,
    }


def _structs(kind: type[msgspec.Struct]) -> Iterable[type[msgspec.Struct]]:
    """Yield a struct and those of its fields, some of them more than once."""
    yield kind
    for field in msgspec.structs.fields(kind):
        inner = unwrapped(field.type)
        inner = unwrapped(item_type(inner) or (value_type(inner) or (None, inner))[1])
        if (struct := nested(inner)) is not None:
            yield from _structs(struct)


def _adjusted(part: Any) -> Any:
    """Return a schema without `null`, which `load` refuses: one leaves a field out."""
    if isinstance(part, list):
        return [_adjusted(each) for each in part]
    if not isinstance(part, dict):
        return part
    some = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
    if len(some) == 1:
        part = {**{key: value for key, value in part.items() if key != "anyOf"}, **some[0]}
    if isinstance(pattern := part.get("pattern"), str):  # `\Z` is Python's word for the end
        part = {**part, "pattern": pattern.replace(r"\Z", "$")}
    if part.get("default", ...) is None:
        part = {key: value for key, value in part.items() if key != "default"}
    return {key: _adjusted(value) for key, value in part.items()}


def _describe(part: Json, struct: type[msgspec.Struct]) -> None:
    """Add what the strings below a struct's fields say."""
    said = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        if (meaning := said.get(field.name)) is not None:
            cast(Json, part["properties"][field.encode_name])["description"] = meaning
