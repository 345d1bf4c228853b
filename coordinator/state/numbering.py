"""The numbers of assignments, kept in the store: they never fall, whoever restarts.

Agents follow the assignment with the highest number among their coordinators. A number changes only
when the engines do, so the store sees one small write for each change and none for a restart.
"""

import asyncio
from collections.abc import Iterable
from hashlib import sha256

import msgspec

from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.state.store import Store, Stored, StoreUnavailable
from lineside.decoding import decoded

KEY = "cluster/assignment"

ANSWER_S = 2.0
"""For the store. Agents wait for it when a coordinator starts, or engines change."""


class _Numbered(msgspec.Struct, frozen=True):
    """What the store holds: which engines were assigned last, under which number."""

    number: int
    engines: str


class Numbering:
    """One coordinator's number. Several coordinators may share a store."""

    def __init__(self, store: Store, cluster: Cluster) -> None:
        self.number = 0
        self.revision = -1
        """The cluster's revision that `number` stands for."""
        self.away = ""
        """Why the store gave none, so that the one before serves; empty: it did."""
        self._store = store
        self._cluster = cluster
        self._is_lost = False

    @property
    def is_due(self) -> bool:
        """Whether the engines changed, or the store could not be asked, or lost its data."""
        return bool(self.away) or self._is_lost or self.revision != self._cluster.revision

    def remake(self) -> None:
        """Have the number written again: the store lost its data."""
        self._is_lost = True

    async def follow(self) -> bool:
        """Number the cluster's engines; return whether that is news for agents.

        While the store is away they get our newest word under an old number: of the same
        coordinator they take it.
        """
        revision, number, self.away = self._cluster.revision, self.number, ""
        self._is_lost = False
        try:
            async with asyncio.timeout(ANSWER_S):
                number = await self._numbered(_fingerprint(self._cluster.assigned()))
        except StoreUnavailable as error:
            self.away = str(error)
        except TimeoutError:
            self.away = f"no number within {ANSWER_S:g} s"
        before = self.revision, self.number
        self.revision, self.number = revision, number
        return before != (revision, number)

    async def _numbered(self, wanted: str) -> int:
        """Return the number of these engines.

        Where the store holds others, they were assigned after whatever we assigned before; ours is
        newer word, and gets a higher number. So it does where the store lost its data.
        """
        while True:
            stored = await self._store.get(KEY)
            found = _read(stored)
            if found.engines == wanted and found.number >= self.number:
                return found.number
            ours = _Numbered(max(found.number, self.number) + 1, wanted)
            expected = None if stored is None else stored.revision
            if await self._store.compare_and_set(KEY, expected, msgspec.json.encode(ours)):
                return ours.number


def _read(stored: Stored | None) -> _Numbered:
    if stored is None:
        return _Numbered(0, "")
    try:
        return decoded(stored.value, _Numbered)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Earlier releases kept the fingerprint alone, and the store's revision was the number.
        return _Numbered(stored.revision, "")


def _fingerprint(engines: Iterable[Engine]) -> str:
    """Return what differs when an agent has to read differently."""
    read = sorted(
        (
            *(engine.node, engine.id, engine.base_url, engine.rank or 0, engine.events),
            *(engine.replay, engine.events_bind, engine.topic, engine.stride, engine.version),
            *(engine.pod or ()),
        )
        for engine in engines
    )
    return sha256(repr(read).encode()).hexdigest()
