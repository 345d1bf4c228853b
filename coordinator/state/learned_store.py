"""What was learned of engines, kept over restarts in the store. Losing it costs a minute.

Several coordinators may write; the last one stays, for each of them learns the same.
"""

import msgspec

from coordinator.load.predict import Learned
from coordinator.state.store import Store, StoreUnavailable
from lineside import logs
from lineside.decoding import decoded

log = logs.get("coordinator.state.learned_store")

KEY = "predict/v1"

EVERY_S = 30.0
"""Between two writes."""

AGAIN_S = 2.0
"""After one that failed: until it is made up for, the store counts as away."""


class LearnedStore:
    """One coordinator's copy."""

    def __init__(self, learned: Learned, store: Store) -> None:
        self._learned = learned
        self._store = store
        self._written = b""
        self._is_loaded = False
        self.away = ""
        """Why it could not be written last; empty: it could, or nothing was to be written."""

    @property
    def pause_s(self) -> float:
        """How long to wait before the next write."""
        return AGAIN_S if self.away else EVERY_S

    async def load(self) -> None:
        """Take over what the store has; what cannot be read is left."""
        try:
            stored = await self._store.get(KEY)
        except StoreUnavailable:
            return
        self._is_loaded = True
        if stored is None:
            return
        try:
            said = decoded(stored.value, object)
        except msgspec.DecodeError:
            log.warning("learned times unreadable", key=KEY)
            return
        if isinstance(said, dict):
            self._learned.restore(said)

    def remake(self) -> None:
        """Have it written again, though nothing be new: the store lost its data."""
        self._written = b""

    async def save(self) -> None:
        """Write what is known now, if it is anything new. One that is beaten to it gives way.

        A store that was away until now knows more than we do: what it has is taken over first.
        """
        if not self._is_loaded:
            await self.load()
        if not self._is_loaded:
            return
        value = msgspec.json.encode(self._learned.saved())
        if value == self._written:
            return
        try:
            stored = await self._store.get(KEY)
            expected = None if stored is None else stored.revision
            await self._store.compare_and_set(KEY, expected, value)
        except StoreUnavailable as error:
            self.away = str(error)
            return  # readiness tells of it; the next one comes soon
        self.away, self._written = "", value
