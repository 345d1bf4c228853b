"""Documents to resources, each node's line and column kept; finds all that is wrong at once. Pure.

A resource with a finding is not given out, and whoever loads a set decides what that means for the
rest. Fields that a cluster adds are dropped unread.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from lineside import nodes
from lineside.documents import Dialect, Reader, clipped
from lineside.findings import Finding, Place, did_you_mean
from lineside.nodes import Node, Scalar, member
from lineside.schema import Path
from policies.model import KINDS, Metadata, Resource

TOOL_KINDS = frozenset({"ClusterState", "PolicyTest"})
"""Kinds of the offline tools: they lie among policies and are none (policies/cases.py)."""

CLUSTER_ADDS = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)

FIELDS = Dialect(
    "field",
    "docs/policies.md lists them all",
    dropped=((Metadata, CLUSTER_ADDS), (Resource, frozenset({"status"}))),
)


@dataclass(frozen=True, slots=True)
class Located:
    """A resource, and where each part of it is written."""

    resource: Resource
    source: str
    places: Mapping[Path, Place]
    """By fields as written and places in lists; the resource itself by `()`."""

    def place(self, path: Path) -> Place:
        """Return where a part is written; of one that is not, the nearest part around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What documents hold, in their order, and all that is wrong with them."""

    resources: tuple[Located, ...]
    findings: tuple[Finding, ...]


def load(documents: Iterable[tuple[str, bytes]]) -> Loaded:
    """Return the resources of documents, each with its source's name."""
    resources: list[Located] = []
    findings: list[Finding] = []
    first: dict[tuple[type[Resource], str], Place] = {}
    for source, document in documents:
        reader = Reader(source, FIELDS)
        for located in _resources(reader, document):
            key = type(located.resource), located.resource.key
            here = located.place(("metadata", "name"))
            if key in first:
                _twice(reader, located.resource, here, first[key])
            else:
                first[key] = here
                resources.append(located)
        findings += reader.finished()
    return Loaded(tuple(resources), tuple(findings))


def _resources(reader: Reader, document: bytes) -> Iterator[Located]:
    parsed = nodes.parse(document, reader.source)
    reader.findings += parsed.findings
    if not parsed.documents and not parsed.findings:
        reader.find(Place(reader.source, 1, 1), "empty", "there is no resource in it")
    for root in parsed.documents:
        for node in _items(reader, root):
            reader.forget_places()
            before = len(reader.findings) + reader.unsaid
            resource = _resource(reader, node)
            if resource is not None and len(reader.findings) + reader.unsaid == before:
                places = {**reader.places, (): node.place}
                yield Located(resource, reader.source, places)


def _items(reader: Reader, root: Node) -> Iterable[Node]:
    """Return the items of a list as `kubectl get` prints it, else the document itself."""
    kind = member(root, "kind")
    if not isinstance(kind, Scalar) or kind.text not in {"List", *(f"{k}List" for k in KINDS)}:
        return [root]
    items = member(root, "items")
    if isinstance(items, nodes.Sequence):
        return items.items
    place = root.place if items is None else items.place
    reader.find(place, "wrong-value", "`items` must be a list of resources")
    return []


def _resource(reader: Reader, node: Node) -> Resource | None:
    if not isinstance(node, nodes.Mapping):
        message = "a resource is a mapping of fields, and this is none"
        reader.find(node.place, "wrong-value", message, "it begins with `apiVersion` and `kind`")
        return None
    said = member(node, "kind")
    if said is None or not isinstance(said, Scalar):
        code = "missing-field" if said is None else "wrong-value"
        message = "`kind` is missing" if said is None else "`kind` must be text"
        reader.find((said or node).place, code, message, _listed())
        return None
    if said.text in TOOL_KINDS:
        return None
    kind = KINDS.get(said.text) or _nearest(reader, said)
    if kind is None:
        return None
    meant = Scalar(said.place, kind.__name__, kind.__name__)
    entries = [(key, meant if value is said else value) for key, value in node.entries]
    made = reader.struct(kind, nodes.Mapping(node.place, entries), ())
    return made if isinstance(made, kind) else None


def _nearest(reader: Reader, said: Scalar) -> type[Resource] | None:
    """Report a kind that there is not, and return the nearest: it tells what else is wrong."""
    hint = did_you_mean(said.text, KINDS)
    message = f"there is no kind `{clipped(said.text)}`"
    reader.find(said.place, "unknown-kind", message, hint or _listed())
    return next((kind for name, kind in KINDS.items() if f"`{name}`" in hint), None)


def _listed() -> str:
    return "there are " + ", ".join(f"`{name}`" for name in KINDS)


def _twice(reader: Reader, resource: msgspec.Struct, here: Place, first: Place) -> None:
    assert isinstance(resource, Resource)
    message = f"`{type(resource).__name__}` `{clipped(resource.key)}` is there twice"
    reader.find(here, "duplicate-resource", message, f"the first is at {first}")
