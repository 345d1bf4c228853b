"""What other coordinators have in flight, by the word of agents. Pure.

Written by the agents' sessions alone; decisions read `sums`, people `shown`. A word counts from its
stream's last one until that stream ends or its coordinator is silent; the prefills in it are
credited with the time since. Our own word never comes back: it is dropped by name.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.inflight import HEAD_CREDIT, PeerSum
from lineside.ids import EngineId, NodeId
from lineside.signals import InFlight

SILENT_S = 2.0
"""A word that is older counts for nothing: its coordinator says something every 0.5 s."""


@dataclass(frozen=True, slots=True)
class Word:
    """One coordinator's word. `age_s` is as of its sending; `None`: it has said nothing so far."""

    coordinator: str
    engines: Mapping[EngineId, InFlight]
    age_s: float | None


@dataclass(frozen=True, slots=True)
class _Heard:
    engines: Mapping[EngineId, InFlight]
    at: float | None
    """When it was so, in our monotonic seconds."""

    def counts(self, now: float) -> bool:
        return self.at is not None and now - self.at <= SILENT_S


class Peers:
    """The words of all other coordinators. Bounded by what the wire lets a message have."""

    def __init__(self) -> None:
        self.sums: dict[EngineId, PeerSum] = {}
        """By engine, where there is anything."""
        self._me = ""
        self._heard: dict[NodeId, dict[str, _Heard]] = {}

    def call_me(self, name: str) -> None:
        """Note what agents know this coordinator by."""
        self._me = name

    def has(self, node: NodeId) -> bool:
        """Return whether a node's agent has others to tell of us."""
        return bool(self._heard.get(node))

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
        self._heard[node] = {
            word.coordinator: _Heard(
                {engine: has for engine, has in word.engines.items() if engine in assigned},
                None if word.age_s is None else received_at - word.age_s,
            )
            for word in words
            if word.coordinator != self._me
        }
        self.look(received_at)

    def leave(self, node: NodeId, now: float) -> None:
        """Forget what a node's agent said: its stream ended."""
        if self._heard.pop(node, None):
            self.look(now)

    def look(self, now: float) -> None:
        """Let time pass: bring the sums up to date."""
        sums: dict[EngineId, PeerSum] = {}
        for words in self._heard.values():
            for heard in words.values():
                if heard.at is None or not heard.counts(now):
                    continue
                since = now - heard.at
                for engine, has in heard.engines.items():
                    wait_s = max(has.wait_s - since, (1 - HEAD_CREDIT) * has.wait_s)
                    before = sums.get(engine, NOTHING)
                    sums[engine] = PeerSum(
                        before.outstanding + has.outstanding,
                        before.queued_tokens + has.queued_tokens,
                        before.queued + has.queued,
                        before.wait_s + wait_s,
                    )
        self.sums.clear()
        self.sums.update(sums)

    def oldest_s(self, now: float) -> float | None:
        """Return the age of the oldest word of a coordinator that ever said one."""
        said = (heard.at for words in self._heard.values() for heard in words.values())
        ages = [now - at for at in said if at is not None]
        return max(ages, default=None)

    def coordinators(self) -> frozenset[str]:
        """Return whose words are here."""
        return frozenset(name for words in self._heard.values() for name in words)

    def shown(self, now: float) -> list[dict[str, Any]]:
        """Return each word, engine by engine, for people."""
        return [
            inflight_json(name, engine, has, None if heard.at is None else now - heard.at)
            for _, words in sorted(self._heard.items())
            for name, heard in sorted(words.items())
            for engine, has in sorted(heard.engines.items())
        ]


NOTHING = PeerSum(0, 0)


def inflight_json(
    coordinator: str, engine: EngineId, has: InFlight, age_s: float | None
) -> dict[str, Any]:
    """Return what one coordinator has in flight on one engine, for people."""
    is_known = age_s is not None and age_s <= SILENT_S
    said = {"coordinator": coordinator, "engine": engine}
    return {**said, **has._asdict(), "age_s": age_s, "counts": is_known}
