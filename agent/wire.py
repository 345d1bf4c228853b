"""The agents' stream, to and from the wire. Pure; used by the report alone.

Ages travel beside times, so that the clocks of two machines are never compared. What could not be
measured is absent, never zero.
"""

from agent.assignment import Assigned, AssignedEngine, Scheme
from agent.signals import Events, Load, NodeGpus, Observed, Status
from lineside.digest import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Delta,
    SnapshotChunk,
    encode_delta,
    encode_snapshot,
)
from lineside.ids import EngineId, NodeId
from lineside.v1 import agents_pb2 as pb

_EVENTS = {
    Events.NONE: pb.EngineStatus.NONE,
    Events.CONNECTING: pb.EngineStatus.CONNECTING,
    Events.LIVE: pb.EngineStatus.LIVE,
    Events.UNSURE: pb.EngineStatus.UNSURE,
    Events.UNUSABLE: pb.EngineStatus.UNUSABLE,
}


def hello(node: NodeId, life: str, connection: int) -> pb.AgentMessage:
    """Return a stream's first message."""
    return pb.AgentMessage(
        hello=pb.AgentHello(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            node=node,
            life=life,
            connection=connection,
        )
    )


def digest(message: SnapshotChunk | Delta) -> pb.AgentMessage:
    """Return a part of a digest."""
    if isinstance(message, Delta):
        return pb.AgentMessage(delta=encode_delta(message))
    return pb.AgentMessage(snapshot=encode_snapshot(message))


def status(engine: EngineId, seen: Observed[Status], now: float) -> pb.AgentMessage:
    """Return an engine's status, with its age at `now`."""
    value = seen.value
    return pb.AgentMessage(
        engine_status=pb.EngineStatus(
            engine=engine,
            observed_at_ms=_ms(seen.unix),
            age_ms=_ms(now - seen.at),
            events=_EVENTS[value.events],
            reason=value.reason,
            block_size=value.block_size,
            blocks=value.blocks,
            batches=value.batches,
            gaps=value.gaps,
            unmatched_removals=value.unmatched_removals,
            undecodable=value.undecodable,
        )
    )


def load(engine: EngineId, seen: Observed[Load], now: float) -> pb.AgentMessage:
    """Return an engine's load, with its age at `now`. `None` stays off the wire."""
    value = seen.value
    return pb.AgentMessage(
        engine_load=pb.EngineLoad(
            engine=engine,
            observed_at_ms=_ms(seen.unix),
            age_ms=_ms(now - seen.at),
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
    )


def gpus(seen: Observed[NodeGpus], now: float) -> pb.AgentMessage:
    """Return a node's GPUs, with their age at `now`. `None` stays off the wire."""
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
        )
        for gpu in seen.value.gpus
    ]
    return pb.AgentMessage(
        node_gpu=pb.NodeGpu(
            observed_at_ms=_ms(seen.unix),
            age_ms=_ms(now - seen.at),
            gpus=read,
            unavailable=seen.value.unavailable,
        )
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


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
        )
        for engine in wire.engines
    )
    return Assigned(coordinator, wire.revision, engines)
