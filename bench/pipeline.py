"""From engines' events to the coordinator's index: CPU, bytes, latency and stalls.

    python bench/pipeline.py [--json FILE]

Prints one table in about a minute and a half; `bench/README.md` says what each row means. Seeds are
fixed. What is measured runs in a process of its own, and what feeds it in another.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent import wire
from agent.digest_log import DigestLog
from agent.node import FLUSH_KEYS, FLUSH_MAX_S, FLUSH_S
from lineside.digest import SnapshotChunk
from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.v1 import agents_pb2 as pb

SEED = 20260
HERE = Path(__file__).parent
ENGINES = 8
SIMULATED_S = 20.0
SEQUENCES = 32
"""Decoded at a time, on each engine."""

SNAPSHOT_KEYS = 15_625
"""A million cached tokens at the default stride."""

FRAME_BYTES = 5 + 9
"""Of gRPC and of HTTP/2, beside each message."""

WINDOWS_S = (FLUSH_MAX_S + 0.0024, FLUSH_S + 0.00048)
"""Of which whole keys make 200,000 changes a second: as agents flush, and as they did before."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    unit: str
    value: float
    budget: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    rows = []
    for row in (*bytes_rows(), *snapshot_rows(), *agent_rows(), *ingest_rows()):
        rows.append(row)
        print(f"{row.what:84} {row.value:10.3f} {row.unit:7} {row.budget}".rstrip(), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report(rows), indent=2) + "\n")
    return 0


# --- bytes ----------------------------------------------------------------------------------------


def bytes_rows() -> Iterator[Row]:
    for case, prefill, evicting, budget in (
        ("prefill in steps of 8192 tokens, cache filling", 8192, False, "at most 0.2"),
        ("prefill in steps of 2048 tokens, cache filling", 2048, False, "at most 0.2"),
        ("prefill in steps of 2048 tokens, each key evicts one", 2048, True, ""),
        ("decode only, cache filling", 0, False, ""),
        ("decode only, each key evicts one", 0, True, ""),
    ):
        for engines in (ENGINES, 1):
            what = f"bytes per cached token, {engines} engines, {case}"
            yield Row(what, "B", Wire(engines, evicting).run(prefill), budget)


class Wire:
    """A node's engines, and the bytes that its agent sends of what they cache.

    A step prefills at 50,000 tokens a second and decodes `SEQUENCES`; alone, those take 8 ms.
    """

    def __init__(self, engines: int, evicting: bool) -> None:
        self._rng = random.Random(SEED)
        self._evicting = evicting
        self._updates = wire.Updates()
        self._logs = [DigestLog(EngineId(f"10.42.17.{n}:8000"), 4) for n in range(engines)]
        for log in self._logs:
            log.record(dict.fromkeys(self._keys(2000), Medium.GPU))
        self._cursors = [log.resume(Generation(""), 0) for log in self._logs]
        self._send()
        self._changed = 0

    def run(self, prefill: int) -> float:
        """Return the bytes sent per token cached."""
        step_s = max(0.008, prefill / 50_000)
        due = [step_s * n / len(self._logs) for n in range(len(self._logs))]
        lengths = [[self._rng.randrange(64) for _ in range(SEQUENCES)] for _ in self._logs]
        now, flushed_at, sent, cached = 0.0, 0.0, 0, 0
        while now < SIMULATED_S:
            now += FLUSH_S  # the agent looks this often
            for number, log in enumerate(self._logs):
                while due[number] <= now:
                    due[number] += step_s
                    lengths[number] = [length + 1 for length in lengths[number]]
                    full = sum(length % 64 == 0 for length in lengths[number])
                    cached += prefill + SEQUENCES
                    self._change(log, prefill // 64 + full)
            if now - flushed_at >= FLUSH_MAX_S or self._changed >= FLUSH_KEYS:
                flushed_at, self._changed = now, 0
                sent += self._send()
        return sent / cached

    def _change(self, log: DigestLog, added: int) -> None:
        if self._evicting:
            log.record(dict.fromkeys(list(log.held)[:added], None))
        log.record(dict.fromkeys(self._keys(added), Medium.GPU))
        self._changed += added * (2 if self._evicting else 1)

    def _send(self) -> int:
        for log, cursor in zip(self._logs, self._cursors, strict=True):
            log.flush()
            while part := cursor.next():
                if isinstance(part, SnapshotChunk):
                    self._updates.snapshot(part)
                else:
                    self._updates.delta(part)
        return sum(map(_size, self._updates.take()))

    def _keys(self, count: int) -> list[BlockKey]:
        return [BlockKey(self._rng.getrandbits(64)) for _ in range(count)]


def _size(message: pb.AgentMessage) -> int:
    return message.ByteSize() + FRAME_BYTES


# --- processes ------------------------------------------------------------------------------------


def snapshot_rows() -> Iterator[Row]:
    rng, updates = random.Random(SEED), wire.Updates()
    log = DigestLog(EngineId("10.42.17.133:8000"), 4)
    log.record({BlockKey(rng.getrandbits(64)): Medium.GPU for _ in range(SNAPSHOT_KEYS)})
    cursor = log.resume(Generation(""), 0)
    while isinstance(part := cursor.next(), SnapshotChunk):
        updates.snapshot(part)
    size = sum(map(_size, updates.take())) / SNAPSHOT_KEYS
    yield Row("snapshot, bytes per key (64 tokens)", "B", size, "at most 10")
    took = _run("pipeline_snapshot.py")
    what = "snapshot of a million keys"
    yield Row(f"{what}, from connecting to visible", "s", took["seconds"])
    yield Row(f"{what}, coordinator's CPU", "s", took["cpu_s"])
    yield Row(f"{what}, longest stall of the coordinator's loop", "ms", took["stall_ms"])
    yield Row(f"{what}, longest stall of the agent's loop", "ms", took["agent_stall_ms"])


def agent_rows() -> Iterator[Row]:
    took = _run("pipeline_agent.py")
    what = f"agent, {took['steps_per_s']:.0f} steps of 2048 tokens a second"
    yield Row(f"{what}, share of a core", "", took["share"], "at most 0.25")
    held = f"agent, {took['blocks'] * 16 / 1e6:.1f} million tokens held"
    yield Row(f"{held}, resident memory", "MiB", took["rss_mib"], "at most 200")
    yield Row("agent, messages a second", "", took["messages_per_s"])


def ingest_rows() -> Iterator[Row]:
    for window_s in WINDOWS_S:
        took = _run("pipeline_ingest.py", str(window_s))
        what = f"512 engines, {1e3 * window_s:.0f} ms windows"
        budget = "at most 0.5" if window_s == WINDOWS_S[0] else ""
        yield Row(f"{what}, key changes a second", "", took["changes_per_s"])
        yield Row(f"{what}, messages a second", "", took["messages_per_s"])
        yield Row(f"{what}, coordinator's share of a core", "", took["share"], budget)
        yield Row(f"{what}, applied in time, of all deltas", "", took["applied"], "1")
        yield Row(f"{what}, sent to applied, p50", "ms", took["p50_ms"])
        yield Row(f"{what}, sent to applied, p99", "ms", took["p99_ms"])
        yield Row(f"{what}, loop lag, p99", "ms", took["lag_p99_ms"])
        yield Row(f"{what}, loop lag, longest", "ms", took["lag_max_ms"])
        yield Row(f"{what}, resident memory", "MiB", took["rss_mib"])


def _run(name: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def report(rows: list[Row]) -> dict[str, Any]:
    return {
        "bench": "pipeline",
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
