"""The agents' stream, to and from the wire. Pure; used by ingest and its sessions.

A missing series is `None`, never zero. What only a newer agent can say is left out or read as
`unsure`, so that agents may be upgraded first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

from coordinator.engines import Doubt, Engine
from coordinator.holdings.feed import Position, Reason
from coordinator.state.peers import Word
from lineside import digest, hashing
from lineside.digest import (
    KEY_BYTES,
    MAX_CLAIMED,
    Delta,
    DeltaReader,
    MalformedDigest,
    SnapshotChunk,
)
from lineside.ids import EngineId, PodIdent
from lineside.signals import Events, Gpu, InFlight, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine's status, `age_s` old when it was sent."""

    engine: EngineId
    status: Status
    age_s: float


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's load."""

    engine: EngineId
    load: Load
    age_s: float


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A node's GPUs."""

    gpus: NodeGpus
    age_s: float


@dataclass(frozen=True, slots=True)
class Peers:
    """The words of all other coordinators that are connected to an agent."""

    words: Sequence[Word]


Message: TypeAlias = SnapshotChunk | Delta | EngineStatus | EngineLoad | NodeGpu | Peers

MAX_PEERS = 64
"""Coordinators that an agent tells of; it has no more streams."""

_EVENTS = {
    pb.EngineStatus.NONE: Events.NONE,
    pb.EngineStatus.CONNECTING: Events.CONNECTING,
    pb.EngineStatus.LIVE: Events.LIVE,
    pb.EngineStatus.UNSURE: Events.UNSURE,
    pb.EngineStatus.UNUSABLE: Events.UNUSABLE,
}

_LOAD_SERIES = (
    "waiting",
    "running",
    "kv_cache_usage",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "preemptions",
    "block_size",
    "num_gpu_blocks",
    "process_start_s",
    "asleep",
)

_GPU_VALUES = (
    "utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "temperature_c",
    "saturation",
)


def decode(wire: pb.AgentMessage, deltas: DeltaReader) -> list[Message]:
    """Translate what an agent says, in order; nothing of what only a newer one says.

    `deltas` is the stream's own. Raises `MalformedDigest`.
    """
    match wire.WhichOneof("body"):
        case "snapshot":
            return [digest.decode_snapshot(wire.snapshot)]
        case "update":
            return _update(wire.update, deltas)
        case "hello":
            raise MalformedDigest("a second hello")
    return []


def _update(wire: pb.Update, deltas: DeltaReader) -> list[Message]:
    if max(len(wire.statuses), len(wire.loads)) > digest.MAX_REPORTS:
        raise MalformedDigest(f"more than {digest.MAX_REPORTS} reports of a kind in one message")
    said: list[Message] = [*map(_status, wire.statuses), *map(_load, wire.loads)]
    if wire.HasField("gpu"):
        gpus = NodeGpus(tuple(map(_gpu, wire.gpu.gpus)), wire.gpu.unavailable)
        said.append(NodeGpu(gpus, wire.gpu.age_ms / 1000))
    if wire.HasField("peers"):
        said.append(_peers(wire.peers))
    said += deltas.read(wire.deltas)
    return said


def _peers(wire: pb.Peers) -> Peers:
    engines = max((len(word.engines) for word in wire.coordinators), default=0)
    if len(wire.coordinators) > MAX_PEERS or engines > digest.MAX_REPORTS:
        raise MalformedDigest("more coordinators, or engines of one, than a message may have")
    claimed = (len(said.claimed) for word in wire.coordinators for said in word.engines)
    if any(size % KEY_BYTES or size > MAX_CLAIMED * KEY_BYTES for size in claimed):
        raise MalformedDigest("more claimed keys than a message may have, or half a key")
    return Peers([_word(word) for word in wire.coordinators])


def _word(wire: pb.InFlight) -> Word:
    engines = {
        EngineId(said.engine): InFlight(
            said.outstanding,
            said.queued,
            said.queued_uncached_tokens,
            said.wait_ms / 1000,
            said.claimed,
        )
        for said in wire.engines
    }
    age_s = wire.age_ms / 1000 if wire.HasField("age_ms") else None
    return Word(wire.coordinator, engines, age_s)


