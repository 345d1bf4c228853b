"""Reads YAML or JSON into nodes that know their place; what cannot be read becomes a finding. Pure.

Whatever the text, time and memory are bounded: by its bytes, by its depth, and by its values, of
which an alias counts all that it repeats. Of a broken text only its place is said, never a word of
it: that may be a secret.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml import events
from yaml.nodes import ScalarNode

from lineside.findings import Finding, Place

MAX_BYTES = 4 << 20
"""Of one source; a thousand small policies are a tenth of it."""

MAX_NODES = 200_000
"""Of one source, repeated ones included: about 100 MB, and seconds. A thousand small policies are a
quarter of it."""

MAX_DEPTH = 64
"""Twice as deep as anything that people write, and shallow enough for recursion."""

RESOLVED_CHARS = 400
"""A longer plain word is text: a number of a million digits would take minutes to read."""

# libyaml's parser, where there is one; the other is the same in all but speed and wording.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

_HELP = {
    "did not find expected key": "is the line indented as its neighbours are?",
    "did not find expected '-' indicator": "is the line indented as its neighbours are?",
    "mapping values are not allowed in this context": "is the line indented as its neighbours"
    " are? text that holds `: ` goes in quotes",
}
TAB = "indent with spaces: YAML takes no tab here"
OPEN_QUOTE = "the quote that opens here is never closed"


class Foreign:
    """A value that only YAML has: a date, a set, an object."""


FOREIGN = Foreign()

Plain: TypeAlias = "bool | int | float | str | Foreign | None"


@dataclass(slots=True)
class Scalar:
    """A single value, and how it is written."""

    place: Place
    value: Plain
    text: str
    size: int = 1


@dataclass(slots=True)
class Sequence:
    """A list. `size` counts all values in it, and itself."""

    place: Place
    items: list["Node"] = field(default_factory=list)
    size: int = 1


@dataclass(slots=True)
class Mapping:
    """Keys and values as written: a key may be there twice."""

    place: Place
    entries: list[tuple["Node", "Node"]] = field(default_factory=list)
    size: int = 1


Node: TypeAlias = Scalar | Sequence | Mapping


@dataclass(slots=True)
class Parsed:
    """The documents of a source up to the first that cannot be read, and why that cannot."""

    documents: list[Node] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def parse(document: bytes, source: str) -> Parsed:
    """Return the nodes of each document. Bytes beyond `MAX_BYTES` + 1 need not be given."""
    parsed = Parsed()
    try:
        text = _text(document, source)
        composer = _Composer(source, text)
        for node in composer.documents():
            parsed.documents.append(node)
    except _Unreadable as error:
        parsed.findings.append(error.finding)
    return parsed


class _Unreadable(Exception):
    def __init__(self, place: Place, code: str, message: str, help: str = "") -> None:
        super().__init__(message)
        self.finding = Finding(place, code, message, help)


def _text(document: bytes, source: str) -> str:
    if len(document) > MAX_BYTES:
        message = f"the document is larger than {MAX_BYTES >> 20} MiB"
        raise _Unreadable(Place(source, 1, 1), "too-large", message, "split it into several files")
    try:
        text = document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _at(source, document[: error.start].decode("utf-8-sig", "replace"))
        raise _Unreadable(place, "syntax", "the text is not UTF-8") from None
    if (bad := _UNPRINTABLE.search(text)) is not None:
        place = _at(source, text[: bad.start()])
        raise _Unreadable(place, "syntax", "a control character is not text")
    return text


def _at(source: str, before: str) -> Place:
    """Return the place behind a beginning of the text."""
    return Place(source, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


class _Composer:
    """Puts the parser's events together, without recursion."""

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        self._text = text
        self._nodes = 0
        self._anchors: dict[str, Node] = {}
        self._open: list[tuple[Sequence | Mapping, Node | None, str | None]] = []
        """Collections around, each with a key that waits for its value, and its anchor."""

    def documents(self) -> Iterator[Node]:
        """Yield the root of each document; one without a value is none."""
        parser = _Parser(self._text)
        try:
            while parser.check_event():
                event = parser.get_event()
                if isinstance(event, events.DocumentStartEvent):
                    self._anchors.clear()
                elif isinstance(event, events.NodeEvent | events.CollectionEndEvent):
                    root = self._take(parser, event)
                    if root is not None and not is_null(root):
                        yield root
        except yaml.YAMLError as error:
            raise self._broken(error) from None
        finally:
            parser.dispose()

    def _take(self, parser: Any, event: Any) -> Node | None:
        """Apply one event; return the document's root when it is complete."""
        if isinstance(event, events.CollectionEndEvent):
            node, _, anchor = self._open.pop()
            return self._complete(node, anchor)
        place = Place(self._source, event.start_mark.line + 1, event.start_mark.column + 1)
        match event:
            case events.AliasEvent():
                return self._complete(self._repeated(event.anchor or "", place), None)
            case events.ScalarEvent():
                self._count(1, place)
                return self._complete(_scalar(parser, event, place), event.anchor)
            case _:
                self._count(1, place)
                if len(self._open) >= MAX_DEPTH:
                    raise _Unreadable(place, "too-deep", f"nested more than {MAX_DEPTH} deep")
                is_list = isinstance(event, events.SequenceStartEvent)
                opened = Sequence(place) if is_list else Mapping(place)
                self._open.append((opened, None, event.anchor))
                return None

    def _complete(self, node: Node, anchor: str | None) -> Node | None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            return node
        outer, key, outer_anchor = self._open[-1]
        outer.size += node.size
        if isinstance(outer, Sequence):
            outer.items.append(node)
        elif key is None:
            self._open[-1] = (outer, node, outer_anchor)
        else:
            outer.entries.append((key, node))
            self._open[-1] = (outer, None, outer_anchor)
        return None

    def _repeated(self, anchor: str, place: Place) -> Node:
        node = self._anchors.get(anchor)
        if node is None:
            # Also an alias of something around it, which would never end.
            raise _Unreadable(place, "syntax", NOT_YAML, "found undefined alias")
        self._count(node.size, place)
        if len(self._open) + _depth(node) > MAX_DEPTH:
            raise _Unreadable(place, "too-deep", f"nested more than {MAX_DEPTH} deep")
        return node

    def _count(self, size: int, place: Place) -> None:
        self._nodes += size
        if self._nodes > MAX_NODES:
            message = f"more than {MAX_NODES} values, those that aliases repeat included"
            raise _Unreadable(place, "too-large", message, "split it into several files")

    def _broken(self, error: yaml.YAMLError) -> _Unreadable:
        problem = getattr(error, "problem", None) or ""
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is None:
            return _Unreadable(Place(self._source, 1, 1), "syntax", NOT_YAML)
        if problem == "exceeded maximum nesting depth":  # libyaml reads ahead of our own bound
            place = Place(self._source, mark.line + 1, mark.column + 1)
            return _Unreadable(place, "too-deep", f"nested more than {MAX_DEPTH} deep")
        help = _HELP.get(problem) or re.sub(r"(,? but found)? ?'[^']{3,}'", "", problem)
        if (
            "quoted scalar" in (getattr(error, "context", None) or "")
            and "end of stream" in problem
        ):
            mark, help = getattr(error, "context_mark", mark), OPEN_QUOTE
        lines = self._text.split("\n")
        line, col = mark.line, mark.column
        if line >= len(lines):  # the end of a text without a last newline
            line, col = len(lines) - 1, len(lines[-1])
        if lines[line][col : col + 1] == "\t" or "\t" in lines[line][:col].lstrip(" ")[:1]:
            help = TAB
        return _Unreadable(Place(self._source, line + 1, col + 1), "syntax", NOT_YAML, help)


