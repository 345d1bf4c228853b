"""Standard error with the tap in: who writes what, and what of it comes out."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.flow

PROGRAM = """\
import os, sys, time
from coordinator.trust.core_log import CoreLog
log, heard = CoreLog(), []
def hear(line):
    heard.append(line)
    return "told" in line
log.open()
log.hear = hear
lines = (
    b"I1130 20:25:05.982509   13667 any.cc:1] informs\\n",
    b"E1130 20:25:05.982509   13667 any.cc:2] told in other words\\n",
    b"W1130 20:25:05.982509   13667 any.cc:3] warns\\n",
    b"Incredible: no line of gRPC's\\n",
    b"x" * 5000 + b"\\n",
)
for line in lines:
    os.write(2, line)
print("Python's own", file=sys.stderr)
end = time.monotonic() + 5
while sum(map(len, heard)) < sum(map(len, lines)) and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.05)
print(len(heard))
sys.stdout.flush()
raise RuntimeError("the last word")
"""


def test_informing_and_told_lines_are_dropped_and_all_others_come_out() -> None:
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM), capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "6\n"  # the long one in two parts
    for there in ("any.cc:3] warns\n", "Incredible: no line", "x" * 5000, "Python's own\n"):
        assert there in done.stderr
    assert "informs" not in done.stderr and "told" not in done.stderr
    assert done.stderr.endswith("RuntimeError: the last word\n")
    assert done.returncode == 1


def test_who_reads_no_standard_error_holds_up_nobody() -> None:
    """As when the other end of a pipe is gone."""
    program = PROGRAM.replace("lines = (", "lines = 400 * (").replace(
        'print("Python\'s own", file=sys.stderr)', ""
    )
    running = subprocess.Popen(
        (sys.executable, "-c", program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr and running.stdout
    running.stderr.close()
    with running.stdout:
        assert int(running.stdout.read()) >= 5 * 400
    assert running.wait(20) != 0
