"""GPUs as NVML tells of them, over a stand-in for the binding's library."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from agent import gpu
from agent.gpu import GpuReader, watch
from lineside.signals import Gpu, GpuDetail, NodeGpus


class FakeNvml:
    """The binding as the reader uses it. `refused` holds functions that raise; by name."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.opened = 0
        self.refused: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> object:
            if name in self.refused:
                raise pynvml.NVMLError(self.refused[name])
            return getattr(self, f"_{name.removeprefix('nvml')}")(*arguments)

        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        return call

    def _Init(self) -> None:
        self.opened += 1

    def _Shutdown(self) -> None:
        self.opened -= 1

    def _DeviceGetCount(self) -> int:
        return self.count

    def _DeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle-{index}"

    def _DeviceGetUUID(self, handle: str) -> str:
        return f"GPU-{handle[-1]}"

    def _DeviceGetName(self, handle: str) -> str:
        return "H200"

    def _DeviceGetMemoryInfo(self, handle: str) -> object:
        return SimpleNamespace(used=1 << 30, total=140 << 30)

    def _DeviceGetUtilizationRates(self, handle: str) -> object:
        return SimpleNamespace(gpu=7, memory=3)

    def _DeviceGetPowerUsage(self, handle: str) -> int:
        return 120_500

    def _DeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 41

    def _DeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x1 | 0x200  # idle, and held back by its board

    def _DeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 345, pynvml.NVML_CLOCK_MEM: 3201}[clock]

    def _DeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return 1980

    def _DeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def _DeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        return 2 + kind

    def _DeviceGetMinorNumber(self, handle: str) -> int:
        return 3 - int(handle[-1])

    def _DeviceGetMigMode(self, handle: str) -> list[int]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _DeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:
        return [object()]


DETAIL = GpuDetail(
    age_s=0.0,
    power_limit_w=700.0,
    sm_clock_max_hz=1980e6,
    ecc_corrected=2,
    ecc_uncorrected=3,
    mig=None,
    mig_devices=(),
    processes=1,
    minor=3,
)
GPU_0 = Gpu(
    uuid="GPU-0",
    index=0,
    name="H200",
    utilization=0.07,
    memory_used_bytes=1 << 30,
    memory_total_bytes=140 << 30,
    power_w=120.5,
    temperature_c=41.0,
    saturation=0.07 * (120.5 / 700),
    memory_activity=0.03,
    sm_clock_hz=345e6,
    memory_clock_hz=3201e6,
    throttled=("board_limit",),
    detail=DETAIL,
)
GPU_1 = replace(GPU_0, uuid="GPU-1", index=1, detail=replace(DETAIL, minor=2))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(gpu, "pynvml", fake)
    return fake


def test_every_gpu_is_read_over_one_opening(nvml: FakeNvml) -> None:
    nvml.count = 2
    reader = GpuReader(lambda: 0.0)
    assert reader.read() == reader.read() == NodeGpus((GPU_0, GPU_1))
    assert nvml.opened == 1
    reader.close()
    reader.close()
    assert nvml.opened == 0


def test_a_refused_value_is_missing_and_the_others_stand(nvml: FakeNvml) -> None:
    for function in ("DeviceGetUtilizationRates", "DeviceGetPowerUsage"):
        nvml.refused[f"nvml{function}"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    expected = replace(GPU_0, utilization=None, power_w=None, saturation=None, memory_activity=None)
    assert GpuReader(lambda: 0.0).read() == NodeGpus((expected,))


def test_what_changes_seldom_is_read_seldom_and_has_its_age(nvml: FakeNvml) -> None:
    now = 100.0
    reader = GpuReader(lambda: now)
    assert reader.read() == NodeGpus((GPU_0,))
    nvml.refused["nvmlDeviceGetMaxClockInfo"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    now += gpu.DETAIL_S - 1
    kept = replace(DETAIL, age_s=gpu.DETAIL_S - 1)
    assert reader.read() == NodeGpus((replace(GPU_0, detail=kept),))
    now += 1
    anew = replace(DETAIL, sm_clock_max_hz=None)
    assert reader.read() == NodeGpus((replace(GPU_0, detail=anew),))


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_lost_gpu_stays_listed_without_values(nvml: FakeNvml, function: str) -> None:
    reader = GpuReader(lambda: 0.0)
    reader.read()
    nvml.refused[function] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert reader.read() == NodeGpus((Gpu("GPU-0", 0, "H200", lost=True),))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVML library on this node"),
        pytest.param(pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        pytest.param(
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "NVML library and driver differ in version"
        ),
        pytest.param(pynvml.NVML_ERROR_NO_PERMISSION, "NVML refuses access"),
        pytest.param(pynvml.NVML_ERROR_TIMEOUT, "NVML reports error 10"),
    ],
)
def test_without_nvml_the_reason_is_told(nvml: FakeNvml, error: int, reason: str) -> None:
    nvml.refused["nvmlInit"] = error
    reader = GpuReader(lambda: 0.0)
    assert reader.read() == NodeGpus(unavailable=reason)
    del nvml.refused["nvmlInit"]
    assert reader.read() == NodeGpus((GPU_0,))


def test_a_driver_that_goes_away_is_opened_anew(nvml: FakeNvml) -> None:
    reader = GpuReader(lambda: 0.0)
    reader.read()
    nvml.refused["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNINITIALIZED
    assert reader.read() == NodeGpus(unavailable="NVML reports error 1")
    nvml.refused.clear()
    assert reader.read() == NodeGpus((GPU_0,))
    assert nvml.opened == 1


def test_a_node_without_a_gpu_says_so(nvml: FakeNvml) -> None:
    nvml.count = 0
    assert GpuReader(lambda: 0.0).read() == NodeGpus(unavailable="no GPU on this node")


class Steps:
    """A clock that only counts sleeps, and cancels its user at the last one."""

    def __init__(self, sleeps: int) -> None:
        self.sleeps = sleeps
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 0.0

    def unix(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.sleeps:
            raise asyncio.CancelledError


async def taken(read: Any, clock: Steps, answer_s: float = 5.0) -> list[NodeGpus]:
    readings: list[NodeGpus] = []
    with pytest.raises(asyncio.CancelledError):
        await watch(read, clock, readings.append, answer_s)
    return readings


async def test_an_unavailable_nvml_is_tried_again_slowly() -> None:
    answers = [NodeGpus((GPU_0,)), NodeGpus(unavailable="gone"), NodeGpus((GPU_0,))]
    clock = Steps(3)
    assert await taken(iter(answers).__next__, clock) == answers
    assert clock.slept == [gpu.READ_S, gpu.RETRY_S, gpu.READ_S]


async def test_a_driver_that_hangs_is_named_and_not_asked_twice() -> None:
    go_on = threading.Event()
    calls = []

    def read() -> NodeGpus:
        calls.append(1)
        go_on.wait(5)
        return NodeGpus((GPU_0,))

    silent = NodeGpus(unavailable="NVML does not answer")
    assert await taken(read, Steps(3), answer_s=0.01) == [silent] * 3
    go_on.set()
    assert len(calls) == 1


async def test_an_answer_that_came_late_is_taken() -> None:
    go_on = threading.Event()

    def read() -> NodeGpus:
        go_on.wait(5)
        return NodeGpus((GPU_0,))

    readings: list[NodeGpus] = []

    def take(gpus: NodeGpus) -> None:
        readings.append(gpus)
        go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await watch(read, Steps(2), take, 0.2)
    assert readings == [NodeGpus(unavailable="NVML does not answer"), NodeGpus((GPU_0,))]
