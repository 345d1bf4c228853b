"""Reads a strict struct from a document's nodes and says all that is wrong at once. Pure.

Each finding has its place, and the nearest name that is known. Fields are known as documents write
them, paths too. Values of secrets are never repeated.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any

import msgspec

from lineside import nodes
from lineside.findings import Finding, Place, did_you_mean
from lineside.nodes import FOREIGN, Foreign, Node, Scalar, is_null, plain
from lineside.schema import (
    Path,
    describe,
    extra,
    item_type,
    nested,
    unwrapped,
    value_type,
)

LISTED = 8
"""Known names are listed in a hint up to this many."""

NEARLY = 0.8
"""How near a name must be to be meant sooner than the same name further in or out."""

SHOWN_CHARS = 60

MAX_FINDINGS = 500
"""Of one source; further ones are counted in a last finding."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a struct finds wrong with fields that are right one by one.

    `paths` starts in the struct; the first that somebody set gives the place, and if one of them
    is wrong by itself there is no problem to report.
    """

    paths: tuple[Path, ...]
    code: str
    message: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a family of documents calls its parts, and how strict it is."""

    noun: str
    """What a field is called, also in codes: `unknown-field`."""
    listed: str
    """Where all of many names are listed."""
    nulls: bool = False
    """Whether `null` may be written for a field that need not be there."""
    dropped: Iterable[tuple[type[msgspec.Struct], frozenset[str]]] = ()
    """Fields that others add to a struct: not read, and not wrong."""

    def is_dropped(self, kind: type[msgspec.Struct], name: str) -> bool:
        """Whether a field of this struct is not ours to read."""
        return any(issubclass(kind, base) and name in names for base, names in self.dropped)


