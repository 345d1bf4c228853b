"""The agents' stream, to and from the wire. Pure; used by the report alone.

Ages travel beside times, so that the clocks of two machines are never compared. What could not be
measured is absent, never zero.
"""

from collections.abc import Mapping

from agent.assignment import Assigned, AssignedEngine, Scheme
from agent.peers import Word
from agent.signals import Observed
from lineside.digest import (
    KEY_BYTES,
    MAX_CLAIMED,
    MAX_DELTAS,
    MAX_KEYS,
    MAX_REPORTS,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Delta,
    DeltaPacker,
    SnapshotChunk,
    encode_snapshot,
)
from lineside.ids import EngineId, NodeId, PodIdent
from lineside.signals import Events, InFlight, Load, NodeGpus, Status
from lineside.v1 import agents_pb2 as pb

_EVENTS = {
    Events.NONE: pb.EngineStatus.NONE,
    Events.CONNECTING: pb.EngineStatus.CONNECTING,
    Events.LIVE: pb.EngineStatus.LIVE,
    Events.UNSURE: pb.EngineStatus.UNSURE,
    Events.UNUSABLE: pb.EngineStatus.UNUSABLE,
}


def hello(node: NodeId, life: str, connection: int, secret: bytes) -> pb.AgentMessage:
    """Return a stream's first message. `secret`: by which keys are made; empty: by none so far."""
    return pb.AgentMessage(
        hello=pb.AgentHello(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            node=node,
            life=life,
            connection=connection,
            secret=secret,
        )
    )


class Updates:
    """Gathers what is due on one stream into as few messages as their bounds allow."""

    def __init__(self) -> None:
        self._packer = DeltaPacker()
        self._update = pb.Update()
        self._keys = 0
        self._full: list[pb.AgentMessage] = []

    def status(self, engine: EngineId, seen: Observed[Status], now: float) -> None:
        """Add an engine's status."""
        if len(self._update.statuses) == MAX_REPORTS:
            self._close()
        self._update.statuses.append(_status(engine, seen, now))

    def load(self, engine: EngineId, seen: Observed[Load], now: float) -> None:
        """Add an engine's load."""
        if len(self._update.loads) == MAX_REPORTS:
            self._close()
        self._update.loads.append(_load(engine, seen, now))

    def gpus(self, seen: Observed[NodeGpus], now: float) -> None:
        """Add the node's GPUs."""
        self._update.gpu.CopyFrom(_gpus(seen, now))

    def peers(self, words: Mapping[str, Word], now: float) -> None:
        """Add what other coordinators have in flight."""
        said = [_word(name, word, now) for name, word in words.items()]
        self._update.peers.CopyFrom(pb.Peers(coordinators=said))

    def delta(self, delta: Delta) -> None:
        """Add the next delta of an engine."""
        keys = len(delta.added) + len(delta.removed)
        if self._keys + keys > MAX_KEYS or len(self._update.deltas) == MAX_DELTAS:
            self._close()
        self._update.deltas.append(self._packer.pack(delta))
        self._keys += keys

    def snapshot(self, chunk: SnapshotChunk) -> None:
        """Add a part of an engine's snapshot, a message of its own."""
        self._close()  # the engine's deltas before it come first
        self._full.append(pb.AgentMessage(snapshot=encode_snapshot(chunk)))

    def take(self) -> list[pb.AgentMessage]:
        """Return the messages with all that was added, in order."""
        self._close()
        messages, self._full = self._full, []
        return messages

    def forget(self, engine: EngineId) -> None:
        """Free what is kept for an engine that is read no more."""
        self._packer.forget(engine)

    def _close(self) -> None:
        if self._update.ByteSize():  # an empty word on peers counts as well
            self._full.append(pb.AgentMessage(update=self._update))
        self._update, self._keys = pb.Update(), 0


def _status(engine: EngineId, seen: Observed[Status], now: float) -> pb.EngineStatus:
    value = seen.value
    return pb.EngineStatus(
        engine=engine,
        observed_at_ms=_ms(seen.unix),
        age_ms=_age_ms(now - seen.at),
        events=_EVENTS[value.events],
        reason=value.reason,
        block_size=value.block_size,
        blocks=value.blocks,
        batches=value.batches,
        gaps=value.gaps,
        unmatched_removals=value.unmatched_removals,
        undecodable=value.undecodable,
        announce=value.announce,
    )


