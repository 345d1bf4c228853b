"""Which engines and providers get no requests for now, kept over restarts in the store.

Every coordinator writes into one value what it has found out itself, and takes out what it has
found to work again; what others wrote stays. Read once, at the start: an engine that was left out
minutes ago is tried then, with one request, and what is older counts for nothing.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from coordinator.breaker import OPEN_MOST_S, Breakers, Exclusion
from coordinator.breaker import Cause as EngineCause
from coordinator.providers.cooldowns import ASKED_MOST_S, Cooldown, Cooldowns
from coordinator.providers.cooldowns import Cause as ProviderCause
from coordinator.state.store import Store, StoreUnavailable
from lineside import logs
from lineside.clock import Clock
from lineside.decoding import decoded
from lineside.ids import EngineId

log = logs.get("coordinator.state.exclusions")

KEY = "exclusions/v1"

EVERY_S = 1.0
"""Between two writes at least; there is none while nothing changes."""

FORGET_S = 600.0
"""What is older counts for nothing, and goes with the next write."""

MOST = 1000
"""Engines, and providers, that are kept; of more those that were excluded last."""


class Entry(msgspec.Struct, frozen=True):
    """One exclusion. A time, since it outlives clocks: a wrong one makes a trial early or late."""

    cause: str
    at: float
    """Unix seconds when it began."""
    open_s: float
    """How long until one request may find out."""
    asked: bool = False
    """The provider asked for it."""


class Stored(msgspec.Struct, frozen=True):
    """The whole value."""

    engines: dict[EngineId, Entry] = {}
    providers: dict[EngineId, Entry] = {}


NOTHING = Stored()

_Known: TypeAlias = tuple[Mapping[EngineId, Exclusion], Mapping[EngineId, Cooldown]]
"""What is excluded now, in this coordinator's time."""


class Exclusions:
    """One coordinator's copy."""

    def __init__(
        self, breakers: Breakers, cooldowns: Cooldowns, store: Store, clock: Clock
    ) -> None:
        self._breakers, self._cooldowns = breakers, cooldowns
        self._store, self._clock = store, clock
        self._written: _Known = {}, {}
        self._is_loaded = False

    async def load(self) -> None:
        """Take over what the store has; what cannot be read is left."""
        try:
            stored = await self._store.get(KEY)
        except StoreUnavailable:
            return  # the next write begins with it
        self._is_loaded = True
        if stored is not None:
            self._restore(_decoded(stored.value))

    async def run(self) -> None:
        """Keep the store's value up to date, until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            await self.save()

    def remake(self) -> None:
        """Have it written again, though nothing be new: the store lost its data."""
        self._written = {}, {}

    async def save(self) -> None:
        """Write what has changed here, if anything. One that is beaten to it tries again."""
        if not self._is_loaded:
            await self.load()
        known = dict(self._breakers.excluded()), dict(self._cooldowns.cooling())
        if known == self._written or not self._is_loaded:
            return
        try:
            stored = await self._store.get(KEY)
            before = NOTHING if stored is None else _decoded(stored.value)
            value = msgspec.json.encode(self._merged(before, known))
            expected = None if stored is None else stored.revision
            if await self._store.compare_and_set(KEY, expected, value) is not None:
                self._written = known
        except StoreUnavailable:
            return  # readiness tells of it; the next one comes soon

    def _restore(self, stored: Stored) -> None:
        now, unix = self._clock.monotonic(), self._clock.unix()
        engines, providers = self._breakers.excluded(), self._cooldowns.cooling()
        for engine, entry in stored.engines.items():
            age_s = max(0.0, unix - entry.at)
            if _counts(entry, unix) and entry.cause in EngineCause.__members__:
                open_s = min(max(entry.open_s, 0.0), OPEN_MOST_S)
                was = Exclusion(EngineCause[entry.cause], open_s, now - age_s)
                self._breakers.restore(engine, was, now)
        for provider, entry in stored.providers.items():
            age_s = max(0.0, unix - entry.at)
            if _counts(entry, unix) and entry.cause in ProviderCause.__members__:
                cause, began = ProviderCause[entry.cause], now - age_s
                pause_s = min(max(entry.open_s, 0.0), ASKED_MOST_S)
                self._cooldowns.restore(provider, Cooldown(cause, began, pause_s, entry.asked))
        # What was found out before the store could be read is not in it.
        self._written = (
            {e: was for e, was in self._breakers.excluded().items() if e not in engines},
            {p: was for p, was in self._cooldowns.cooling().items() if p not in providers},
        )

    def _merged(self, stored: Stored, known: _Known) -> Stored:
        """Return what is there with our own changes since the last write."""
        now, unix = self._clock.monotonic(), self._clock.unix()
        (engines, providers), (old_engines, old_providers) = known, self._written
        ours = {
            engine: Entry(was.cause.name, unix - (now - was.opened_at), was.open_s)
            for engine, was in engines.items()
            if old_engines.get(engine) != was
        }
        theirs = {
            provider: Entry(was.cause.name, unix - (now - was.began), was.pause_s, was.asked)
            for provider, was in providers.items()
            if old_providers.get(provider) != was
        }
        return Stored(
            _kept(stored.engines, ours, old_engines.keys() - engines.keys(), unix),
            _kept(stored.providers, theirs, old_providers.keys() - providers.keys(), unix),
        )


def _kept(
    before: Mapping[EngineId, Entry],
    changed: Mapping[EngineId, Entry],
    ended: Iterable[EngineId],
    unix: float,
) -> dict[EngineId, Entry]:
    entries = {**before, **changed}
    for name in ended:
        entries.pop(name, None)
    counts = [(name, entry) for name, entry in entries.items() if _counts(entry, unix)]
    return dict(sorted(counts, key=lambda item: item[1].at, reverse=True)[:MOST])


def _counts(entry: Entry, unix: float) -> bool:
    """Whether an entry says anything. Of a time to come it would count until then: for days."""
    return abs(unix - entry.at) < FORGET_S


def _decoded(value: bytes) -> Stored:
    try:
        return decoded(value, Stored)
    except msgspec.MsgspecError:
        log.warning("exclusions unreadable", key=KEY)
        return NOTHING
