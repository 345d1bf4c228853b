"""What every engine holds in its cache: feeds and indexes by engine group.

Written by the ingest task alone; the read path asks for overlaps. Pure. It never compares keys of
engines in different groups: a block key does not name the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from coordinator.holdings.feed import Feed, Holding, Position, Reason, Stream
from coordinator.holdings.index import GroupIndex, Slot, slots_of
from lineside.digest import Delta, SnapshotChunk
from lineside.ids import BlockKey, EngineId, GroupId, Medium

Overlap: TypeAlias = tuple[int, int, int]
"""Leading units held in gpu; in gpu or cpu; in gpu, cpu or disk."""

Alike: TypeAlias = tuple[Overlap, tuple[EngineId, ...]]
"""Engines that hold as much of a prompt."""

MASKS_KEPT = 4096
"""Masks whose engines an index remembers; all are taken apart again when there are more."""


class _Kind(NamedTuple):
    """What tells two indexes of a group apart. Of hit points the stride is a block, in units."""

    stride: int
    hit_points: bool


class _Holders(dict[Slot, Holding]):
    """The holding that each visible slot of an index belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.has_media = False
        """Whether some holding has a slot for each of several media."""
        self._engines: dict[int, tuple[EngineId, ...]] = {}

    def changed(self) -> None:
        """Note that slots came or went."""
        self.has_media = any(len(holding.slots) > 1 for holding in self.values())
        self._engines.clear()

    def engines(self, mask: int) -> tuple[EngineId, ...]:
        """Return whose the slots of a mask are, where each engine has one."""
        found = self._engines.get(mask)
        if found is None:
            if len(self._engines) >= MASKS_KEPT:
                self._engines.clear()
            found = self._engines[mask] = tuple(self[slot].engine for slot in slots_of(mask))
        return found


@dataclass(slots=True)
class _Group:
    """Engines with the same weights. There is an index for each kind of keys that one reports."""

    indexes: dict[_Kind, GroupIndex] = field(default_factory=dict)
    holders: dict[_Kind, _Holders] = field(default_factory=dict)

    def index_for(self, first: SnapshotChunk) -> GroupIndex:
        kind = _kind(first)
        if kind not in self.indexes:
            self.indexes[kind] = GroupIndex(kind.stride)
            self.holders[kind] = _Holders()
        return self.indexes[kind]


def _kind(of: SnapshotChunk | Holding) -> _Kind:
    return _Kind(of.stride, of.hit_points)


class GroupSize(NamedTuple):
    """What one group takes. `strides`: of the strided keys that are there, old ones included."""

    keys: int
    bytes: int
    strides: frozenset[int]


