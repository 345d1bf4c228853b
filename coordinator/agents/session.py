"""One agent's open stream: what it may feed, and what is due to it. No I/O.

Written by ingest alone. What is due is kept as latest values, a few per engine, so that an agent
that does not read costs nothing.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.agents import wire
from coordinator.engines import Doubt, Engine
from coordinator.holdings.feed import Feed, Position, Reason, Stream
from lineside.digest import DeltaReader
from lineside.ids import EngineId, NodeId
from lineside.signals import InFlight
from lineside.v1 import agents_pb2 as pb

TELL_AGAIN_S = 0.5
"""Between two words on what is in flight, though nothing changed."""


@dataclass(eq=False, slots=True)
class Session:
    """`wake` is set when something is due at once; acks and resyncs wait for their turn."""

    node: NodeId
    stream: Stream
    revision: int = -1
    """Of the cluster, when it gave `assigned`."""
    assigned: dict[EngineId, Engine] = field(default_factory=dict)
    feeds: dict[EngineId, Feed] = field(default_factory=dict)
    """What this stream feeds. An engine that was forgotten and came back has another feed."""
    deltas: DeltaReader = field(default_factory=DeltaReader)
    resumes: dict[EngineId, Position] = field(default_factory=dict)
    resyncs: dict[EngineId, Reason] = field(default_factory=dict)
    acks: set[EngineId] = field(default_factory=set)
    vouches: dict[EngineId, str] = field(default_factory=dict)
    """Generations that proved right while their agent was unsure of them."""
    doubts: dict[EngineId, Doubt] = field(default_factory=dict)
    """Generations that proved wrong, and how."""
    in_flight: Mapping[EngineId, InFlight] | None = None
    """What this coordinator has in flight on the node's engines, if that is due."""
    told: Mapping[EngineId, InFlight] = field(default_factory=dict)
    """The same, as it was said last."""
    told_at: float = -math.inf
    is_assignment_due: bool = False
    ended: Exception | None = None
    """Why the stream is to be closed, once it is."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def vouch(self, due: Mapping[EngineId, str]) -> None:
        """Note which of the engines that this stream feeds are to be vouched for."""
        if found := due.keys() & self.feeds.keys():
            self.vouches |= {engine: due[engine] for engine in found}
            self.wake.set()

    def doubt(self, doubts: Mapping[EngineId, Doubt]) -> None:
        """Note which of the engines that this stream feeds are to be doubted."""
        if found := doubts.keys() & self.feeds.keys():
            self.doubts |= {engine: doubts[engine] for engine in found}
            self.wake.set()

    def tell(self, has: Mapping[EngineId, InFlight], now: float) -> None:
        """Note what this coordinator has in flight there, if that is news or was said long ago."""
        if now < self.told_at + TELL_AGAIN_S and _requests(has) == _requests(self.told):
            return
        self.in_flight = self.told = has
        self.told_at = now
        self.wake.set()

    def due(self, number: int) -> Iterator[pb.CoordinatorMessage]:
        """Yield what is due, in an order that makes sense to the agent, and forget it.

        `number` is that of the assignment (see `coordinator.state.numbering`).
        """
        if self.is_assignment_due:
            self.is_assignment_due = False
            yield wire.assignment(number, self.assigned.values())
        for engine, position in self.resumes.items():
            yield wire.resume(engine, position)
        for engine, reason in self.resyncs.items():
            yield wire.resync(engine, reason)
        for engine, generation in self.vouches.items():
            yield wire.vouch(engine, generation)
        for engine, doubt in self.doubts.items():
            yield wire.doubt(engine, doubt)
        feeds = [self.feeds[engine] for engine in self.acks & self.feeds.keys()]
        if applied := {feed.engine: feed.visible.position for feed in feeds if feed.visible}:
            yield wire.acks(applied)
        if self.in_flight is not None:
            yield wire.in_flight(self.in_flight)
        self.in_flight = None
        self.resumes.clear()
        self.resyncs.clear()
        self.vouches.clear()
        self.doubts.clear()
        self.acks.clear()


def _requests(has: Mapping[EngineId, InFlight]) -> dict[EngineId, tuple[int, int, int]]:
    """Return what changes with requests, not by itself with time."""
    return {engine: (own.outstanding, own.queued, own.queued_tokens) for engine, own in has.items()}
