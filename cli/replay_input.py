"""What a replay reads: a trace, or a coordinator's decision records. Files in, requests out.

Records name no blocks, for they hold nothing of what prompts say: each prompt is its own then.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.children import CouldNotRun
from simulate.traces import BLOCK_TOKENS, BadTrace, TraceRequest, read_trace

MAX_LINE_BYTES = 16 << 20
"""A request is some kilobytes; a list of all records that a coordinator keeps is less than this."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of a file, and what it does not say."""

    requests: list[TraceRequest]
    is_coarse: bool
    """Times are those of a trace's clock, many requests to a tick."""
    notes: tuple[str, ...] = ()


def read(name: str) -> Traffic:
    """Read a file. Raises `CouldNotRun`; repeats nothing of what it holds."""
    try:
        lines = list(_lines(name))
    except OSError as error:
        why = (error.strerror or "no gzip file").lower()
        raise CouldNotRun(f"{name}: cannot be read: {why}") from None
    except EOFError:
        raise CouldNotRun(f"{name}: cannot be read: it ends too early") from None
    records = _records(lines)
    try:
        traffic = Traffic(read_trace(lines), True) if records is None else _recorded(records)
    except BadTrace as error:
        raise CouldNotRun(f"{name}: {error}", _HELP) from None
    if not traffic.requests:
        raise CouldNotRun(f"{name}: there is no request in it", _HELP)
    return traffic


_HELP = "a trace has `timestamp`, `input_length`, `output_length`, `hash_ids` on each line"


def _lines(name: str) -> Iterator[bytes]:
    with open(name, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(name) if is_packed else open(name, "rb") as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""):
            if len(line) > MAX_LINE_BYTES:
                raise CouldNotRun(f"{name}: a line is longer than {MAX_LINE_BYTES >> 20} MiB")
            yield line


def _records(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Return decision records; `None`: the lines are none."""
    try:
        said = [json.loads(line) for line in lines if line.strip()]
    except ValueError:
        return None
    records = [each for one in said for each in (one if isinstance(one, list) else [one])]
    are_records = bool(records) and all(isinstance(r, dict) and "outcome" in r for r in records)
    return records if are_records else None


def _recorded(records: list[dict[str, Any]]) -> Traffic:
    """Return the requests that records tell enough of."""
    requests, next_block = list[TraceRequest](), 0
    begin = min((at for r in records if (at := _number(r.get("at"))) is not None), default=0.0)
    for record in records:
        outcome = _outcome(record)
        at, tokens = _number(record.get("at")), _prompt(record)
        answer = _number(outcome.get("completion_tokens"))
        if at is None or not tokens or answer is None:
            continue
        blocks = tuple(range(next_block, next_block + -(-tokens // BLOCK_TOKENS)))
        next_block += len(blocks)
        requests.append(TraceRequest(at - begin, tokens, max(1, int(answer)), blocks))
    notes = ["records name no blocks: every prompt is its own, and no cache helps any"]
    if lost := len(records) - len(requests):
        why = "their prompt's or their answer's tokens are not known"
        notes.append(f"{lost} of {len(records)} records are left out: {why}")
    return Traffic(sorted(requests, key=lambda each: each.at_s), False, tuple(notes))


def _prompt(record: dict[str, Any]) -> int | None:
    """Return a prompt's tokens, by the engine's word where there is one."""
    tokens = _number(_outcome(record).get("prompt_tokens") or record.get("prompt_tokens"))
    return None if tokens is None else int(tokens)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else None


def _outcome(record: dict[str, Any]) -> dict[str, Any]:
    outcome = record["outcome"]
    return outcome if isinstance(outcome, dict) else {}
