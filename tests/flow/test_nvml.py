"""GPUs through the real NVML binding, over a library for tests; and what an agent shows of them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lineside.signals import Gpu, GpuDetail, MigDevice, NodeGpus
from tests.nvml.library import IDLE, environment, scraped

pytestmark = pytest.mark.flow

READER = """\
import sys, msgspec
from agent.gpu import GpuReader
now = 0.0
reader = GpuReader(lambda: now)
for line in sys.stdin:
    now += float(line)
    sys.stdout.buffer.write(msgspec.json.encode(reader.read()) + b"\\n")
    sys.stdout.flush()
"""

MIB = 1 << 20

BUSY = Gpu(
    uuid="GPU-a",
    index=0,
    name="FakeH200",
    utilization=0.9,
    memory_used_bytes=100_000 * MIB,
    memory_total_bytes=143_771 * MIB,
    power_w=560.0,
    temperature_c=71.0,
    saturation=0.9 * (560 / 700),
    memory_activity=0.5,
    sm_clock_hz=1_755e6,
    memory_clock_hz=3_201e6,
    throttled=("user_clocks",),
    detail=GpuDetail(
        age_s=0.0,
        power_limit_w=700.0,
        sm_clock_max_hz=1_980e6,
        ecc_corrected=5,
        ecc_uncorrected=1,
        mig=False,
        mig_devices=(),
        processes=2,
        minor=4,
    ),
)
LINE = (
    "GPU-a FakeH200 total_mib=143771 used_mib=100000 gpu=90 mem=50 temp=71 power_mw=560000"
    " limit_mw=700000 sm=1755 sm_max=1980 mem_clock=3201 reasons=0x2 ecc_fixed=5 ecc_bad=1 mig=0"
    " processes=2 minor=4"
)


Read = Callable[..., NodeGpus]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def read(library: Path, state: Path) -> Iterator[Read]:
    """Return a way to read the GPUs of a process, some seconds after the last time."""
    process = subprocess.Popen(
        (sys.executable, "-c", READER),
        env=environment(library, state),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(*lines: str, after_s: float = 1.0) -> NodeGpus:
        assert process.stdin is not None and process.stdout is not None
        state.write_text("".join(f"{line}\n" for line in lines))
        process.stdin.write(f"{after_s}\n".encode())
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(), type=NodeGpus)

    yield ask
    process.stdin.close()
    process.stdout.close()
    assert process.wait(10) == 0


def test_names_and_units_are_those_of_the_binding(read: Read) -> None:
    assert read(LINE) == NodeGpus((BUSY,))


def test_a_gpu_is_seen_to_change_and_to_be_held_back(read: Read) -> None:
    read(LINE)
    (now,) = read(LINE.replace("gpu=90", "gpu=20").replace("0x2", "0x40")).gpus
    assert (now.utilization, now.throttled, now.saturation) == (0.2, ("hw_thermal",), 0.2)
    assert now.detail is not None and now.detail.age_s == 1.0


def test_a_partitioned_gpu_has_no_utilization_and_shows_its_parts(read: Read) -> None:
    line = LINE.replace("gpu=90 mem=50 ", "").replace("mig=0", "mig=1 parts=2")
    (gpu,) = read(line).gpus
    assert (gpu.utilization, gpu.saturation, gpu.memory_activity) == (None, None, None)
    assert gpu.detail is not None and gpu.detail.mig is True
    size = (143_771 // 7) * MIB
    assert gpu.detail.mig_devices == (
        MigDevice("MIG-0", 0, size, 2),
        MigDevice("MIG-1", 0, size, 2),
    )


def test_a_lost_gpu_keeps_its_name_and_the_others_their_values(read: Read) -> None:
    other = LINE.replace("GPU-a", "GPU-b")
    assert len(read(LINE, other).gpus) == 2
    lost, kept = read(f"{LINE} lost=1", other).gpus
    assert lost == Gpu("GPU-a", 0, "FakeH200", lost=True)
    assert (kept.uuid, kept.utilization) == ("GPU-b", 0.9)
    assert not read(LINE, other).gpus[0].lost


def test_what_a_driver_does_not_know_is_missing(read: Read) -> None:
    (gpu,) = read("GPU-a OldGPU total_mib=1000 used_mib=0 gpu=100 mem=20").gpus
    assert gpu == Gpu(
        uuid="GPU-a",
        index=0,
        name="OldGPU",
        utilization=1.0,
        memory_used_bytes=0,
        memory_total_bytes=1000 * MIB,
        saturation=0.2,
        memory_activity=0.2,
        detail=GpuDetail(),
    )


def test_a_node_without_gpus_says_so(read: Read) -> None:
    assert read() == NodeGpus(unavailable="no GPU on this node")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (9, "the NVIDIA driver is not loaded"),
        (18, "NVML library and driver differ in version"),
    ],
)
def test_a_driver_that_is_missing_is_named(
    library: Path, state: Path, code: int, reason: str
) -> None:
    assert _once({**environment(library, state), "FAKE_NVML_INIT_ERROR": str(code)}) == reason


def test_a_library_that_is_missing_is_named() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has the library")
    assert _once(dict(os.environ)) == "no NVML library on this node"


def _once(environ: dict[str, str]) -> str:
    done = subprocess.run(
        (sys.executable, "-c", READER), env=environ, input="1\n", capture_output=True, text=True
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return str(said["unavailable"])


def test_an_agent_shows_its_node(library: Path, state: Path, tmp_path: Path) -> None:
    state.write_text(f"{LINE}\n{IDLE} lost=1\n")
    page = scraped(environment(library, state), tmp_path)
    of = 'gpu="0",model="FakeH200",uuid="GPU-a"'
    shown = {
        "lineside_gpu_available": 1,
        f"lineside_gpu_lost{{{of}}}": 0,
        f"lineside_gpu_utilization_ratio{{{of}}}": 0.9,
        f"lineside_gpu_saturation_ratio{{{of}}}": 0.9 * (560 / 700),
        f"lineside_gpu_memory_activity_ratio{{{of}}}": 0.5,
        f"lineside_gpu_memory_ratio{{{of}}}": 100_000 / 143_771,
        f"lineside_gpu_memory_used_bytes{{{of}}}": 100_000 * MIB,
        f"lineside_gpu_memory_total_bytes{{{of}}}": 143_771 * MIB,
        f"lineside_gpu_power_watts{{{of}}}": 560,
        f"lineside_gpu_power_limit_watts{{{of}}}": 700,
        f"lineside_gpu_temperature_celsius{{{of}}}": 71,
        f"lineside_gpu_sm_clock_hertz{{{of}}}": 1.755e9,
        f"lineside_gpu_sm_clock_max_hertz{{{of}}}": 1.98e9,
        f"lineside_gpu_memory_clock_hertz{{{of}}}": 3.201e9,
        f"lineside_gpu_mig_enabled{{{of}}}": 0,
        f"lineside_gpu_processes{{{of}}}": 2,
        f"lineside_gpu_throttled{{{_with(of, reason='user_clocks')}}}": 1,
        f"lineside_gpu_throttled{{{_with(of, reason='hw_thermal')}}}": 0,
        f"lineside_gpu_ecc_errors_total{{{_with(of, kind='corrected')}}}": 5,
        f"lineside_gpu_ecc_errors_total{{{_with(of, kind='uncorrected')}}}": 1,
    }
    assert {name: float(page[name]) for name in shown if name in page} == shown
    for read in ("often", "seldom"):
        assert 0 <= float(page[f"lineside_gpu_age_seconds{{{_with(of, read=read)}}}"]) < 5
    lost = [name for name in page if 'gpu="1"' in name]
    assert lost == ['lineside_gpu_lost{gpu="1",model="",uuid=""}']


def _with(labels: str, **more: str) -> str:
    """Return labels with more of them, in the order of a page."""
    return ",".join(sorted([*labels.split(","), *(f'{k}="{v}"' for k, v in more.items())]))