def _load(engine: EngineId, seen: Observed[Load], now: float) -> pb.EngineLoad:
    value = seen.value
    return pb.EngineLoad(
        engine=engine,
        observed_at_ms=_ms(seen.unix),
        age_ms=_age_ms(now - seen.at),
        waiting=value.waiting,
        running=value.running,
        kv_cache_usage=value.kv_cache_usage,
        prompt_tokens=value.prompt_tokens,
        generation_tokens=value.generation_tokens,
        prefix_cache_queries=value.prefix_cache_queries,
        prefix_cache_hits=value.prefix_cache_hits,
        preemptions=value.preemptions,
        block_size=value.block_size,
        num_gpu_blocks=value.num_gpu_blocks,
        process_start_s=value.process_start_s,
        asleep=value.asleep,  # type: ignore[arg-type]  # the stub forgets `None` for a bool
        missing=value.missing,
    )


def _gpus(seen: Observed[NodeGpus], now: float) -> pb.NodeGpu:
    read = [
        pb.Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            name=gpu.name,
            utilization=gpu.utilization,
            memory_used_bytes=gpu.memory_used_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            power_w=gpu.power_w,
            temperature_c=gpu.temperature_c,
            engines=gpu.engines,
            saturation=gpu.saturation,
        )
        for gpu in seen.value.gpus
    ]
    return pb.NodeGpu(
        observed_at_ms=_ms(seen.unix),
        age_ms=_age_ms(now - seen.at),
        gpus=read,
        unavailable=seen.value.unavailable,
    )


def _word(coordinator: str, word: Word, now: float) -> pb.InFlight:
    engines = [
        pb.EngineInFlight(
            engine=engine,
            outstanding=has.outstanding,
            queued_uncached_tokens=has.queued_tokens,
            queued=has.queued,
            wait_ms=_age_ms(has.wait_s),
            claimed=has.claimed,
        )
        for engine, has in word.engines.items()
    ]
    age_ms = None if word.at is None else _age_ms(now - word.at)
    return pb.InFlight(coordinator=coordinator, engines=engines, age_ms=age_ms)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _age_ms(seconds: float) -> int:
    """Return what the wire has 32 bits for: 49 days, for as long as an engine may be away."""
    return min(_ms(seconds), 2**32 - 1)


def scheme(wire: pb.CoordinatorHello) -> Scheme:
    """Return how the coordinator makes keys."""
    return Scheme(wire.key_scheme.unit, wire.key_scheme.hash, wire.secret)


def assigned(coordinator: str, wire: pb.Assignment) -> Assigned:
    """Return what a coordinator tells this node to read."""
    engines = tuple(
        AssignedEngine(
            id=EngineId(engine.id),
            base_url=engine.base_url,
            rank=engine.rank,
            events=engine.events,
            replay=engine.replay,
            events_bind=engine.events_bind,
            topic=engine.topic,
            stride=engine.stride,
            version=engine.version,
            pod=_pod(engine.pod) if engine.HasField("pod") else None,
        )
        for engine in wire.engines
    )
    return Assigned(coordinator, wire.revision, engines)


def _pod(wire: pb.Pod) -> PodIdent:
    return PodIdent(wire.namespace, wire.name, wire.uid)


def in_flight(wire: pb.InFlight) -> dict[EngineId, InFlight]:
    """Return what a coordinator has in flight here."""
    return {
        EngineId(said.engine): InFlight(
            said.outstanding,
            said.queued,
            said.queued_uncached_tokens,
            said.wait_ms / 1000,
            said.claimed if _is_claimed(said.claimed) else b"",
        )
        for said in wire.engines[:MAX_REPORTS]
    }


def _is_claimed(keys: bytes) -> bool:
    """Whether others take it: one coordinator must not end the others' streams by our word."""
    return len(keys) % KEY_BYTES == 0 and len(keys) <= MAX_CLAIMED * KEY_BYTES
