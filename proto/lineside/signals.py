"""What an agent observes of its engines and its node, as values both sides share. Types only.

The agent's scrape, GPU reader and engine workers write them; the coordinator's cluster keeps them.
`None` is a value that could not be had; zero is a measurement.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lineside.ids import EngineId


class Events(Enum):
    """How far the agent can vouch for an engine's digest (the wire's `EngineStatus.Events`)."""

    NONE = "none"
    CONNECTING = "connecting"
    LIVE = "live"
    UNSURE = "unsure"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Status:
    """One engine's events. Counters run since the agent's start; `block_size` 0: not known yet."""

    events: Events
    reason: str = ""
    block_size: int = 0
    blocks: int = 0
    batches: int = 0
    gaps: int = 0
    unmatched_removals: int = 0
    undecodable: int = 0
    announce: bool = False
    """The engine may be made to announce what it holds: no announcement will count as a copy."""
    replays: int = 0
    """Asked for; stays on the agent, as do `restarts`."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine's /metrics said; counters run since the engine's start."""

    waiting: int | None = None
    running: int | None = None
    kv_cache_usage: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    process_start_s: float | None = None
    prefills: int | None = None
    """Requests whose prompt has been computed; stays on the agent."""
    asleep: bool | None = None
    """The engine computes nothing until it is woken."""
    emptied: bool | None = None
    """It gave its memory back as well, and with it its cache; stays on the agent."""
    missing: tuple[str, ...] = ()
    """Series that this engine's version should have and has not, by their newest name."""


class InFlight(NamedTuple):
    """What one coordinator has in flight on an engine."""

    outstanding: int = 0
    """Requests."""
    queued: int = 0
    """Those without a first token."""
    queued_tokens: int = 0
    """Of theirs, what was not cached."""
    wait_s: float = 0.0
    """Until these are computed, as that coordinator predicts."""
    claimed: bytes = b""
    """Packed keys of prompts that were sent there lately, at every 64th unit."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A part of a GPU that is partitioned: memory and processes of its own, no utilization."""

    uuid: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDetail:
    """What changes seldom or costs the driver more, and is read less often. Stays on the agent."""

    age_s: float = 0.0
    """By how much it is older than the rest of the GPU's values."""
    power_limit_w: float | None = None
    sm_clock_max_hz: float | None = None
    ecc_corrected: int | None = None
    """Errors since the driver was loaded."""
    ecc_uncorrected: int | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    processes: int | None = None
    """That compute on the GPU, where the driver lets this process see them."""
    minor: int | None = None
    """The number of its device file, `/dev/nvidiaN`, which is not its index."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `None`: NVML refused the value."""

    uuid: str
    index: int
    name: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    engines: tuple[EngineId, ...] = ()
    """Empty: unknown. Which GPU serves which engine is never guessed."""
    saturation: float | None = None
    """How near it is to what it can do, 0 to 1 (docs/gpu.md)."""
    lost: bool = False
    """It fell off the bus: nothing is read. This and all below stay on the agent."""
    memory_activity: float | None = None
    """Share of the last sample period in which memory was read or written."""
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Why its clocks are lower than they could be; empty: they are not."""
    detail: GpuDetail | None = None


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A node's GPUs; `unavailable` says why there are none to read."""

    gpus: tuple[Gpu, ...] = ()
    unavailable: str = ""
