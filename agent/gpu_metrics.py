"""The metrics of a node's GPUs, made of its last reading whenever they are asked for.

Labels are the GPU's index, UUID and model, and words from closed lists. A value that NVML refuses
has no series, and a GPU that was lost keeps only `lineside_gpu_lost`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.gpu import THROTTLE_REASONS
from agent.signals import Observed
from lineside.signals import Gpu, GpuDetail, NodeGpus

LABELS = ["gpu", "uuid", "model"]

Sample: TypeAlias = tuple[list[str], float | None]


def gpu_metrics(observed: Observed[NodeGpus] | None, now: float) -> Iterator[Metric]:
    """Yield every metric; without a reading, none has a series."""
    gpus = observed.value.gpus if observed else ()
    age_s = now - observed.at if observed else 0.0
    text = "Whether NVML can be read on this node."
    available = GaugeMetricFamily("lineside_gpu_available", text, labels=[])
    yield _filled(available, [([], float(bool(gpus)))] if observed else ())
    yield _gauge(
        "lineside_gpu_lost",
        "Whether the GPU fell off the bus.",
        ((_labels(gpu), float(gpu.lost)) for gpu in gpus),
    )
    for name, value, text in _GAUGES:
        yield _gauge(name, text, ((_labels(gpu), value(gpu)) for gpu in gpus))
    details = [(gpu, gpu.detail) for gpu in gpus if gpu.detail is not None]
    for name, of_detail, text in _DETAIL_GAUGES:
        yield _gauge(name, text, ((_labels(gpu), of_detail(each)) for gpu, each in details))
    yield _gauge(
        "lineside_gpu_throttled",
        "Whether this is why the GPU's clocks are lower than they could be.",
        (
            ([*_labels(gpu), reason], float(reason in gpu.throttled))
            for gpu in gpus
            if gpu.throttled is not None
            for reason in THROTTLE_REASONS
        ),
        "reason",
    )
    yield from _of_parts(details)
    yield _gauge(
        "lineside_gpu_age_seconds",
        "Age of the GPU's values: `often` those read every second, `seldom` the others.",
        (
            ([*_labels(gpu), read], age_s + older_s)
            for gpu, detail in details
            for read, older_s in (("often", 0.0), ("seldom", detail.age_s))
        ),
        "read",
    )


def _of_parts(details: list[tuple[Gpu, GpuDetail]]) -> Iterator[Metric]:
    """Yield what is counted by kind or by partition."""
    family = CounterMetricFamily(
        "lineside_gpu_ecc_errors",
        "Memory errors since the driver was loaded, `corrected` or `uncorrected`.",
        labels=[*LABELS, "kind"],
    )
    for gpu, detail in details:
        for kind, count in (
            ("corrected", detail.ecc_corrected),
            ("uncorrected", detail.ecc_uncorrected),
        ):
            if count is not None:
                family.add_metric([*_labels(gpu), kind], count)
    yield family
    parts = [(gpu, part) for gpu, detail in details for part in detail.mig_devices]
    yield _gauge(
        "lineside_gpu_mig_memory_used_bytes",
        "Memory in use of a MIG device.",
        (([*_labels(gpu), part.uuid], part.memory_used_bytes) for gpu, part in parts),
        "mig",
    )
    yield _gauge(
        "lineside_gpu_mig_memory_total_bytes",
        "Memory there is of a MIG device.",
        (([*_labels(gpu), part.uuid], part.memory_total_bytes) for gpu, part in parts),
        "mig",
    )
    yield _gauge(
        "lineside_gpu_mig_processes",
        "Processes that compute on a MIG device.",
        (([*_labels(gpu), part.uuid], part.processes) for gpu, part in parts),
        "mig",
    )


def _labels(gpu: Gpu) -> list[str]:
    return [str(gpu.index), gpu.uuid, gpu.name]


def _memory_ratio(gpu: Gpu) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_total_bytes


_GAUGES: tuple[tuple[str, Callable[[Gpu], float | None], str], ...] = (
    (
        "lineside_gpu_utilization_ratio",
        lambda gpu: gpu.utilization,
        "Share of the last sample period in which the GPU computed.",
    ),
    (
        "lineside_gpu_saturation_ratio",
        lambda gpu: gpu.saturation,
        "How near the GPU is to what it can do (gpu.md).",
    ),
    (
        "lineside_gpu_memory_activity_ratio",
        lambda gpu: gpu.memory_activity,
        "Share of the last sample period in which memory was read or written.",
    ),
    ("lineside_gpu_memory_ratio", _memory_ratio, "Share of memory in use."),
    ("lineside_gpu_memory_used_bytes", lambda gpu: gpu.memory_used_bytes, "Memory in use."),
    ("lineside_gpu_memory_total_bytes", lambda gpu: gpu.memory_total_bytes, "Memory there is."),
    ("lineside_gpu_power_watts", lambda gpu: gpu.power_w, "Power drawn."),
    ("lineside_gpu_temperature_celsius", lambda gpu: gpu.temperature_c, "Temperature."),
    ("lineside_gpu_sm_clock_hertz", lambda gpu: gpu.sm_clock_hz, "Clock of the processors."),
    ("lineside_gpu_memory_clock_hertz", lambda gpu: gpu.memory_clock_hz, "Clock of the memory."),
)

_DETAIL_GAUGES: tuple[tuple[str, Callable[[GpuDetail], float | None], str], ...] = (
    ("lineside_gpu_power_limit_watts", lambda each: each.power_limit_w, "Power that it may draw."),
    (
        "lineside_gpu_sm_clock_max_hertz",
        lambda each: each.sm_clock_max_hz,
        "Highest clock of the processors.",
    ),
    ("lineside_gpu_mig_enabled", lambda each: each.mig, "Whether the GPU is partitioned (MIG)."),
    (
        "lineside_gpu_processes",
        lambda each: each.processes,
        "Processes that compute on the GPU, as far as the driver shows them to the agent.",
    ),
)


def _gauge(name: str, text: str, samples: Iterable[Sample], *more: str) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, text, labels=[*LABELS, *more]), samples)


def _filled(family: GaugeMetricFamily, samples: Iterable[Sample]) -> GaugeMetricFamily:
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family
