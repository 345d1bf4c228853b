"""The captured messages of a real engine in cases/wire, and the token ids they were caused with."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.kv_events import Batch, decode

WIRE = Path(__file__).parent / "cases" / "wire"


def rows(name: str) -> list[dict[str, Any]]:
    """Return the lines of a capture that hold a message from the engine."""
    lines = [json.loads(line) for line in (WIRE / f"{name}.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("frames_b64") and line.get("dir") != "sent"]


def frames(row: dict[str, Any]) -> list[bytes]:
    """Return a message's frames as they came."""
    return [base64.b64decode(frame) for frame in row["frames_b64"]]


def batches(name: str) -> list[Batch]:
    """Return a capture's messages, decoded."""
    return [decode(frames(row)) for row in rows(name) if not row.get("end_marker")]


def ids(seed: int, count: int) -> Sequence[int]:
    """Return the token ids of a captured prompt: a linear congruential series over 2,000 ids."""
    state, tokens = seed * 2_654_435_761 % 2**32, []
    for _ in range(count):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        tokens.append(state % 2000 + 3)
    return tokens
