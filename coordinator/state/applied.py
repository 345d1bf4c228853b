"""Sets of resources in the store: numbered, never changed, one of them in force. Judges nothing.

A set is what somebody applied, documents as they were. To undo is to put the documents of an
earlier set into force under a new number. The latest sets are kept, the others forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from coordinator.state.store import (
    MAX_VALUE_BYTES,
    MAX_WRITES,
    Delete,
    Put,
    Store,
    Stored,
    StoreUnavailable,
    Write,
)
from lineside.decoding import decoded

PREFIX = "resources/"
CURRENT = PREFIX + "current"
SETS = PREFIX + "sets/"

KEPT = 20
"""Sets to go back to; more are forgotten, the oldest first."""

MAX_BYTES = MAX_VALUE_BYTES - 1000
"""Of one set, as it is stored."""


class Applied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One set."""

    number: int
    at: float
    """Unix seconds."""
    by: str
    """Who applied it, as the machine knows them."""
    documents: tuple[tuple[str, str], ...]
    """Names and texts of files."""
    undoes_to: int | None = None
    """The earlier set that it repeats."""

    def files(self) -> list[tuple[str, bytes]]:
        """Return its documents as they are read."""
        return [(name, text.encode()) for name, text in self.documents]


class TooLarge(Exception):
    """A set does not fit into the store; says by how much."""


class Overtaken(Exception):
    """Somebody else applied at the same moment, and was first; says who."""


class Unsure(StoreUnavailable):
    """The store went away in the middle of a write, which it may have carried out."""


class NoSuchSet(Exception):
    """There is no set to go back to, or it is not kept."""


@dataclass(frozen=True, slots=True)
class Sets:
    """What the store holds of sets."""

    by_number: dict[int, Applied]
    current: int | None
    current_revision: int | None
    """Of the key that says which."""

    @property
    def newest(self) -> Applied | None:
        """Return the set in force."""
        return None if self.current is None else self.by_number.get(self.current)

    def before(self, number: int) -> list[Applied]:
        """Return the sets below a number, newest first."""
        return [
            self.by_number[each] for each in sorted(self.by_number, reverse=True) if each < number
        ]


def found_in(keys: Mapping[str, Stored]) -> Sets:
    """Return the sets among keys. What cannot be read is left out."""
    sets: dict[int, Applied] = {}
    for key, stored in keys.items():
        if key.startswith(SETS):
            try:
                each = decoded(stored.value, Applied)
            except msgspec.DecodeError:
                continue  # of another release
            sets[each.number] = each
    said = keys.get(CURRENT)
    number = None if said is None or not said.value.isdigit() else int(said.value)
    return Sets(sets, number, None if said is None else said.revision)


def surplus(keys: Mapping[str, Stored]) -> list[str]:
    """Return the keys of sets beyond those that are kept; never that of the set in force."""
    current = found_in(keys).current
    others = sorted(key for key in keys if key.startswith(SETS) and key != _key(current or 0))
    return others[: max(0, len(others) + (current is not None) - KEPT)]


async def history(store: Store) -> Sets:
    """Return what the store holds. Raises `StoreUnavailable`."""
    return found_in((await store.range(PREFIX)).entries)


async def apply(
    store: Store, documents: Sequence[tuple[str, str]], by: str, at: float
) -> tuple[Applied, bool]:
    """Put documents into force; return the set, and whether it is a new one.

    Documents that are in force already make none. Raises `TooLarge`, `Overtaken`.
    """
    said = tuple(documents)
    sets = await history(store)
    if (newest := sets.newest) is not None and newest.documents == said:
        return newest, False
    made = Applied(_next(sets), at, by, said)
    if await _put(store, sets, made):
        return made, True
    newest = (await history(store)).newest
    if newest is not None and newest.documents == said:
        return newest, False
    raise _overtaken(newest)


async def undo(store: Store, to: int | None, by: str, at: float) -> Applied:
    """Put the set before into force again, or the one numbered `to`.

    Raises `NoSuchSet`, `Overtaken`.
    """
    sets = await history(store)
    earlier = _earlier(sets, to)
    made = Applied(_next(sets), at, by, earlier.documents, undoes_to=earlier.number)
    if not await _put(store, sets, made):
        raise _overtaken((await history(store)).newest)
    return made


async def put_back(store: Store, newest: Applied) -> bool:
    """Write a set into a store that lost it; return whether that was to be done."""
    sets = await history(store)
    return sets.current is None and await _put(store, sets, newest)


def _overtaken(newest: Applied | None) -> Overtaken:
    which = "another set" if newest is None else f"set {newest.number} by {newest.by}"
    return Overtaken(f"{which} was applied meanwhile, and stays in force")


def _earlier(sets: Sets, to: int | None) -> Applied:
    """Return the set to go back to: where the newest one repeats another, the one before that."""
    if to is not None:
        if to not in sets.by_number:
            raise NoSuchSet(f"set {to} is not kept")
        return sets.by_number[to]
    if (newest := sets.newest) is None:
        raise NoSuchSet("nothing was ever applied")
    before = newest.number if newest.undoes_to is None else newest.undoes_to
    originals = [each for each in sets.before(before) if each.undoes_to is None]
    if not originals:
        raise NoSuchSet(f"no set before {before} is kept")
    return originals[0]


def _next(sets: Sets) -> int:
    return max([0, sets.current or 0, *sets.by_number]) + 1


def _key(number: int) -> str:
    return f"{SETS}{number:08}"


async def _put(store: Store, sets: Sets, made: Applied) -> bool:
    value = msgspec.json.encode(made)
    if len(value) > MAX_BYTES:
        raise TooLarge(f"the set takes {len(value)} bytes, and {MAX_BYTES} fit into the store")
    key = _key(made.number)
    old = sorted(sets.by_number)[: max(0, len(sets.by_number) + 1 - KEPT)]
    writes: list[Write] = [Put(key, value), Put(CURRENT, str(made.number).encode())]
    writes += [Delete(_key(number)) for number in old[: MAX_WRITES - len(writes)]]
    expected = {CURRENT: sets.current_revision, key: None}
    try:
        return await store.transact(expected, writes) is not None
    except StoreUnavailable as error:
        raise Unsure(str(error)) from error
