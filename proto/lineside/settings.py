"""Reads a settings struct: from a document, then the environment, then flags. Pure.

All that is wrong is reported at once, with its place, and nothing of the document is used then.
Values of secrets are never repeated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lineside.findings import Finding, Place, did_you_mean
from lineside.schema import (
    Path,
    describe,
    extra,
    item_struct,
    item_type,
    nested,
    settings_of,
)

T = TypeVar("T", bound=msgspec.Struct)

LISTED = 8
"""Known names are listed in a hint up to this many."""

SHOWN_CHARS = 60


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
class Override:
    """What a variable or a flag says of one setting."""

    text: str
    place: Place


def overrides(
    kind: type[msgspec.Struct], environ: Mapping[str, str], flags: Mapping[str, str]
) -> dict[Path, Override]:
    """Return what the environment and the flags (by name, `--idle-s`) override; flags win.

    An empty variable is one that is not set. Variables that name no setting are left alone:
    Kubernetes invents `LINESIDE_…_SERVICE_HOST` and others for a Service of that name.
    """
    found: dict[Path, Override] = {}
    for setting in settings_of(kind):
        if (name := setting.variable) is not None and environ.get(name):
            found[setting.path] = Override(environ[name], Place(name))
        if (name := setting.flag) is not None and name in flags:
            found[setting.path] = Override(flags[name], Place(name))
    return found


def read(
    kind: type[T],
    document: bytes,
    source: str,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> T | list[Finding]:
    """Return the settings, or all that is wrong with them. `source` names the document."""
    reader = _Reader(source, overrides(kind, environ or {}, flags or {}))
    root = reader.parse(document)
    if reader.findings:
        return reader.findings
    settings = reader.struct(kind, root, ())
    if reader.findings or settings is None:
        return sorted(reader.findings, key=_in_order)
    return cast(T, settings)


def _in_order(finding: Finding) -> tuple[bool, int, int]:
    """By line; what variables and flags say comes last."""
    return finding.place.line is None, finding.place.line or 0, finding.place.col or 0


@dataclass(slots=True)
class _Reader:
    source: str
    overrides: Mapping[Path, Override]
    findings: list[Finding] = field(default_factory=list)
    _places: dict[Path, Place] = field(default_factory=dict)
    _broken: set[Path] = field(default_factory=set)

    def parse(self, document: bytes) -> Node | None:
        """Return the document's root; `None` where it is empty."""
        try:
            return yaml.compose(document.decode(), Loader=yaml.SafeLoader)
        except UnicodeDecodeError:
            self._find(Place(self.source, 1, 1), "syntax", "the text is not UTF-8")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Place(self.source, mark.line + 1, mark.column + 1) if mark else None
            # Quoted parts go: a word of the document may be a secret.
            why = re.sub(r"(,? but found)? ?'[^']{3,}'", "", error.problem or "")
            self._find(place or Place(self.source, 1, 1), "syntax", "not valid YAML or JSON", why)
        except yaml.YAMLError:
            self._find(Place(self.source, 1, 1), "syntax", "not valid YAML or JSON")
        return None

    def struct(self, kind: type[msgspec.Struct], node: Node | None, path: Path) -> Any | None:
        """Return the struct, of defaults where fields are wrong; `None`: it cannot be made."""
        given = self._entries(kind, node, path)
        if given is None:
            return None
        values: dict[str, Any] = {}
        complete = True
        for known in msgspec.structs.fields(kind):
            here = (*path, known.name)
            value = self._field(known.type, given.get(known.name), here)
            if value is not msgspec.UNSET:
                values[known.name] = value
            elif known.required:
                complete = False
                if here not in self._broken:
                    self._missing(known.type, known.name, node)
        if not complete:
            self._broken.add(path)
            return None
        made = kind(**values)
        self._together(made, path)
        return made

    def _entries(
        self, kind: type[msgspec.Struct], node: Node | None, path: Path
    ) -> dict[str, Node] | None:
        """Return a mapping's values by name, without those that name no setting."""
        if node is None or (_is_null(node) and not path):
            return {}
        if not isinstance(node, MappingNode):
            what = f"`{_dotted(path)}`" if path else "the document"
            self._wrong(path, _place(self.source, node), f"{what} must be a mapping of settings")
            return None
        entries: dict[str, Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else "?"
            place = _place(self.source, key)
            if name in entries:
                line = self._places[(*path, name)].line
                self._find(place, "duplicate-setting", f"`{name}` is set twice", f"see line {line}")
            elif name not in kind.__struct_fields__:
                self._unknown(place, name, kind, path)
            else:
                entries[name] = value
                self._places[(*path, name)] = place
        return entries

    def _field(self, kind: Any, node: Node | None, path: Path) -> Any:
        """Return a field's value; `UNSET`: not said, or wrong."""
        if (inner := nested(kind)) is not None:
            if node is None and not any(said[: len(path)] == path for said in self.overrides):
                return msgspec.UNSET
            made = self.struct(inner, node, path)
            return msgspec.UNSET if made is None else made
        if (override := self.overrides.get(path)) is not None:
            self._places[path] = override.place
            return self._convert(kind, _from_text(kind, override.text), path, strict=False)
        if node is None:
            return msgspec.UNSET
        if item_type(kind) is not None and isinstance(node, SequenceNode):
            return self._list(kind, node, path)
        return self._convert(kind, self._plain(node), path, place=_place(self.source, node))

    def _list(self, kind: Any, node: SequenceNode, path: Path) -> Any:
        inner, values = item_struct(kind), []
        for number, entry in enumerate(node.value):
            here, place = (*path, number), _place(self.source, entry)
            self._places[here] = place
            if inner is not None:
                values.append(self.struct(inner, entry, here))
            else:
                values.append(self._convert(item_type(kind), self._plain(entry), here, place=place))
        if any(here[: len(path)] == path for here in self._broken):
            self._broken.add(path)
            return msgspec.UNSET
        return self._convert(kind, values, path, place=_place(self.source, node))

    def _convert(
        self, kind: Any, value: Any, path: Path, place: Place | None = None, strict: bool = True
    ) -> Any:
        try:
            return msgspec.convert(value, kind, strict=strict)
        except msgspec.ValidationError:
            secret = bool(extra(kind).get("secret"))
            message = f"`{_dotted(path)}` must be {describe(kind)}{_but_is(value, secret)}"
            self._wrong(path, place or self._places[path], message, _help(kind, value))
            return msgspec.UNSET

    def _plain(self, node: Node) -> Any:
        """Return a node's value as JSON has it; what JSON has not becomes a `_Foreign`."""
        loader = yaml.SafeLoader("")
        try:
            value = loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError):
            return _Foreign()
        finally:
            loader.dispose()
        return value if value is None or isinstance(value, _JSON) else _Foreign()

    def _together(self, made: msgspec.Struct, path: Path) -> None:
        for problem in made.problems() if hasattr(made, "problems") else ():
            paths = [(*path, *at) for at in problem.paths]
            if any(at[: len(bad)] == bad for at in paths for bad in self._broken):
                continue
            set_at = [self._places[at] for at in paths if at in self._places]
            place = set_at[0] if set_at else Place(self.source, 1, 1)
            self._find(place, problem.code, problem.message, problem.help)

    def _missing(self, kind: Any, name: str, node: Node | None) -> None:
        place = Place(self.source, 1, 1) if node is None else _place(self.source, node)
        self._find(place, "missing-setting", f"`{name}` is missing", f"it must be {describe(kind)}")

    def _unknown(self, place: Place, name: str, kind: type[msgspec.Struct], path: Path) -> None:
        known = kind.__struct_fields__
        where = f" in `{_dotted(path)}`" if path else ""
        names = ", ".join(f"`{each}`" for each in known)
        help = did_you_mean(name, known) or (
            f"there are {names}" if len(known) <= LISTED else "docs/settings.md lists them all"
        )
        self._find(place, "unknown-setting", f"there is no setting `{name}`{where}", help)

    def _wrong(self, path: Path, place: Place, message: str, help: str = "") -> None:
        self._broken.add(path)
        self._find(place, "wrong-value", message, help)

    def _find(self, place: Place, code: str, message: str, help: str = "") -> None:
        self.findings.append(Finding(place, code, message, help))


