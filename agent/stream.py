"""What one stream to a coordinator has sent and has to send. No I/O.

`report` carries it. What is sent are latest values, at most a few for each engine; of digests a
cursor into the engine's log.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from agent import wire
from agent.assignment import Assigned, Scheme
from agent.digest_log import Cursor, DigestLog
from agent.peers import Peers, Word
from agent.signals import Observed
from lineside.digest import MAX_KEYS, SnapshotChunk
from lineside.ids import EngineId, Generation
from lineside.signals import Events, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb

HEARTBEAT_S = 0.5
"""Between two reports on an engine whose state does not change."""

PEERS_S = 0.05
"""Between two words on what other coordinators have in flight."""

REASON_CHARS = 400
"""Of a coordinator's words in our logs."""

FOREIGN = "the agent makes keys by another coordinator's secret: let both share one store"
"""What a coordinator hears that asks for keys which nobody can make beside those of another."""


class Hub(Protocol):
    """What the agent knows. Latest values only; `subscribe` is asked once per reporter."""

    def adopt(self, scheme: Scheme, assigned: Assigned) -> None:
        """Read what a connected coordinator assigns."""
        ...

    def scheme(self) -> Scheme | None:
        """Return how keys are made now: as the coordinator says whose word counts."""
        ...

    def release(self, coordinator: str) -> None:
        """Note that a coordinator's stream ended."""
        ...

    def vouched(self, engine: EngineId, generation: Generation) -> None:
        """Note that what is said of an engine has proved right."""
        ...

    def doubted(
        self, engine: EngineId, generation: Generation, reason: str, *, overstated: bool
    ) -> None:
        """Note that what is said of an engine has proved wrong, and how."""
        ...

    @property
    def peers(self) -> Peers:
        """What coordinators have in flight here, for each other."""
        ...

    def log(self, engine: EngineId) -> DigestLog | None:
        """Return an engine's digest log; `None`: it is not read (yet)."""
        ...

    def statuses(self) -> Mapping[EngineId, Observed[Status]]:
        """Return the status of each engine."""
        ...

    def loads(self) -> Mapping[EngineId, Observed[Load]]:
        """Return the last load of each engine that has one."""
        ...

    def gpus(self) -> Observed[NodeGpus] | None:
        """Return the node's GPUs, once read."""
        ...

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set after each flush and each new value; the caller clears it."""
        ...


class Stream:
    """What one stream has sent and has to send. No I/O."""

    def __init__(
        self,
        hub: Hub,
        coordinator: str,
        scheme: Scheme,
        acked: dict[EngineId, tuple[Generation, int]],
    ) -> None:
        self._hub = hub
        self._coordinator = coordinator
        self._scheme = scheme
        self._acked = acked
        self._positions: dict[EngineId, tuple[Generation, int]] = {}
        self._cursors: dict[EngineId, Cursor] = {}
        self._updates = wire.Updates()
        self._states: dict[EngineId, tuple[Events, str, int, bool]] = {}
        self._beat_at = float("-inf")
        self._load_seen_at: dict[EngineId, float] = {}
        self._gpus_seen_at: float | None = None
        self._peers_said: Mapping[str, Word] = {}
        self._peers_at = float("-inf")
        hub.peers.enter(coordinator)

    def hear(self, message: pb.CoordinatorMessage, now: float) -> None:
        """Take in one message; what only a newer coordinator says is ignored."""
        match message.WhichOneof("body"):
            case "assignment":
                assigned = wire.assigned(self._coordinator, message.assignment)
                self._keep({engine.id for engine in assigned.engines})
                self._hub.adopt(self._scheme, assigned)
            case "resume":
                engine = EngineId(message.resume.engine)
                generation = Generation(message.resume.generation)
                self._positions[engine] = generation, message.resume.digest_seq
                self._cursors.pop(engine, None)
            case "resync":
                if cursor := self._cursors.get(EngineId(message.resync.engine)):
                    cursor.resync()
            case "acks":
                for ack in message.acks.acks:
                    self._acked[EngineId(ack.engine)] = Generation(ack.generation), ack.digest_seq
            case "in_flight":
                self._hub.peers.say(self._coordinator, wire.in_flight(message.in_flight), now)
            case "vouch":
                vouch = message.vouch
                self._hub.vouched(EngineId(vouch.engine), Generation(vouch.generation))
            case "doubt":
                doubt = message.doubt
                self._hub.doubted(
                    EngineId(doubt.engine),
                    Generation(doubt.generation),
                    doubt.reason[:REASON_CHARS],
                    overstated=doubt.overstated,
                )

    def _keep(self, engines: set[EngineId]) -> None:
        """Forget engines that are no longer assigned."""
        for engine in self._positions.keys() - engines:
            self._updates.forget(engine)
        for memory in (
            self._acked,
            self._positions,
            self._cursors,
            self._states,
            self._load_seen_at,
        ):
            for engine in [engine for engine in memory if engine not in engines]:
                del memory[engine]

    def due(self, now: float) -> list[pb.AgentMessage]:
        """Return what is due: about one message's worth of each digest, and all signals.

        In this order: what is said of a digest holds for the digest that is there by then.
        """
        for engine, (generation, digest_seq) in self._positions.items():
            digest_log = self._hub.log(engine)
            if digest_log is None:
                continue
            cursor = self._cursors.get(engine)
            if cursor is None or cursor.log is not digest_log:
                cursor = self._cursors[engine] = digest_log.resume(generation, digest_seq)
            self._add_digest(cursor)
        self._add_signals(now)
        self._add_peers(now)
        return self._updates.take()

    def rest_s(self, now: float) -> float:
        """Return after how long something is due again, though nothing changes."""
        if self._hub.peers.others(self._coordinator) == self._peers_said:
            return HEARTBEAT_S
        return max(0.0, min(HEARTBEAT_S, self._peers_at + PEERS_S - now))

    def _add_digest(self, cursor: Cursor) -> None:
        keys = 0
        while keys < MAX_KEYS and (part := cursor.next()):
            if isinstance(part, SnapshotChunk):
                self._updates.snapshot(part)
                return
            keys += len(part.added) + len(part.removed)
            self._updates.delta(part)

    def _add_signals(self, now: float) -> None:
        is_beat = now - self._beat_at >= HEARTBEAT_S
        if is_beat:
            self._beat_at = now
        is_foreign = self._hub.scheme() not in (None, self._scheme)
        for engine, status in self._hub.statuses().items():
            if is_foreign:
                status = replace(
                    status, value=replace(status.value, events=Events.UNUSABLE, reason=FOREIGN)
                )
            value = status.value
            state = (value.events, value.reason, value.block_size, value.announce)
            if is_beat or state != self._states.get(engine):
                self._states[engine] = state
                self._updates.status(engine, status, now)
        for engine, load in self._hub.loads().items():
            if load.at != self._load_seen_at.get(engine):
                self._load_seen_at[engine] = load.at
                self._updates.load(engine, load, now)
        gpus = self._hub.gpus()
        if gpus is not None and gpus.at != self._gpus_seen_at:
            self._gpus_seen_at = gpus.at
            self._updates.gpus(gpus, now)

    def _add_peers(self, now: float) -> None:
        if now < self._peers_at + PEERS_S:
            return
        others = self._hub.peers.others(self._coordinator)
        if others != self._peers_said:
            self._peers_said, self._peers_at = others, now
            self._updates.peers(others, now)
