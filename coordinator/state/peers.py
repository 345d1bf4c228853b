"""What other coordinators have in flight, by the word of agents. Pure.

Written by the agents' sessions alone; decisions read `sums`, people `shown`. A word counts from its
stream's last one until that stream ends or its coordinator is silent; the prefills in it are
credited with the time since. Our own word never comes back: it is dropped by name.
"""

import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.holdings.overlay import STRIDE, Overlay
from coordinator.load.inflight import HEAD_CREDIT, PeerSum
from coordinator.load.inflight import InFlight as Leases
from lineside.digest import KEY_BYTES, MAX_CLAIMED
from lineside.ids import BlockKey, EngineId, NodeId
from lineside.signals import InFlight

CLAIM_UNITS = 64
"""Of claimed prompts every key at so many units is told: 1,024 tokens."""

SILENT_S = 2.0
"""A word that is older counts for nothing: its coordinator says something every 0.5 s."""

ACTIVE_S = 10.0
"""A coordinator that had nothing in flight for so long is asked nothing."""


@dataclass(frozen=True, slots=True)
class Word:
    """One coordinator's word. `age_s` is as of its sending; `None`: it has said nothing so far."""

    coordinator: str
    engines: Mapping[EngineId, InFlight]
    age_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class _Heard:
    engines: Mapping[EngineId, InFlight]
    claims: Mapping[EngineId, frozenset[BlockKey]]
    at: float | None
    """When it was so, in our monotonic seconds."""

    @property
    def is_busy(self) -> bool:
        return any(has.outstanding for has in self.engines.values())

    def counts(self, now: float) -> bool:
        return self.at is not None and now - self.at <= SILENT_S


@dataclass(slots=True)
class _Node:
    """What the words of one node's agent came to at the last look."""

    words: dict[str, _Heard] = field(default_factory=dict)
    engines: set[EngineId] = field(default_factory=set)
    """Those in the sums."""
    counting: list[_Heard] = field(default_factory=list)
    claims: dict[EngineId, frozenset[BlockKey]] = field(default_factory=dict)


