"""The numbers of assignments, kept in the store: they never fall, whoever restarts.

Agents follow the assignment with the highest number among their coordinators. A number changes only
when the engines do, so the store sees one small write for each change and none for a restart.
"""

from collections.abc import Iterable
from hashlib import sha256

from coordinator.cluster import Cluster
from coordinator.engines import Engine
from coordinator.store import Store, StoreUnavailable

KEY = "cluster/assignment"


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

    @property
    def is_due(self) -> bool:
        """Whether the engines changed, or the store could not be asked the last time."""
        return bool(self.away) or self.revision != self._cluster.revision

    async def follow(self) -> bool:
        """Number the cluster's engines; return whether that is news for agents.

        While the store is away they get our newest word under an old number: of the same
        coordinator they take it.
        """
        revision, number, self.away = self._cluster.revision, self.number, ""
        try:
            number = await self._numbered(_fingerprint(self._cluster.assigned()))
        except StoreUnavailable as error:
            self.away = str(error)
        before = self.revision, self.number
        self.revision, self.number = revision, number
        return before != (revision, number)

    async def _numbered(self, wanted: bytes) -> int:
        """Return the number of these engines.

        Where the store holds others, they were assigned after whatever we assigned before; ours is
        newer word, and gets a higher number.
        """
        while True:
            stored = await self._store.get(KEY)
            if stored is not None and stored.value == wanted:
                return stored.revision
            expected = None if stored is None else stored.revision
            if written := await self._store.compare_and_set(KEY, expected, wanted):
                return written.revision


def _fingerprint(engines: Iterable[Engine]) -> bytes:
    """Return what differs when an agent has to read differently."""
    read = sorted(
        (
            *(engine.node, engine.id, engine.base_url, engine.rank or 0, engine.events),
            *(engine.replay, engine.events_bind, engine.topic, engine.stride, engine.version),
        )
        for engine in engines
    )
    return sha256(repr(read).encode()).digest()