NOT_YAML = "not valid YAML or JSON"


def member(node: Node, name: str) -> Node | None:
    """Return the first value under a name; `None`: there is none, or the node is no mapping."""
    if not isinstance(node, Mapping):
        return None
    said = (v for key, v in node.entries if isinstance(key, Scalar) and key.text == name)
    return next(said, None)


def is_null(node: Node) -> bool:
    """Whether nothing is written there, or `null`."""
    return isinstance(node, Scalar) and node.value is None


def plain(node: Node) -> Any:
    """Return a node's value as JSON has it, `FOREIGN` for what JSON has not."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {
        key.text if isinstance(key, Scalar) else "?": plain(value) for key, value in node.entries
    }


def _depth(node: Node) -> int:
    """Return how many collections are in each other; `MAX_DEPTH` bounds the recursion."""
    if isinstance(node, Scalar):
        return 0
    inner = node.items if isinstance(node, Sequence) else [part for e in node.entries for part in e]
    return 1 + max((_depth(each) for each in inner if not isinstance(each, Scalar)), default=0)


def _scalar(parser: Any, event: Any, place: Place) -> Scalar:
    text: str = event.value
    tag: str = event.tag or "!"
    if tag == "!":
        short = len(text) <= RESOLVED_CHARS
        tag = parser.resolve(ScalarNode, text, event.implicit) if short else _STR
        if tag == _STR and event.implicit[0] and short and _EXPONENT.fullmatch(text):
            tag = _FLOAT
    return Scalar(place, _value(parser, tag, text), text)


_STR = "tag:yaml.org,2002:str"
_FLOAT = "tag:yaml.org,2002:float"

_EXPONENT = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?[eE][+-]?\d+")
"""A number of JSON that YAML 1.1 takes for text."""

_JSON = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null")}


def _value(parser: Any, tag: str, text: str) -> Plain:
    if tag == _STR:
        return text
    if tag not in _JSON or len(text) > RESOLVED_CHARS:
        return FOREIGN
    try:
        value: Plain = parser.construct_object(ScalarNode(tag, text))
    except (yaml.YAMLError, ValueError, KeyError):
        return FOREIGN
    return value