class _Foreign:
    """A value that only YAML has: a date, a set, an object."""


_JSON = (bool, int, float, str, list, dict)


def _from_text(kind: Any, text: str) -> Any:
    """Return what a variable or a flag means: lists are written with commas."""
    return [part.strip() for part in text.split(",")] if item_type(kind) is not None else text


def _place(source: str, node: Node) -> Place:
    return Place(source, node.start_mark.line + 1, node.start_mark.column + 1)


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _dotted(path: Sequence[str | int]) -> str:
    """Write a path as people do: `engines[0].url`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _but_is(value: Any, secret: bool) -> str:
    """Say what a value is instead. What looks like credentials in an address is left out."""
    if secret or isinstance(value, _Foreign):
        return ""
    if isinstance(value, list | dict):
        return ", not a list" if isinstance(value, list) else ", not a mapping"
    text = str(value) if isinstance(value, str) else str(msgspec.json.encode(value), "utf-8")
    if "@" in text:
        return ""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f", not `{text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + '…'}`"


def _help(kind: Any, value: Any) -> str:
    described = describe(kind)
    if described.startswith("text") and not isinstance(value, str):
        return "put it in quotes"
    if isinstance(value, str):
        return did_you_mean(value, re.findall(r"`([^`]+)`", described))
    return ""
