"""A store's lasting keys as lines of JSON, and back. What lives as long as a process is left out.

A copy holds the cluster's secret: whoever has it can tell which prompts are cached.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from coordinator.state.store import MAX_VALUE_BYTES, MAX_WRITES, Put, Store

PASSING = ("members/", "leaders/", "store/", "kubernetes/")
"""Prefixes of keys that go with whoever wrote them, or belong to the store or to a cluster."""

FORMAT = 1

TRIES = 3
"""Of a batch of which a key was changed by somebody between reading and writing."""


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lineside_store: int
    revision: int
    keys: int


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str


class BadCopy(ValueError):
    """A file is no copy of a store; says why."""


class Conflict(Exception):
    """Keys have other values already; names them."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(", ".join(keys))
        self.keys = keys


@dataclass(frozen=True, slots=True)
class Copy:
    """What a store held at one revision."""

    revision: int
    values: Mapping[str, bytes]

    def lines(self) -> Iterator[bytes]:
        """Yield it as lines of JSON."""
        yield msgspec.json.encode(_Head(FORMAT, self.revision, len(self.values))) + b"\n"
        for key, value in sorted(self.values.items()):
            yield msgspec.json.encode(_Line(key, b64encode(value).decode())) + b"\n"


async def export(store: Store) -> Copy:
    """Return the lasting keys of a store. Raises `StoreUnavailable`."""
    listing = await store.range("")
    values = {
        key: stored.value for key, stored in listing.entries.items() if not key.startswith(PASSING)
    }
    return Copy(listing.revision, values)


def read(lines: Iterable[bytes]) -> Copy:
    """Return what lines say. Raises `BadCopy`."""
    values: dict[str, bytes] = {}
    head: _Head | None = None
    for number, line in enumerate(lines, 1):
        try:
            if head is None:
                head = msgspec.json.decode(line, type=_Head)
                continue
            said = msgspec.json.decode(line, type=_Line)
            values[said.key] = b64decode(said.value, validate=True)
        except ValueError as error:
            raise BadCopy(f"line {number} is none of a copy: {error}") from None
    if head is None or head.lineside_store != FORMAT:
        raise BadCopy("it does not begin as a copy of a store does")
    if head.keys != len(values):
        raise BadCopy(f"{head.keys} keys were written, {len(values)} are there")
    return Copy(head.revision, values)


async def put_back(store: Store, copy: Copy, replace: bool) -> int:
    """Write a copy into a store; return how many keys that changed.

    Raises `Conflict`, before anything is written, where a key has another value and `replace` is
    not given; and `StoreUnavailable`: to try again does what is left.
    """
    for _ in range(TRIES):
        there = (await store.range("")).entries
        due = {
            key: value
            for key, value in copy.values.items()
            if key not in there or there[key].value != value
        }
        if (others := [key for key in due if key in there]) and not replace:
            raise Conflict(sorted(others))
        expected = {key: there[key].revision if key in there else None for key in due}
        for batch in _batches(due):
            wanted = {put.key: expected[put.key] for put in batch}
            if await store.transact(wanted, batch) is None:
                break  # somebody writes: look again
        else:
            return len(due)
    raise Conflict(sorted(due))


def _batches(values: Mapping[str, bytes]) -> Iterator[list[Put]]:
    batch, size = list[Put](), 0
    for key, value in sorted(values.items()):
        if batch and (len(batch) == MAX_WRITES or size + len(value) > MAX_VALUE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(Put(key, value))
        size += len(value)
    if batch:
        yield batch
