"""A node's GPUs as NVML reports them. The only import of NVML.

A value that NVML refuses is `None`; a GPU that fell off the bus stays listed without values; no
driver, no library or no answer is `unavailable` with the reason, tried again from time to time.
Which engine runs on which GPU is not known here, and not guessed.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from lineside.clock import Clock
from lineside.signals import Gpu, NodeGpus

READ_S = 1.0
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


class GpuReader:
    """Reads every GPU once per call, in whichever one thread calls it."""

    def __init__(self) -> None:
        self._open = False
        self._seen: dict[int, Gpu] = {}

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
            return Gpu(known.uuid if known else "", index, known.name if known else "")
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        temperature = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        self._seen[index] = gpu = Gpu(
            uuid=uuid,
            index=index,
            name=_ask(pynvml.nvmlDeviceGetName, handle) or "",
            utilization=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
        )
        return gpu


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
