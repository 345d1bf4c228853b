"""A node's GPUs as NVML reports them. The only import of NVML.

A value that NVML refuses is `None`; a GPU that fell off the bus stays listed as lost, without
values; no driver, no library or no answer is `unavailable` with the reason, tried again from time
to time. Which engine runs on which GPU is not known here, and not guessed.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pynvml

from agent.saturation import saturation
from lineside.clock import Clock
from lineside.signals import Gpu, GpuDetail, MigDevice, NodeGpus

READ_S = 1.0
DETAIL_S = 10.0
"""Between two readings of what changes seldom: limits, errors, partitions, processes."""

RETRY_S = 30.0
"""After NVML was unavailable: a driver does not come back faster, and its absence is usual."""

ANSWER_S = 5.0
"""A read that takes longer is reported as no answer. It is not started twice."""

_CAUSES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVML library on this node",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "NVML library and driver differ in version",
    pynvml.NVML_ERROR_NO_PERMISSION: "NVML refuses access",
}


_REASONS = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "user_clocks",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksThrottleReasonDisplayClockSetting: "display_clocks",
    pynvml.nvmlClocksThrottleReasonBoardLimit: "board_limit",
    pynvml.nvmlClocksThrottleReasonReliability: "reliability",
}

THROTTLE_REASONS = tuple(_REASONS.values())
"""Why clocks can be low. That a GPU idles is none of them."""


class GpuReader:
    """Reads every GPU once per call, in whichever one thread calls it."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._open = False
        self._seen: dict[int, Gpu] = {}
        self._details: dict[str, tuple[GpuDetail, float]] = {}
        """By UUID, and when each was read."""

    def read(self) -> NodeGpus:
        """Return the GPUs as they are; opens NVML when it is not open."""
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            return NodeGpus(unavailable=_cause(error))
        if not count:
            return NodeGpus(unavailable="no GPU on this node")
        return NodeGpus(tuple(self._gpu(index) for index in range(count)))

    def close(self) -> None:
        """Let NVML go; a later `read` opens it again."""
        if self._open:
            self._open = False
            _ask(pynvml.nvmlShutdown)

    def _gpu(self, index: int) -> Gpu:
        handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _ask(pynvml.nvmlDeviceGetUUID, handle) if handle else None
        if uuid is None:  # lost: what it was called is still known
            known = self._seen.get(index)
            return Gpu(known.uuid if known else "", index, known.name if known else "", lost=True)
        self._seen[index] = gpu = _read(handle, uuid, index, self._detail(handle, uuid))
        return gpu

    def _detail(self, handle: object, uuid: str) -> GpuDetail:
        now = self._monotonic()
        if (kept := self._details.get(uuid)) is not None and now - kept[1] < DETAIL_S:
            return replace(kept[0], age_s=now - kept[1])
        detail = _detail_of(handle)
        self._details[uuid] = detail, now
        return detail


def _read(handle: object, uuid: str, index: int, detail: GpuDetail) -> Gpu:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power_w = _watts(pynvml.nvmlDeviceGetPowerUsage, handle)
    temperature = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    busy = None if rates is None else rates.gpu / 100
    activity = None if rates is None else rates.memory / 100
    throttled = None if reasons is None else _named(reasons)
    return Gpu(
        uuid=uuid,
        index=index,
        name=_ask(pynvml.nvmlDeviceGetName, handle) or "",
        utilization=busy,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_w=power_w,
        temperature_c=None if temperature is None else float(temperature),
        saturation=saturation(busy, activity, power_w, detail.power_limit_w, throttled),
        memory_activity=activity,
        sm_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_hz=_hertz(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        throttled=throttled,
        detail=detail,
    )


def _detail_of(handle: object) -> GpuDetail:
    mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    mig = None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    return GpuDetail(
        power_limit_w=_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        sm_clock_max_hz=_hertz(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        ecc_corrected=_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        mig=mig,
        mig_devices=tuple(_mig_devices(handle)) if mig else (),
        processes=_processes(handle),
        minor=_ask(pynvml.nvmlDeviceGetMinorNumber, handle),
    )


def _mig_devices(handle: object) -> Iterator[MigDevice]:
    """Yield the parts that there are; places may be empty."""
    for place in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        uuid = None if part is None else _ask(pynvml.nvmlDeviceGetUUID, part)
        if uuid is None:
            continue
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, part)
        used, total = (None, None) if memory is None else (int(memory.used), int(memory.total))
        yield MigDevice(uuid, used, total, _processes(part))


def _processes(handle: object) -> int | None:
    running = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if running is None else len(running)


def _errors(handle: object, kind: int) -> int | None:
    count = _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
    return None if count is None else int(count)


def _named(reasons: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _REASONS.items() if reasons & bit)


def _watts(question: Callable[..., Any], handle: object) -> float | None:
    milliwatts = _ask(question, handle)
    return None if milliwatts is None else milliwatts / 1000


def _hertz(question: Callable[..., Any], handle: object, clock: int) -> float | None:
    megahertz = _ask(question, handle, clock)
    return None if megahertz is None else megahertz * 1e6


def _ask(question: Callable[..., Any], *arguments: object) -> Any:
    """Return NVML's answer, or `None` where it refuses one."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _cause(error: pynvml.NVMLError) -> str:
    return _CAUSES.get(error.value, f"NVML reports error {error.value}")


async def watch(
    read: Callable[[], NodeGpus],
    clock: Clock,
    take: Callable[[NodeGpus], None],
    answer_s: float = ANSWER_S,
) -> None:
    """Read until cancelled and hand each reading over."""
    running: asyncio.Future[NodeGpus] | None = None
    while True:
        running = running or _start(read)
        done, _ = await asyncio.wait([running], timeout=answer_s)
        if done:
            gpus, running = running.result(), None
        else:
            gpus = NodeGpus(unavailable="NVML does not answer")
        take(gpus)
        await clock.sleep(RETRY_S if gpus.unavailable and done else READ_S)


def _start(read: Callable[[], NodeGpus]) -> "asyncio.Future[NodeGpus]":
    """Read on a thread of its own, which dies with the process: a driver that hangs must not keep
    the agent from stopping, as a worker of the loop's pool would.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[NodeGpus] = loop.create_future()

    def settle(gpus: NodeGpus | None) -> None:
        if answer.cancelled():
            return
        if gpus is None:
            answer.set_exception(RuntimeError("the GPU reader failed"))  # its thread said why
        else:
            answer.set_result(gpus)

    def work() -> None:
        gpus = None
        try:
            gpus = read()
        finally:
            with suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(settle, gpus)

    threading.Thread(target=work, name="nvml", daemon=True).start()
    return answer
