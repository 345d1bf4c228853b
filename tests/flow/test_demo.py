"""`lineside demo` from end to end: real processes, real sockets, the numbers that it promises."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.flow


def test_a_short_demo_fails_nothing_and_beats_round_robin() -> None:
    """`make demo` runs longer; this one's first chats, which are cold, weigh more.

    It promises a third; where other processes want the processors too, a good half is left of it.
    """
    run = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--json", "--seconds", "8", "--seed", "3"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["failed"] == 0
    assert result["requests"] > 80
    ttft, cached = result["ttft_p50_ms"], result["cached_token_share"]
    assert ttft["lineside"] * 1.5 <= ttft["round_robin"]
    assert cached["lineside"] > cached["round_robin"] + 0.2  # the engines' own count
    assert result["cached_token_prediction_error"] < 0.05
