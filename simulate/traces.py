"""Recorded traffic: requests by the blocks of 512 tokens that their prompts consist of. Pure.

The form is that of the traces published with Mooncake: `timestamp` in ms, `input_length`,
`output_length`, `hash_ids`. The same id is the same block after the same prefix.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

BLOCK_TOKENS = 512


class BadTrace(ValueError):
    """A line that is no request; says which, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `at_s` counts from the trace's start."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def read_trace(lines: Iterable[str | bytes]) -> list[TraceRequest]:
    """Read a trace, in the order of time. Raises `BadTrace`."""
    requests = [_request(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    return sorted(requests, key=lambda request: request.at_s)


def _request(line: str | bytes, number: int) -> TraceRequest:
    try:
        said = json.loads(line)
    except ValueError:
        raise BadTrace(f"line {number} is not JSON") from None
    if not isinstance(said, dict):
        raise BadTrace(f"line {number} is not an object")
    names = ("timestamp", "input_length", "output_length")
    numbers = [n for name in names if (n := _number(said.get(name))) is not None]
    blocks = said.get("hash_ids")
    if len(numbers) < len(names):
        raise BadTrace(
            f"line {number} needs numbers `timestamp` (ms), `input_length`, `output_length`"
        )
    if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
        raise BadTrace(f"line {number} needs `hash_ids`: one number for each 512 tokens")
    at_ms, tokens, output = numbers
    if not 0 <= len(blocks) * BLOCK_TOKENS - tokens < BLOCK_TOKENS or not tokens:
        raise BadTrace(f"line {number}: {len(blocks)} blocks do not hold {tokens} tokens")
    return TraceRequest(at_ms / 1000, int(tokens), max(1, int(output)), tuple(blocks))


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and 0 <= value < 1e15 else None


def spread_ticks(requests: Sequence[TraceRequest], rng: random.Random) -> list[TraceRequest]:
    """Spread what a coarse clock has put on one moment over the time to the next one."""
    ticks = [(at, list(of)) for at, of in groupby(requests, key=lambda request: request.at_s)]
    spread: list[TraceRequest] = []
    for place, (at, of) in enumerate(ticks):
        until = ticks[place + 1][0] if place + 1 < len(ticks) else at + 1.0
        times = sorted(rng.uniform(at, until) for _ in of)
        spread += [replace(each, at_s=time) for each, time in zip(of, times, strict=True)]
    return spread


def overlaid(requests: Sequence[TraceRequest], parts: int) -> list[TraceRequest]:
    """Lay a trace's equal parts of time over each other: more traffic, of disjoint conversations.

    Ids are kept apart but for the first block that all share.
    """
    if not requests or parts < 2:
        return list(requests)
    length = (requests[-1].at_s + 1e-9) / parts
    common = requests[0].blocks[0]
    stride = 1 + max(max(request.blocks) for request in requests)

    def moved() -> Iterator[TraceRequest]:
        for request in requests:
            part = int(request.at_s / length)
            blocks = tuple(b if b == common else b + part * stride for b in request.blocks)
            yield replace(request, at_s=request.at_s - part * length, blocks=blocks)

    return sorted(moved(), key=lambda request: request.at_s)


def scaled(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """Return the same requests `factor` times as fast."""
    return [replace(request, at_s=request.at_s / factor) for request in requests]
