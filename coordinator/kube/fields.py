"""Where in an object a finding is: its field, as people write it. Pure.

A cluster keeps no lines, so a place in a document of ours says nothing to whoever wrote it.
"""

from collections.abc import Iterator

from lineside.documents import dotted
from lineside.findings import Finding, Place
from lineside.nodes import Mapping, Node, Scalar, Sequence, parse
from lineside.schema import Path


class Fields:
    """The fields of one document, by place; read when the first is asked for."""

    def __init__(self, document: bytes) -> None:
        self._document = document
        self._fields: dict[tuple[int | None, int | None], str] | None = None

    def at(self, place: Place) -> str:
        """Return the field at a place; empty: the object as a whole."""
        if self._fields is None:
            self._fields = {}
            for root in parse(self._document, place.source).documents:
                for path, found in _places(root, ()):
                    self._fields.setdefault((found.line, found.col), dotted(path))
        return self._fields.get((place.line, place.col), "")

    def located(self, finding: Finding) -> Finding:
        """Return a finding whose place is a field of its object."""
        field = self.at(finding.place)
        source = f"{finding.place.source}: {field}" if field else finding.place.source
        return Finding(Place(source), finding.code, finding.message, finding.help, finding.severity)


def _places(node: Node, path: Path) -> Iterator[tuple[Path, Place]]:
    yield path, node.place
    if isinstance(node, Sequence):
        for number, item in enumerate(node.items):
            yield from _places(item, (*path, number))
    elif isinstance(node, Mapping):
        for key, value in node.entries:
            here = (*path, key.text if isinstance(key, Scalar) else "?")
            yield here, key.place
            yield from _places(value, here)
