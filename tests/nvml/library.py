"""Builds the NVML library for tests, and runs processes that load it."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")

IDLE = "GPU-idle FakeH200 total_mib=143771 used_mib=0 gpu=0 mem=0 temp=30 power_mw=75000"


def built(folder: Path) -> Path:
    """Return the folder of the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the NVML library for tests with")
    words = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")
    out = folder / "libnvidia-ml.so.1"
    subprocess.run((compiler, *words, "-o", out, SOURCE), check=True)
    return folder


def environment(library: Path, state: Path) -> dict[str, str]:
    """Return what a process needs to load it."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_STATE": str(state),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def scraped(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Run an agent until its GPUs are read; return its page of metrics by series."""
    config = folder / "agent.json"
    config.write_text(
        json.dumps({"coordinators": ["127.0.0.1:1"], "transport": "plaintext", "node": "n1"})
    )
    agent = subprocess.Popen(
        (sys.executable, "-m", "agent.main", "--config", config),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert agent.stdout is not None
        address = json.loads(agent.stdout.readline())["listening"]["metrics"]
        until = time.monotonic() + 15
        while time.monotonic() < until:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            page = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            if "lineside_gpu_available" in page:
                return page
            time.sleep(0.1)
        raise AssertionError("the agent has read no GPU after 15 s")
    finally:
        agent.terminate()
        agent.wait(10)
        if agent.stdout is not None:
            agent.stdout.close()
