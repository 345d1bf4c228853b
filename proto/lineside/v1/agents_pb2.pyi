from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Medium(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU: _ClassVar[Medium]
    CPU: _ClassVar[Medium]
    DISK: _ClassVar[Medium]

class KeyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRIDED: _ClassVar[KeyKind]
    HIT_POINTS: _ClassVar[KeyKind]
GPU: Medium
CPU: Medium
DISK: Medium
STRIDED: KeyKind
HIT_POINTS: KeyKind

class AgentMessage(_message.Message):
    __slots__ = ("hello", "snapshot", "update")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    hello: AgentHello
    snapshot: SnapshotChunk
    update: Update
    def __init__(self, hello: _Optional[_Union[AgentHello, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("statuses", "loads", "gpu", "deltas", "peers")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[EngineStatus]
    loads: _containers.RepeatedCompositeFieldContainer[EngineLoad]
    gpu: NodeGpu
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    peers: Peers
    def __init__(self, statuses: _Optional[_Iterable[_Union[EngineStatus, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[EngineLoad, _Mapping]]] = ..., gpu: _Optional[_Union[NodeGpu, _Mapping]] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("hello", "assignment", "resume", "resync", "acks", "in_flight", "vouch", "doubt")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    VOUCH_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    hello: CoordinatorHello
    assignment: Assignment
    resume: Resume
    resync: Resync
    acks: Acks
    in_flight: InFlight
    vouch: Vouch
    doubt: Doubt
    def __init__(self, hello: _Optional[_Union[CoordinatorHello, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., acks: _Optional[_Union[Acks, _Mapping]] = ..., in_flight: _Optional[_Union[InFlight, _Mapping]] = ..., vouch: _Optional[_Union[Vouch, _Mapping]] = ..., doubt: _Optional[_Union[Doubt, _Mapping]] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "node", "life", "connection", "software", "secret")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    node: str
    life: str
    connection: int
    software: str
    secret: bytes
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., node: _Optional[str] = ..., life: _Optional[str] = ..., connection: _Optional[int] = ..., software: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...

class CoordinatorHello(_message.Message):
    __slots__ = ("protocol", "coordinator", "software", "key_scheme", "secret")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    KEY_SCHEME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    coordinator: str
    software: str
    key_scheme: KeyScheme
    secret: bytes
    def __init__(self, protocol: _Optional[int] = ..., coordinator: _Optional[str] = ..., software: _Optional[str] = ..., key_scheme: _Optional[_Union[KeyScheme, _Mapping]] = ..., secret: _Optional[bytes] = ...) -> None: ...

class KeyScheme(_message.Message):
    __slots__ = ("unit", "hash")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    unit: int
    hash: str
    def __init__(self, unit: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("revision", "engines")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    engines: _containers.RepeatedCompositeFieldContainer[AssignedEngine]
    def __init__(self, revision: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[AssignedEngine, _Mapping]]] = ...) -> None: ...

class AssignedEngine(_message.Message):
    __slots__ = ("id", "base_url", "rank", "events", "replay", "events_bind", "topic", "stride", "version", "pod")
    ID_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_BIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    id: str
    base_url: str
    rank: int
    events: str
    replay: str
    events_bind: bool
    topic: str
    stride: int
    version: str
    pod: Pod
    def __init__(self, id: _Optional[str] = ..., base_url: _Optional[str] = ..., rank: _Optional[int] = ..., events: _Optional[str] = ..., replay: _Optional[str] = ..., events_bind: bool = ..., topic: _Optional[str] = ..., stride: _Optional[int] = ..., version: _Optional[str] = ..., pod: _Optional[_Union[Pod, _Mapping]] = ...) -> None: ...

class Pod(_message.Message):
    __slots__ = ("namespace", "name", "uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("engine", "generation", "digest_seq")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    engine: str
    generation: str
    digest_seq: int
    def __init__(self, engine: _Optional[str] = ..., generation: _Optional[str] = ..., digest_seq: _Optional[int] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("engine", "reason")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    engine: str
    reason: str
    def __init__(self, engine: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Acks(_message.Message):
    __slots__ = ("acks",)
    ACKS_FIELD_NUMBER: _ClassVar[int]
    acks: _containers.RepeatedCompositeFieldContainer[Ack]
    def __init__(self, acks: _Optional[_Iterable[_Union[Ack, _Mapping]]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("engine", "generation", "digest_seq")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    engine: str
    generation: str
    digest_seq: int
    def __init__(self, engine: _Optional[str] = ..., generation: _Optional[str] = ..., digest_seq: _Optional[int] = ...) -> None: ...

class Vouch(_message.Message):
    __slots__ = ("engine", "generation")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    engine: str
    generation: str
    def __init__(self, engine: _Optional[str] = ..., generation: _Optional[str] = ...) -> None: ...

class Doubt(_message.Message):
    __slots__ = ("engine", "generation", "reason", "overstated")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVERSTATED_FIELD_NUMBER: _ClassVar[int]
    engine: str
    generation: str
    reason: str
    overstated: bool
    def __init__(self, engine: _Optional[str] = ..., generation: _Optional[str] = ..., reason: _Optional[str] = ..., overstated: bool = ...) -> None: ...

class MediumKeys(_message.Message):
    __slots__ = ("medium", "keys")
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    medium: Medium
    keys: bytes
    def __init__(self, medium: _Optional[_Union[Medium, str]] = ..., keys: _Optional[bytes] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("engine", "generation", "digest_seq", "chunk", "last", "keys", "count", "checksum", "stride", "media", "kind")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    engine: str
    generation: str
    digest_seq: int
    chunk: int
    last: bool
    keys: _containers.RepeatedCompositeFieldContainer[MediumKeys]
    count: int
    checksum: int
    stride: int
    media: int
    kind: KeyKind
    def __init__(self, engine: _Optional[str] = ..., generation: _Optional[str] = ..., digest_seq: _Optional[int] = ..., chunk: _Optional[int] = ..., last: bool = ..., keys: _Optional[_Iterable[_Union[MediumKeys, _Mapping]]] = ..., count: _Optional[int] = ..., checksum: _Optional[int] = ..., stride: _Optional[int] = ..., media: _Optional[int] = ..., kind: _Optional[_Union[KeyKind, str]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("handle", "engine", "generation", "digest_seq", "added", "removed", "count", "checksum")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    handle: int
    engine: str
    generation: str
    digest_seq: int
    added: _containers.RepeatedCompositeFieldContainer[MediumKeys]
    removed: _containers.RepeatedCompositeFieldContainer[MediumKeys]
    count: int
    checksum: int
    def __init__(self, handle: _Optional[int] = ..., engine: _Optional[str] = ..., generation: _Optional[str] = ..., digest_seq: _Optional[int] = ..., added: _Optional[_Iterable[_Union[MediumKeys, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[MediumKeys, _Mapping]]] = ..., count: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("engine", "observed_at_ms", "age_ms", "events", "reason", "block_size", "blocks", "batches", "gaps", "unmatched_removals", "undecodable", "announce")
    class Events(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[EngineStatus.Events]
        CONNECTING: _ClassVar[EngineStatus.Events]
        LIVE: _ClassVar[EngineStatus.Events]
        UNSURE: _ClassVar[EngineStatus.Events]
        UNUSABLE: _ClassVar[EngineStatus.Events]
    NONE: EngineStatus.Events
    CONNECTING: EngineStatus.Events
    LIVE: EngineStatus.Events
    UNSURE: EngineStatus.Events
    UNUSABLE: EngineStatus.Events
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_REMOVALS_FIELD_NUMBER: _ClassVar[int]
    UNDECODABLE_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    engine: str
    observed_at_ms: int
    age_ms: int
    events: EngineStatus.Events
    reason: str
    block_size: int
    blocks: int
    batches: int
    gaps: int
    unmatched_removals: int
    undecodable: int
    announce: bool
    def __init__(self, engine: _Optional[str] = ..., observed_at_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., events: _Optional[_Union[EngineStatus.Events, str]] = ..., reason: _Optional[str] = ..., block_size: _Optional[int] = ..., blocks: _Optional[int] = ..., batches: _Optional[int] = ..., gaps: _Optional[int] = ..., unmatched_removals: _Optional[int] = ..., undecodable: _Optional[int] = ..., announce: bool = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("engine", "observed_at_ms", "age_ms", "waiting", "running", "kv_cache_usage", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "preemptions", "block_size", "num_gpu_blocks", "process_start_s", "missing", "asleep")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_START_S_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    engine: str
    observed_at_ms: int
    age_ms: int
    waiting: int
    running: int
    kv_cache_usage: float
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    preemptions: int
    block_size: int
    num_gpu_blocks: int
    process_start_s: float
    missing: _containers.RepeatedScalarFieldContainer[str]
    asleep: bool
    def __init__(self, engine: _Optional[str] = ..., observed_at_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., generation_tokens: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., preemptions: _Optional[int] = ..., block_size: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., process_start_s: _Optional[float] = ..., missing: _Optional[_Iterable[str]] = ..., asleep: bool = ...) -> None: ...

class NodeGpu(_message.Message):
    __slots__ = ("observed_at_ms", "age_ms", "gpus", "unavailable")
    OBSERVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    observed_at_ms: int
    age_ms: int
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    unavailable: str
    def __init__(self, observed_at_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., unavailable: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "index", "name", "utilization", "memory_used_bytes", "memory_total_bytes", "power_w", "temperature_c", "engines", "saturation")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    SATURATION_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    name: str
    utilization: float
    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float
    temperature_c: float
    engines: _containers.RepeatedScalarFieldContainer[str]
    saturation: float
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., name: _Optional[str] = ..., utilization: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., power_w: _Optional[float] = ..., temperature_c: _Optional[float] = ..., engines: _Optional[_Iterable[str]] = ..., saturation: _Optional[float] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("coordinator", "engines", "age_ms")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    engines: _containers.RepeatedCompositeFieldContainer[EngineInFlight]
    age_ms: int
    def __init__(self, coordinator: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[EngineInFlight, _Mapping]]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class EngineInFlight(_message.Message):
    __slots__ = ("engine", "outstanding", "queued_uncached_tokens", "queued", "wait_ms", "claimed")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    engine: str
    outstanding: int
    queued_uncached_tokens: int
    queued: int
    wait_ms: int
    claimed: bytes
    def __init__(self, engine: _Optional[str] = ..., outstanding: _Optional[int] = ..., queued_uncached_tokens: _Optional[int] = ..., queued: _Optional[int] = ..., wait_ms: _Optional[int] = ..., claimed: _Optional[bytes] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("coordinators",)
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    coordinators: _containers.RepeatedCompositeFieldContainer[InFlight]
    def __init__(self, coordinators: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ...) -> None: ...
