"""Dynamo's half of the index bench, run by the interpreter of its own environment.

Reads the scene that `bench/index.py` wrote into the folder in `sys.argv[1]`, prints its figures as
one JSON object. Imports nothing of ours.
"""

import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dynamo._core import RadixTree, compute_block_hash_for_seq

BLOCK_TOKENS = 16


def main(folder: Path) -> None:
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    keys = _read("Q", folder / "keys.bin")
    tokens = _read("I", folder / "tokens.bin").tolist()

    fillers = [_chain(keys, span) for span in plan["fillers"]]
    before = _resident_bytes()
    tree = RadixTree()
    for chain, holders in fillers:
        _store(tree, chain, holders)
    tree_bytes = _resident_bytes() - before
    blocks = sum(len(chain) for chain, _ in fillers)

    figures: dict[str, Any] = {"bytes_per_block": tree_bytes / blocks}
    for name in ("long", "short"):
        prompts = [_chain(keys, span) for span in plan[name]]
        for chain, holders in prompts:
            _store(tree, chain, holders)
        figures[f"{name}_us"] = _best_us(
            [partial(tree.find_matches, chain) for chain, _ in prompts], plan["rounds"]
        )
        figures[f"{name}_depths"] = [
            {worker: depth for (worker, _), depth in tree.find_matches(chain).scores.items()}
            for chain, _ in prompts
        ]
    figures["hash_us"] = _best_us(
        [partial(compute_block_hash_for_seq, tokens, BLOCK_TOKENS)], plan["rounds"]
    )
    print(json.dumps(figures))


def _read(code: str, path: Path) -> "array[int]":
    values = array(code)
    values.frombytes(path.read_bytes())
    return values


def _chain(keys: "array[int]", span: Sequence[Any]) -> tuple[list[int], dict[str, int]]:
    start, length, holders = span
    return keys[start : start + length].tolist(), holders


def _store(tree: RadixTree, chain: list[int], holders: dict[str, int]) -> None:
    """Tell the tree who holds how much of a chain; our key stands for both of its hashes."""
    for worker, depth in holders.items():
        blocks = [{"block_hash": key, "tokens_hash": key} for key in chain[:depth]]
        stored = {"parent_hash": None, "blocks": blocks}
        event = {"event_id": 0, "data": {"stored": stored}, "dp_rank": 0}
        tree.apply_event(int(worker), json.dumps(event).encode())


def _best_us(calls: list[Callable[[], object]], rounds: int) -> float:
    """Return the median call of the fastest round, as `bench/index.py` does."""
    return min(statistics.median(_times_us(calls)) for _ in range(rounds))


def _times_us(calls: list[Callable[[], object]]) -> list[float]:
    times = []
    for call in calls:
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