class Caches:
    """The caches of all engines that discovery knows."""

    def __init__(self) -> None:
        self.unknown = 0
        """Messages about engines that are not known (any more)."""
        self.checks = 0
        """Look-ups that were looked at again, key by key."""
        self.unclosed = 0
        """Engines, over all checks, that held a key of a prompt and lacked one before it."""
        self._looked_up: tuple[GroupId, Sequence[BlockKey]] | None = None
        self._turn = 0
        self._groups: dict[GroupId, _Group] = {}
        self._members: dict[EngineId, tuple[GroupId, Feed]] = {}

    def overlap(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> dict[EngineId, Overlap]:
        """Return how many leading units of a prompt each engine holds; omit zeros.

        Of an engine that reports hit points: how many it can use, of at most `limit`. The units
        before a prompt's last token are the limit, for that one is computed in any case.
        """
        alike = self.alike(group, unit_keys, limit)
        return {engine: units for units, engines in alike for engine in engines}

    def alike(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> list[Alike]:
        """Return the same by what is held: depths are few, engines are many."""
        alike: list[Alike] = []
        if (found := self._groups.get(group)) is None:
            return alike
        self._looked_up = group, unit_keys
        for kind, index in found.indexes.items():
            stride, hit_points = kind
            holders = found.holders[kind]
            if hit_points:
                alike += _by_engine(holders, index.deepest(unit_keys[:limit], stride))
            elif holders.has_media:
                alike += _by_engine(holders, index.depths(unit_keys, stride))
            else:
                for depth, mask in index.runs(unit_keys, stride):
                    units = depth * stride
                    alike.append(((units, units, units), holders.engines(mask)))
        return alike

    def assign(self, groups: Mapping[EngineId, GroupId]) -> None:
        """Follow discovery: forget engines that left or changed their group, welcome new ones."""
        for engine, (group, _) in list(self._members.items()):
            if groups.get(engine) != group:
                self.forget(engine)
        for engine, group in groups.items():
            if engine not in self._members:
                found = self._groups.setdefault(group, _Group())
                self._members[engine] = group, Feed(engine, found.index_for)
        self._drop_empty_groups()

    def _drop_empty_groups(self) -> None:
        """Drop groups that nobody is in, once sweeping has emptied them bit by bit."""
        used = {group for group, _ in self._members.values()}
        for name, group in list(self._groups.items()):
            if name not in used and all(index.is_idle for index in group.indexes.values()):
                del self._groups[name]

    def forget(self, engine: EngineId) -> None:
        """Drop all that is known of an engine; messages about it are ignored from now on."""
        if member := self._members.pop(engine, None):
            group, feed = member
            before = feed.visible
            feed.clear()
            self._note_visible(group, before, None)

    def feed(self, engine: EngineId) -> Feed | None:
        """Return an engine's feed, to read its state."""
        member = self._members.get(engine)
        return member[1] if member else None

    def connect(self, engine: EngineId, stream: Stream) -> Position | None:
        """Let a stream feed an engine; return what to resume from. `None`: no such engine."""
        feed = self.feed(engine)
        return feed.connect(stream) if feed else None

    def disconnect(self, engine: EngineId, stream: Stream, now: float) -> None:
        """Note that a stream was lost."""
        if feed := self.feed(engine):
            feed.disconnect(stream, now)

    def apply(self, stream: Stream, message: SnapshotChunk | Delta) -> Reason | None:
        """Apply a message; return why a snapshot has to be asked for, if it has to."""
        member = self._members.get(message.engine)
        if member is None:
            self.unknown += 1
            return None
        group, feed = member
        before = feed.visible
        reason = feed.apply(stream, message)
        self._note_visible(group, before, feed.visible)
        return reason

    def check(self) -> list[EngineId]:
        """Look at the last look-up's prompt again, key by key; return engines with a hole in it.

        Holdings are closed under prefix by construction; `depths` jumps on the strength of it.
        """
        if self._looked_up is None:
            return []
        (group, unit_keys), self._looked_up = self._looked_up, None
        wrong: list[EngineId] = []
        if found := self._groups.get(group):
            self.checks += 1
            for kind, index in found.indexes.items():
                if not kind.hit_points:
                    holders = found.holders[kind]
                    wrong += [holders[s].engine for s in index.unclosed(unit_keys, kind.stride)]
        self.unclosed += len(wrong)
        return wrong

    def expire(self, now: float) -> None:
        """Free what belongs to streams lost longer ago than their lease; drop what is empty."""
        for group, feed in self._members.values():
            before = feed.visible
            feed.expire(now)
            self._note_visible(group, before, feed.visible)
        for found in self._groups.values():
            for kind in [kind for kind, index in found.indexes.items() if index.is_idle]:
                del found.indexes[kind], found.holders[kind]
        self._drop_empty_groups()

    def sweep_step(self) -> bool:
        """Sweep one shard of one index, each in its turn; return False if nothing was left."""
        indexes = self._indexes()
        for turn in range(self._turn, self._turn + len(indexes)):
            if indexes[turn % len(indexes)].sweep_step():
                self._turn = turn % len(indexes) + 1
                return True
        return False

    def _indexes(self) -> list[GroupIndex]:
        return [index for group in self._groups.values() for index in group.indexes.values()]

    def _note_visible(self, group: GroupId, before: Holding | None, after: Holding | None) -> None:
        if before is after:
            return
        holders = self._groups[group].holders
        if before is not None:
            for slot in before.slots:
                del holders[_kind(before)][slot]
            holders[_kind(before)].changed()
        if after is not None:
            holders[_kind(after)].update(dict.fromkeys(after.slots, after))
            holders[_kind(after)].changed()

    def size(self) -> tuple[int, int]:
        """Return the keys and the estimated bytes of all indexes."""
        sizes = self.sizes().values()
        return sum(size.keys for size in sizes), sum(size.bytes for size in sizes)

    def sizes(self) -> dict[GroupId, GroupSize]:
        """Return what each group takes."""
        return {
            name: GroupSize(
                keys=sum(index.entries for index in group.indexes.values()),
                bytes=sum(index.bytes_estimate for index in group.indexes.values()),
                strides=frozenset(
                    kind.stride
                    for kind, index in group.indexes.items()
                    if not kind.hit_points and index.entries
                ),
            )
            for name, group in self._groups.items()
        }

    def stats(self) -> dict[str, object]:
        """Return counts and states, for people."""
        return {
            "groups": {
                name: {
                    "engines": sum(of == name for of, _ in self._members.values()),
                    "indexes": [
                        {
                            **kind._asdict(),
                            "keys": index.entries,
                            "bytes": index.bytes_estimate,
                        }
                        for kind, index in group.indexes.items()
                    ],
                }
                for name, group in self._groups.items()
            },
            "engines": {
                engine: {"group": group, **_feed_stats(feed)}
                for engine, (group, feed) in self._members.items()
            },
            "unknown_engine": self.unknown,
            "checks": self.checks,
            "unclosed": self.unclosed,
        }


def _by_engine(holders: _Holders, depths: Mapping[Slot, int]) -> list[Alike]:
    """Return what engines hold, where one may have slots for several media."""
    found = {holders[slot].engine: holders[slot] for slot in depths}
    return [(_cumulative(holding, depths), (engine,)) for engine, holding in found.items()]


def _cumulative(holding: Holding, depths: Mapping[Slot, int]) -> Overlap:
    units = [depths.get(slot, 0) * holding.stride for slot in holding.slots]
    units += [units[-1]] * (len(Medium) - len(units))
    return units[0], units[1], units[2]


def _feed_stats(feed: Feed) -> dict[str, object]:
    stats: dict[str, object] = {
        "phase": feed.phase.value,
        "diverged": feed.diverged,
        "snapshots": feed.snapshots,
        "deltas": feed.deltas,
        "dropped": feed.dropped,
        "resyncs": {reason.value: count for reason, count in feed.resyncs.items()},
    }
    if holding := feed.visible:
        stats |= {
            "generation": holding.generation,
            "digest_seq": holding.digest_seq,
            "keys": holding.count,
            "media": len(holding.slots),
            "stride": holding.stride,
            "hit_points": holding.hit_points,
        }
    return stats