@dataclass(slots=True)
class Reader:
    """Makes structs of one source's nodes; collects findings and the place of each node."""

    source: str
    dialect: Dialect
    findings: list[Finding] = field(default_factory=list)
    places: dict[Path, Place] = field(default_factory=dict)
    """Of each field's name and each entry of a list. One document's: see `forget_places`."""
    unsaid: int = 0
    """Findings beyond `MAX_FINDINGS`."""
    _broken: set[Path] = field(default_factory=set)
    _around: list[type[msgspec.Struct]] = field(default_factory=list)

    def forget_places(self) -> None:
        """Begin with another document of the source."""
        self.places, self._broken = {}, set()

    def struct(self, kind: type[msgspec.Struct], node: Node | None, path: Path) -> Any | None:
        """Return the struct, of defaults where fields are wrong; `None`: it cannot be made."""
        given = self._entries(kind, node, path)
        if given is None:
            return None
        values: dict[str, Any] = {}
        complete = True
        self._around.append(kind)
        for name, known in _fields(kind).items():
            here = (*path, name)
            value = self.field(known.type, given.get(name), here)
            if value is not msgspec.UNSET:
                values[known.name] = value
            elif known.required:
                complete = False
                if here not in self._broken:
                    self._missing(known.type, name, node, path)
        self._around.pop()
        if not complete:
            self._broken.add(path)
            return None
        made = kind(**values)
        if hasattr(made, "problems"):
            self.report(made.problems(), path)
        return made

    def field(self, kind: Any, node: Node | None, path: Path) -> Any:
        """Return a field's value; `UNSET`: not said, or wrong."""
        if node is None:
            return msgspec.UNSET
        if not self.dialect.nulls:
            kind = unwrapped(kind)
        return self._value(kind, node, path)

    def find(self, place: Place, code: str, message: str, help: str = "") -> None:
        """Add a finding, or count it where there are too many."""
        if self.is_full:
            self.unsaid += 1
        else:
            self.findings.append(Finding(place, code, message, help))

    @property
    def is_full(self) -> bool:
        """Whether further findings are only counted."""
        return len(self.findings) >= MAX_FINDINGS

    def finished(self) -> list[Finding]:
        """Return the findings in the order of the source; what has no line comes last."""
        said = sorted(self.findings, key=_in_order)
        if self.unsaid:
            more = f"there are {self.unsaid} findings more"
            said.append(Finding(Place(self.source, 1, 1), "too-many", more))
        return said

    def _value(self, kind: Any, node: Node, path: Path) -> Any:
        inner = nested(unwrapped(kind))
        if inner is not None and not (is_null(node) and inner is not kind):
            made = self.struct(inner, node, path)
            return msgspec.UNSET if made is None else made
        if item_type(kind) is not None and isinstance(node, nodes.Sequence):
            return self._list(kind, node, path)
        if value_type(kind) is not None and isinstance(node, nodes.Mapping):
            return self._mapping(kind, node, path)
        return self.convert(kind, plain(node), path, node.place, secret=_is_secret(kind))

    def _list(self, kind: Any, node: nodes.Sequence, path: Path) -> Any:
        values = []
        for number, entry in enumerate(node.items):
            here = (*path, number)
            self.places[here] = entry.place
            values.append(self._value(item_type(kind), entry, here))
        if any(value is msgspec.UNSET for value in values):
            self._broken.add(path)
            return msgspec.UNSET
        return self.convert(kind, values, path, node.place)

    def _mapping(self, kind: Any, node: nodes.Mapping, path: Path) -> Any:
        name_kind, inner = value_type(kind) or (str, Any)
        values: dict[str, Any] = {}
        for key, value in node.entries:
            name, here = _name(key), (*path, _name(key))
            if name in values:
                self._twice(key, name, here)
                continue
            self.places[here] = key.place
            values[name] = self._value(inner, value, here)
            try:
                msgspec.convert(name, name_kind)
            except msgspec.ValidationError:
                what = f"a name in `{dotted(path)}` must be {describe(name_kind)}"
                self.wrong(here, key.place, what)
                values[name] = msgspec.UNSET
            self._inside(value, here)
        if any(value is msgspec.UNSET for value in values.values()):
            self._broken.add(path)
            return msgspec.UNSET
        return self.convert(kind, values, path, node.place, secret=_is_secret(inner))

    def _inside(self, node: Node, path: Path) -> None:
        """Note places, and names that are there twice, in a value of any shape."""
        if isinstance(node, nodes.Sequence):
            for number, item in enumerate(node.items):
                self.places[(*path, number)] = item.place
                self._inside(item, (*path, number))
        elif isinstance(node, nodes.Mapping):
            seen: set[str] = set()
            for key, value in node.entries:
                name, here = _name(key), (*path, _name(key))
                if name in seen:
                    self._twice(key, name, here)
                    continue
                seen.add(name)
                self.places[here] = key.place
                self._inside(value, here)

    def _entries(
        self, kind: type[msgspec.Struct], node: Node | None, path: Path
    ) -> dict[str, Node] | None:
        """Return a mapping's values by name, without those that name no field."""
        if node is None or (is_null(node) and not path):
            return {}
        noun = self.dialect.noun
        if not isinstance(node, nodes.Mapping):
            what = f"`{dotted(path)}`" if path else "the document"
            null = ", not `null`" if is_null(node) and not self.dialect.nulls else ""
            help = f"write its {noun}s, or leave it out" if null else ""
            self.wrong(path, node.place, f"{what} must be a mapping of {noun}s{null}", help)
            return None
        entries: dict[str, Node] = {}
        for key, value in node.entries:
            name = _name(key)
            if self.dialect.is_dropped(kind, name):
                continue
            if name in entries:
                self._twice(key, name, (*path, name))
            elif name not in _fields(kind):
                self._unknown(key.place, name, kind, path)
            else:
                entries[name] = value
                self.places[(*path, name)] = key.place
        return entries

    def convert(
        self,
        kind: Any,
        value: Any,
        path: Path,
        place: Place,
        strict: bool = True,
        secret: bool = False,
    ) -> Any:
        """Return a value of this type; `UNSET`: it is wrong, and a finding says so."""
        try:
            if _has_foreign(value):
                raise msgspec.ValidationError("not JSON")
            return msgspec.convert(value, kind, strict=strict)
        except msgspec.ValidationError:
            noun = self.dialect.noun
            said = _but_is(value, secret or _is_secret(kind))
            if isinstance(value, list) and item_type(kind) is not None:
                said = f", not {len(value)}"
            help = _help(describe(kind, noun), value)
            self.wrong(path, place, f"`{dotted(path)}` must be {describe(kind, noun)}{said}", help)
            return msgspec.UNSET

    def wrong(self, path: Path, place: Place, message: str, help: str = "") -> None:
        """Say that a value is wrong; what holds it is then not made of it."""
        self._broken.add(path)
        self.find(place, "wrong-value", message, help)

    def report(self, problems: Iterable[Problem], path: Path) -> None:
        """Say what is wrong with the struct at a path, where its fields are right by themselves."""
        for problem in problems:
            paths = [(*path, *at) for at in problem.paths]
            if any(at[: len(bad)] == bad for at in paths for bad in self._broken):
                continue
            set_at = [self.places[at] for at in paths if at in self.places]
            place = set_at[0] if set_at else Place(self.source, 1, 1)
            self.find(place, problem.code, problem.message, problem.help)

    def _missing(self, kind: Any, name: str, node: Node | None, path: Path) -> None:
        place = Place(self.source, 1, 1) if node is None else node.place
        noun, where = self.dialect.noun, f" in `{dotted(path)}`" if path else ""
        help = f"it must be {describe(kind, noun)}"
        self.find(place, f"missing-{noun}", f"`{name}` is missing{where}", help)

    def _twice(self, key: Node, name: str, path: Path) -> None:
        noun, line = self.dialect.noun, self.places[path].line
        self.find(
            key.place, f"duplicate-{noun}", f"`{clipped(name)}` is set twice", f"see line {line}"
        )

    def _unknown(self, place: Place, name: str, kind: type[msgspec.Struct], path: Path) -> None:
        if self.is_full:  # comparing names takes time, and thousands of them minutes
            self.unsaid += 1
            return
        noun = self.dialect.noun
        where = f" in `{dotted(path)}`" if path else ""
        message = f"there is no {noun} `{clipped(name)}`{where}"
        self.find(place, f"unknown-{noun}", message, self._hint(name, kind))

    def _hint(self, name: str, kind: type[msgspec.Struct]) -> str:
        """Say what was meant: a field further in or out, else the nearest name, else which are."""
        if name == "<<":
            return "merge keys are not read: write the fields out"
        known = _fields(kind)
        if near := did_you_mean(name, known, NEARLY):
            return near
        inside = (each for each, field in known.items() if name in _inner_names(field.type))
        if (inner := next(inside, None)) is not None:
            return f"it belongs in `{inner}`: is the line indented too little?"
        if any(name in _fields(outer) for outer in self._around):
            return "it belongs further out: is the line indented too much?"
        names = ", ".join(f"`{each}`" for each in known)
        few = f"there are {names}" if len(known) <= LISTED else self.dialect.listed
        return did_you_mean(name, known) or few


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return a struct's fields by the names that documents have for them."""
    return {each.encode_name: each for each in msgspec.structs.fields(kind)}


