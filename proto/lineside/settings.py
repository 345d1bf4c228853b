"""Reads a settings struct: from a document, then the environment, then flags. Pure.

All that is wrong is reported at once, with its place, and nothing of the document is used then.
Values of secrets are never repeated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from lineside.documents import Dialect, Problem, Reader
from lineside.findings import Finding, Place
from lineside.nodes import Node, parse
from lineside.schema import Path, item_type, nested, settings_of

__all__ = ["Override", "Problem", "half_a_pair", "overrides", "read"]

T = TypeVar("T", bound=msgspec.Struct)

SETTINGS = Dialect("setting", "docs/settings.md lists them all", nulls=True)


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
    judge: Callable[[T], Iterable[Problem]] | None = None,
) -> T | list[Finding]:
    """Return the settings, or all that is wrong with them. `source` names the document.

    `judge` finds problems that the struct cannot: those of the world around.
    """
    parsed = parse(document, source)
    if parsed.findings:
        return parsed.findings
    if len(parsed.documents) > 1:
        return [Finding(parsed.documents[1].place, "syntax", "there is more than one document")]
    reader = _Reader(source, SETTINGS, overrides=overrides(kind, environ or {}, flags or {}))
    settings = reader.struct(kind, next(iter(parsed.documents), None), ())
    if judge is not None and settings is not None and not reader.findings:
        reader.report(judge(settings), ())
    if reader.findings or settings is None:
        return reader.finished()
    return cast(T, settings)


def half_a_pair(cert_file: str | None, key_file: str | None) -> Iterator[Problem]:
    """Yield what is wrong where a certificate is set without its key, or a key without it."""
    if (cert_file is None) != (key_file is None):
        there = "cert_file" if key_file is None else "key_file"
        missing = "key_file" if key_file is None else "cert_file"
        text = f"`{there}` is there without `{missing}`"
        yield Problem(((there,),), "half-a-pair", text, f"set `{missing}` as well, or neither")


@dataclass(slots=True)
class _Reader(Reader):
    overrides: Mapping[Path, Override] = field(default_factory=dict)

    def field(self, kind: Any, node: Node | None, path: Path) -> Any:
        """Return a field's value, of a variable or a flag where one says it."""
        if (inner := nested(kind)) is not None:
            if node is None and not any(said[: len(path)] == path for said in self.overrides):
                return msgspec.UNSET
            made = self.struct(inner, node, path)
            return msgspec.UNSET if made is None else made
        if (override := self.overrides.get(path)) is not None:
            self.places[path] = override.place
            said = _from_text(kind, override.text)
            return self.convert(kind, said, path, override.place, strict=False)
        return Reader.field(self, kind, node, path)


def _from_text(kind: Any, text: str) -> Any:
    """Return what a variable or a flag means: lists are written with commas."""
    return [part.strip() for part in text.split(",")] if item_type(kind) is not None else text