def _status(wire: pb.EngineStatus) -> EngineStatus:
    status = Status(
        events=_EVENTS.get(wire.events, Events.UNSURE),
        reason=wire.reason,
        block_size=wire.block_size,
        blocks=wire.blocks,
        batches=wire.batches,
        gaps=wire.gaps,
        unmatched_removals=wire.unmatched_removals,
        undecodable=wire.undecodable,
        announce=wire.announce,
    )
    return EngineStatus(EngineId(wire.engine), status, wire.age_ms / 1000)


def _load(wire: pb.EngineLoad) -> EngineLoad:
    series = _measured(wire, _LOAD_SERIES)
    load = Load(**series, missing=tuple(wire.missing))
    return EngineLoad(EngineId(wire.engine), load, wire.age_ms / 1000)


def _gpu(wire: pb.Gpu) -> Gpu:
    values = _measured(wire, _GPU_VALUES)
    engines = tuple(map(EngineId, wire.engines))
    return Gpu(uuid=wire.uuid, index=wire.index, name=wire.name, engines=engines, **values)


def _measured(wire: pb.EngineLoad | pb.Gpu, names: Iterable[str]) -> dict[str, Any]:
    """Return what was measured. What is no number compares with nothing: it is missing."""
    said = {name: getattr(wire, name) for name in names if wire.HasField(name)}
    return {name: value for name, value in said.items() if isfinite(value)}


def hello(protocol: int, coordinator: str, secret: bytes) -> pb.CoordinatorMessage:
    """Return the answer to an agent's hello."""
    scheme = pb.KeyScheme(unit=hashing.UNIT, hash=hashing.HASH)
    return pb.CoordinatorMessage(
        hello=pb.CoordinatorHello(
            protocol=protocol, coordinator=coordinator, key_scheme=scheme, secret=secret
        )
    )


def assignment(number: int, engines: Iterable[Engine]) -> pb.CoordinatorMessage:
    """Return the list of a node's engines."""
    assigned = [
        pb.AssignedEngine(
            id=engine.id,
            base_url=engine.base_url,
            rank=engine.rank or 0,
            events=engine.events,
            replay=engine.replay,
            events_bind=engine.events_bind,
            topic=engine.topic,
            stride=engine.stride,
            version=engine.version,
            pod=_pod(engine.pod),
        )
        for engine in engines
    ]
    return pb.CoordinatorMessage(assignment=pb.Assignment(revision=number, engines=assigned))


def _pod(pod: PodIdent | None) -> pb.Pod | None:
    return None if pod is None else pb.Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid)


def resume(engine: EngineId, at: Position) -> pb.CoordinatorMessage:
    """Return the request to go on from a position."""
    return pb.CoordinatorMessage(
        resume=pb.Resume(engine=engine, generation=at.generation, digest_seq=at.digest_seq)
    )


def resync(engine: EngineId, reason: Reason) -> pb.CoordinatorMessage:
    """Return the request for a snapshot."""
    return pb.CoordinatorMessage(resync=pb.Resync(engine=engine, reason=reason.value))


def vouch(engine: EngineId, generation: str) -> pb.CoordinatorMessage:
    """Return the word that what an agent says of an engine has proved right."""
    return pb.CoordinatorMessage(vouch=pb.Vouch(engine=engine, generation=generation))


def doubt(engine: EngineId, doubt: Doubt) -> pb.CoordinatorMessage:
    """Return the word that what an agent says of an engine has proved wrong."""
    said = pb.Doubt(
        engine=engine,
        generation=doubt.generation,
        reason=doubt.how,
        overstated=doubt.overstated,
    )
    return pb.CoordinatorMessage(doubt=said)


def in_flight(engines: Mapping[EngineId, InFlight]) -> pb.CoordinatorMessage:
    """Return word of what this coordinator has in flight on an agent's engines."""
    said = [
        pb.EngineInFlight(
            engine=engine,
            outstanding=has.outstanding,
            queued_uncached_tokens=has.queued_tokens,
            queued=has.queued,
            wait_ms=min(round(has.wait_s * 1000), 2**32 - 1),
            claimed=has.claimed,
        )
        for engine, has in engines.items()
    ]
    return pb.CoordinatorMessage(in_flight=pb.InFlight(engines=said))


def acks(applied: Mapping[EngineId, Position]) -> pb.CoordinatorMessage:
    """Return word of what was applied."""
    said = [
        pb.Ack(engine=engine, generation=at.generation, digest_seq=at.digest_seq)
        for engine, at in applied.items()
    ]
    return pb.CoordinatorMessage(acks=pb.Acks(acks=said))
