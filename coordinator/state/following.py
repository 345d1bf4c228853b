"""A copy of all keys with one prefix, kept up to date from a store. Writes nothing.

It lists, then watches. Whatever a watch may have missed (changes that are no longer kept, a store
that lost its data) is healed by listing again. While the store is away the copy stays as it was.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress

from coordinator.state.store import Change, Compacted, Store, Stored, StoreUnavailable
from lineside.clock import Clock

RETRY_S = 1.0
"""After a store that was away, and between two listings."""

ANEW_S = 300.0
"""After which it is listed anew, come what may: a watch that lost its tongue looks well."""


class Following:
    """Written by `run` alone."""

    def __init__(
        self, store: Store, prefix: str, clock: Clock, changed: Callable[[], object] | None = None
    ) -> None:
        """`changed` hears of each change once it is in `entries`."""
        self.entries: Mapping[str, Stored] = {}
        """Replaced by each change, never written into."""
        self.revision = -1
        """Of the store, when it was listed last or changed here; below 0: it was not listed yet."""
        self.listings = 0
        self.away = ""
        """Why the store could not be listed; empty: it could."""
        self._store, self._prefix, self._clock = store, prefix, clock
        self._changed = changed

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._list()
                await self._watch()
            except Compacted:
                pass
            except StoreUnavailable as error:
                self.away = str(error)
            await self._clock.sleep(RETRY_S)

    async def _watch(self) -> None:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(ANEW_S),
                aclosing(self._store.watch(self._prefix, self.revision)) as watch,
            ):
                async for changes in watch:
                    self._apply(changes)

    async def _list(self) -> None:
        listing = await self._store.range(self._prefix)
        self.listings += 1
        self.away = ""
        self.revision = listing.revision
        if listing.entries != self.entries or self.listings == 1:
            self.entries = listing.entries
            self._tell()

    def _apply(self, changes: Sequence[Change]) -> None:
        entries = dict(self.entries)
        for change in changes:
            self.revision = change.revision
            if change.value is None:
                entries.pop(change.key, None)
            else:
                entries[change.key] = Stored(change.value, change.revision)
        self.entries = entries
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()
