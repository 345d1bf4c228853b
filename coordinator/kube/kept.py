"""What is in force of a cluster, kept in the store: to start from while the API server is away.

The coordinator that leads writes it when it changes, and once a minute that it still holds; others
read it, once, at their start. Judges nothing: what is read is judged like what a cluster says.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from coordinator.config import EngineSpec
from coordinator.engines import Hosting
from coordinator.kube.judging import Forms
from coordinator.kube.pods import Selection
from coordinator.kube.written import Form, Ident, Written
from coordinator.state.leader import Leadership
from coordinator.state.store import (
    MAX_VALUE_BYTES,
    LeaseLost,
    Put,
    Store,
    StoreUnavailable,
)
from lineside import logs
from lineside.clock import Clock
from lineside.decoding import decoded

PREFIX = "kubernetes/"
KEY, SEEN = PREFIX + "in-force", PREFIX + "seen"

MOST_AGE_S = 86_400.0
"""What nobody has seen in the cluster for longer is not used: guards may have come since."""

MOST_AHEAD_S = 600.0
"""So far clocks may be apart. What was seen later than that, by a clock that went wrong, would
never be too old."""

ANSWER_S = 2.0
"""For the store, at a start."""

CHANGED_S = 5.0
"""Between two looks whether there is something to write."""

SEEN_S = 60.0
"""Between two words that all is as it was written."""

MOST_BYTES = MAX_VALUE_BYTES - 1000
"""Of what is written, compressed. More is not kept."""

MOST_READ_BYTES = 64 * 2**20
"""Of what is read, when it is unpacked again."""

log = logs.get("coordinator.kube.kept")


class KeptObject(msgspec.Struct, frozen=True):
    """One object's form in force."""

    kind: str
    namespace: str
    name: str
    created: str
    uid: str
    generation: int
    document: str

    @property
    def ident(self) -> Ident:
        """What it is called."""
        return self.kind, self.namespace, self.name

    @property
    def form(self) -> Form:
        """As it is judged."""
        return Form(self.uid, self.generation, self.document.encode())


class Kept(msgspec.Struct, frozen=True):
    """All that is in force of a cluster, and the servers in its pods."""

    namespaces: tuple[str, ...]
    """That were read."""
    objects: tuple[KeptObject, ...] = ()
    pools: tuple[Selection, ...] = ()
    """The Gateway API's."""
    servers: tuple[tuple[EngineSpec, Hosting], ...] = ()

    def found(self, key_file: str | None) -> dict[EngineSpec, Hosting]:
        """Return the servers. Which file is shown to them is for our settings to say, whoever may
        write into the store.
        """
        return {
            msgspec.structs.replace(spec, api_key_file=key_file): hosting
            for spec, hosting in self.servers
        }

    def written(self) -> list[Written]:
        """Return the objects as if a cluster had said them, judged good."""
        return [
            Written(
                ident=each.ident,
                revision="",
                created=each.created,
                form=each.form,
                kept=None,
                is_accepted=True,
                status={},
            )
            for each in self.objects
        ]


@dataclass(frozen=True, slots=True)
class Found:
    """What the store had; without `kept` nothing to start from, and why."""

    kept: Kept | None = None
    seen_at: float = 0.0
    """Unix seconds at which somebody saw it in the cluster last."""
    why: str = ""


def kept_of(
    namespaces: Sequence[str],
    in_force: Forms,
    created: Mapping[Ident, str],
    pools: Sequence[Selection],
    servers: Mapping[EngineSpec, Hosting],
) -> Kept:
    """Return what is to be kept, in an order of its own."""
    objects = (
        KeptObject(
            *ident, created.get(ident, ""), form.uid, form.generation, form.document.decode()
        )
        for ident, form in sorted(in_force.items())
    )
    by_url = sorted(servers.items(), key=lambda each: each[0].url)
    return Kept(tuple(namespaces), tuple(objects), tuple(pools), tuple(by_url))


async def find(store: Store, namespaces: Sequence[str], unix: float) -> Found:
    """Return what the store keeps of these namespaces, if it may be used."""
    try:
        async with asyncio.timeout(ANSWER_S):
            stored, seen = await store.get(KEY), await store.get(SEEN)
    except (StoreUnavailable, TimeoutError):
        return Found(why="the store is away, too")
    if stored is None or seen is None:
        return Found(why="the store keeps nothing of it")
    try:
        kept = await asyncio.to_thread(_read, stored.value)
        at = decoded(seen.value, float)
    except (msgspec.MsgspecError, zlib.error, ValueError):
        return Found(why="what the store keeps of it cannot be read: another release wrote it")
    if kept.namespaces != tuple(namespaces):
        return Found(why="what the store keeps of it is of other namespaces")
    if (age_s := unix - at) > MOST_AGE_S:
        return Found(why=f"what the store keeps of it was seen {age_s / 3600:.0f} hours ago")
    if age_s < -MOST_AHEAD_S:
        why = f"what the store keeps of it was seen {-age_s / 3600:.1f} hours from now"
        return Found(why=f"{why}: a clock is wrong")
    return Found(kept, at)


def _read(value: bytes) -> Kept:
    unpack = zlib.decompressobj()
    body = unpack.decompress(value, MOST_READ_BYTES)
    if not unpack.eof:
        raise ValueError("it is longer than it says, or cut off")
    return decoded(body, Kept)


class Keeper:
    """Writes it, while this coordinator leads."""

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership, self._clock = leadership, clock
        self._written: Kept | None = None
        self._revision = 0
        """Of the store, when it was written."""
        self._seen_at = 0.0
        self._too_large: Kept | None = None

    def remake(self) -> None:
        """Have it written again: the store lost its data."""
        self._written = None

    async def keep(self, now: Kept) -> None:
        """Take what the cluster says now."""
        if not self._leadership.leads:
            self._written = None  # whoever leads meanwhile may write something else
            return
        at = self._clock.monotonic()
        if now == self._too_large or (now == self._written and at - self._seen_at < SEEN_S):
            return
        seen = Put(SEEN, msgspec.json.encode(self._clock.unix()))
        with suppress(StoreUnavailable, LeaseLost):  # the next look comes soon
            if now == self._written:
                # Not what another that led in between wrote, nor a try of ours that came late.
                written = await self._leadership.write({KEY: self._revision}, [seen])
            else:
                packed = await asyncio.to_thread(_packed, now)
                if (size := len(packed.value)) > MOST_BYTES:
                    self._too_large = now
                    log.warning("what is in force is not kept", bytes=size, fit=MOST_BYTES)
                    return
                written = await self._leadership.write({}, [packed, seen])
                self._revision = written or 0
            self._written, self._seen_at = (None if written is None else now), at


def _packed(kept: Kept) -> Put:
    return Put(KEY, zlib.compress(msgspec.json.encode(kept)))