def _inner_names(kind: Any) -> Iterable[str]:
    """Return the fields of the struct that a field is, or that the entries of its list are."""
    kind = unwrapped(kind)
    inner = nested(kind) or nested(item_type(kind))
    return () if inner is None else _fields(inner)


def _in_order(finding: Finding) -> tuple[bool, int, int]:
    return finding.place.line is None, finding.place.line or 0, finding.place.col or 0


def _is_secret(kind: Any) -> bool:
    return bool(extra(kind).get("secret"))


def _name(key: Node) -> str:
    return key.text if isinstance(key, Scalar) else "?"


def _has_foreign(value: Any) -> bool:
    """Whether YAML's own kinds are anywhere in a value; it is as deep as its document at most."""
    if isinstance(value, dict):
        return any(map(_has_foreign, value.values()))
    return any(map(_has_foreign, value)) if isinstance(value, list) else value is FOREIGN


def dotted(path: Sequence[str | int]) -> str:
    """Write a path as people do: `engines[0].url`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def clipped(text: str) -> str:
    """Return an author's word for a message: one line, not too long."""
    text = "".join(c if c.isprintable() else "?" for c in text[: SHOWN_CHARS + 1])
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def _but_is(value: Any, secret: bool) -> str:
    """Say what a value is instead. What looks like credentials in an address is left out."""
    if secret or isinstance(value, Foreign):
        return ""
    if isinstance(value, list | dict):
        return ", not a list" if isinstance(value, list) else ", not a mapping"
    if isinstance(value, float) and not isfinite(value):
        return f", not `.{value}`".replace(".-", "-.")
    text = str(value) if isinstance(value, str) else str(msgspec.json.encode(value), "utf-8")
    return "" if "@" in text else f", not `{clipped(text)}`"


def _help(described: str, value: Any) -> str:
    if described.startswith(("text", "a value")) and not isinstance(value, str):
        return "put it in quotes"
    if described.startswith("a list") and value is not None and not isinstance(value, list):
        return "begin each entry with `- `" if isinstance(value, dict) else "write it as `[...]`"
    if isinstance(value, str):
        return did_you_mean(value, re.findall(r"`([^`]+)`", described))
    return ""
