"""A copy of one kind's objects as events make it: lists replace it, watches change it. Pure.

A server's events are taken in the order in which they come. Whatever does not fit ends the watch:
the next list is right.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from coordinator.kube.reading import decoded

Object: TypeAlias = Mapping[str, Any]
"""An object, as JSON has it."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""

T = TypeVar("T")

GONE = 410


class Gone(Exception):
    """The server no longer knows what changed since the copy was right: list again."""


class Broken(Exception):
    """What came is no event of a watch, or says that the watch failed: list again."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    uid: str
    value: T


class Reflection(Generic[T]):
    """Written by its reflector alone."""

    def __init__(self, read: Callable[[Object], T]) -> None:
        """`read` takes from an object what is of interest; only a change of that is one."""
        self.objects: Mapping[Key, T] = {}
        """Replaced by each change, never written into."""
        self.revision: str | None = None
        """From where a watch goes on; `None`: list first."""
        self._read = read
        self._held: dict[Key, _Held[T]] = {}

    def replace(self, objects: Iterable[Object], revision: str) -> bool:
        """Take a whole list for what there is; return whether anything changed."""
        before, self._held = self._held, {}
        for each in objects:
            key, uid = _identity(each)
            self._held[key] = _Held(uid, self._read(each))
        self.revision = revision
        return self._changed(before != self._held)

    def apply(self, line: bytes) -> bool:
        """Take one event; return whether anything changed. Raises `Gone` and `Broken`."""
        try:
            event = decoded(line, _Event)
        except msgspec.MsgspecError:
            raise Broken("an event cannot be read") from None
        if event.type == "ERROR":
            code = event.object.get("code")
            raise Gone if code == GONE else Broken(f"the watch failed with code {code}")
        revision = _metadata(event.object).get("resourceVersion")
        if not isinstance(revision, str) or not revision:
            raise Broken("an event names no revision")
        has_changed = event.type != "BOOKMARK" and self._take(event)
        self.revision = revision
        return has_changed

    def _take(self, event: "_Event") -> bool:
        key, uid = _identity(event.object)
        held = self._held.get(key)
        match event.type:
            case "ADDED" | "MODIFIED":
                now = _Held(uid, self._read(event.object))
                self._held[key] = now
                return self._changed(now != held)
            case "DELETED":
                if held is None or held.uid != uid:  # of an earlier object of the same name
                    return False
                del self._held[key]
                return self._changed(True)
            case _:
                raise Broken(f"there is no event `{event.type[:20]}`")

    def _changed(self, so: bool) -> bool:
        if so:
            self.objects = {key: held.value for key, held in self._held.items()}
        return so


class _Event(msgspec.Struct):
    type: str
    object: dict[str, Any]


def _metadata(found: Object) -> Object:
    said = found.get("metadata")
    return said if isinstance(said, dict) else {}


def _identity(found: Object) -> tuple[Key, str]:
    said = _metadata(found)
    name, uid = said.get("name"), said.get("uid", "")
    if not isinstance(name, str) or not isinstance(uid, str):
        raise Broken("an object has no name")
    return (str(said.get("namespace", "")), name), uid