class Own:
    """What this coordinator tells others of itself."""

    def __init__(self, inflight: Leases, overlay: Overlay) -> None:
        self._inflight, self._overlay = inflight, overlay
        self._claimed: dict[EngineId, bytes] = {}

    def look(self) -> None:
        """Gather what is claimed now, once for all who are told."""
        marks = self._overlay.marks(CLAIM_UNITS // STRIDE, MAX_CLAIMED)
        self._claimed = {engine: _packed(keys) for engine, keys in marks.items()}

    def word(self, engines: Sequence[EngineId], now: float) -> dict[EngineId, InFlight]:
        """Return what is in flight on these engines; the others have nothing."""
        queues = zip(engines, self._inflight.queues(engines, now), strict=True)
        return {
            engine: own.as_word(self._claimed.get(engine, b""))
            for engine, own in queues
            if own.outstanding or engine in self._claimed
        }


class Peers:
    """The words of all other coordinators. Bounded by what the wire lets a message have."""

    def __init__(self) -> None:
        self.sums: dict[EngineId, PeerSum] = {}
        """By engine, where there is anything."""
        self.me = ""
        """What agents know this coordinator by."""
        self.active: frozenset[str] = frozenset()
        """The others that had anything in flight lately: the same object until they change."""
        self._claimers: dict[BlockKey, set[EngineId]] = {}
        self._busy_at: dict[str, float] = {}
        self._nodes: dict[NodeId, _Node] = {}

    def call_me(self, name: str) -> None:
        """Note what agents know this coordinator by."""
        self.me = name

    def has(self, node: NodeId) -> bool:
        """Return whether a node's agent has others to tell of us."""
        return node in self._nodes and bool(self._nodes[node].words)

    def hear(
        self,
        node: NodeId,
        words: Sequence[Word],
        assigned: Container[EngineId],
        received_at: float,
    ) -> None:
        """Take in all that a node's agent says of others, in place of what it said before.

        Of engines that are `assigned` to it: one that moves may be in two agents' words.
        """
        known = self._nodes.setdefault(node, _Node())
        known.words = {
            word.coordinator: _heard(word, assigned, received_at)
            for word in words
            if word.coordinator != self.me
        }
        self._bring(known, received_at)

    def leave(self, node: NodeId, now: float) -> None:
        """Forget what a node's agent said: its stream ended."""
        if known := self._nodes.pop(node, None):
            known.words = {}
            self._bring(known, now)
            self._note_active(now)

    def look(self, now: float) -> None:
        """Let time pass: bring the sums up to date."""
        for known in self._nodes.values():
            self._bring(known, now)
        self._note_active(now)

    def _note_active(self, now: float) -> None:
        """Note who had anything in flight lately, as far as it is still heard of."""
        busy = self._busy_at
        for known in self._nodes.values():
            for name, heard in known.words.items():
                if heard.is_busy and heard.counts(now):
                    busy[name] = now
        there = self.coordinators() if busy else ()
        self._busy_at = {
            name: at for name, at in busy.items() if name in there and now - at <= ACTIVE_S
        }
        if self._busy_at.keys() != self.active:
            self.active = frozenset(self._busy_at)

    def units(self, keys: Sequence[BlockKey]) -> dict[EngineId, int]:
        """Return how many leading units engines will hold, by what others have sent them.

        `keys` are those of a prompt as the overlay has them.
        """
        if not self._claimers:
            return {}  # nearly always
        found: dict[EngineId, int] = {}
        every = CLAIM_UNITS // STRIDE
        for depth in range(every, len(keys) + 1, every):
            if claimers := self._claimers.get(keys[depth - 1]):
                found |= dict.fromkeys(claimers, depth * STRIDE)
        return found

    def _bring(self, known: _Node, now: float) -> None:
        """Bring what is said of one node's engines up to date."""
        counting = [heard for heard in known.words.values() if heard.counts(now)]
        sums = _added_up(counting, now)
        for gone in known.engines - sums.keys():
            self.sums.pop(gone, None)
        self.sums.update(sums)
        known.engines = set(sums)
        if counting != known.counting:
            known.counting = counting
            self._claim(known)

    def _claim(self, known: _Node) -> None:
        """Bring who has claimed which key in line with the words that count."""
        before, known.claims = known.claims, {}
        for heard in known.counting:
            for engine, keys in heard.claims.items():
                known.claims[engine] = known.claims.get(engine, NO_KEYS) | keys
        for engine in before.keys() | known.claims.keys():
            old, new = before.get(engine, NO_KEYS), known.claims.get(engine, NO_KEYS)
            for key in old - new:
                claimers = self._claimers[key]
                claimers.discard(engine)
                if not claimers:
                    del self._claimers[key]
            for key in new - old:
                self._claimers.setdefault(key, set()).add(engine)

    def oldest_s(self, now: float) -> float | None:
        """Return the age of the oldest word of a coordinator that ever said one."""
        said = (heard.at for known in self._nodes.values() for heard in known.words.values())
        ages = [now - at for at in said if at is not None]
        return max(ages, default=None)

    def coordinators(self) -> frozenset[str]:
        """Return whose words are here."""
        return frozenset(name for known in self._nodes.values() for name in known.words)

    def shown(self, now: float) -> list[dict[str, Any]]:
        """Return each word, engine by engine, for people."""
        return [
            inflight_json(name, engine, has, None if heard.at is None else now - heard.at)
            for _, known in sorted(self._nodes.items())
            for name, heard in sorted(known.words.items())
            for engine, has in sorted(heard.engines.items())
        ]


NOTHING = PeerSum(0, 0)
NO_KEYS: frozenset[BlockKey] = frozenset()


def _heard(word: Word, assigned: Container[EngineId], received_at: float) -> _Heard:
    engines = {engine: has for engine, has in word.engines.items() if engine in assigned}
    claims = {engine: _unpacked(has.claimed) for engine, has in engines.items() if has.claimed}
    return _Heard(engines, claims, None if word.age_s is None else received_at - word.age_s)


def _added_up(words: Sequence[_Heard], now: float) -> dict[EngineId, PeerSum]:
    """Return what coordinators have in flight by engine, their prefills credited with time."""
    sums: dict[EngineId, PeerSum] = {}
    for heard in words:
        since = 0.0 if heard.at is None else now - heard.at
        for engine, has in heard.engines.items():
            if has.outstanding:
                wait_s = max(has.wait_s - since, (1 - HEAD_CREDIT) * has.wait_s)
                before = sums.get(engine, NOTHING)
                sums[engine] = PeerSum(
                    before.outstanding + has.outstanding,
                    before.queued_tokens + has.queued_tokens,
                    before.queued + has.queued,
                    before.wait_s + wait_s,
                )
    return sums


def inflight_json(
    coordinator: str, engine: EngineId, has: InFlight, age_s: float | None
) -> dict[str, Any]:
    """Return what one coordinator has in flight on one engine, for people."""
    is_known = age_s is not None and age_s <= SILENT_S
    said = {"coordinator": coordinator, "engine": engine, **has._asdict()}
    claimed = len(has.claimed) // KEY_BYTES
    return {**said, "claimed": claimed, "age_s": age_s, "counts": is_known}


def _packed(keys: Sequence[BlockKey]) -> bytes:
    return struct.pack(f"<{len(keys)}Q", *keys)


def _unpacked(packed: bytes) -> frozenset[BlockKey]:
    return frozenset(struct.unpack(f"<{len(packed) // KEY_BYTES}Q", packed))
