"""The workloads of `bench.routing` in virtual time: more engines than this machine could run.

    python -m bench.routing_virtual [--engines N ...] [--seconds S] [--json FILE]

The product's own core, other routers' rules and an oracle, over a model of the same engines; no
sockets, no processor time. `docs/benchmarks.md` says what is simulated and what the oracle knows.
"""

import argparse
import json
import platform
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contenders import BLOCK, Speed
from bench.routing import COUNTED_FROM, RATES, SEED, SLO
from cli.strategies import STRATEGIES
from simulate.arrivals import WORKLOADS, Shape, traced
from simulate.core import Speeds
from simulate.play import Played, play
from simulate.virtual import Job, Size, VirtualEngine

SECONDS = {3: 240.0, 8: 240.0, 64: 60.0, 512: 20.0}
ENGINE = Speed()
SPEEDS = Speeds(
    base_step_s=ENGINE.base_step_s,
    prefill_s_per_token=ENGINE.prefill_s_per_token,
    attention_s_per_token_pair=0.0,
)
SIZE = Size(kv_tokens=ENGINE.blocks * BLOCK, max_num_seqs=ENGINE.max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one strategy reached in one cell."""

    workload: str
    engines: int
    strategy: str
    mean_ttft_ms: float
    median_ttft_ms: float
    p95_ttft_ms: float
    goodput_per_s: float
    hit_rate: float
    busiest: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--workload", nargs="+", choices=sorted(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--engines", nargs="+", type=int, default=list(SECONDS))
    parser.add_argument("--seconds", type=float, help="of traffic in each run")
    parser.add_argument("--rate", type=float, default=1.0, help="times the usual rate")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    rows: list[Row] = []
    for count in options.engines:
        for workload in options.workload:
            rate = RATES[workload, 3] * count / 3 * options.rate
            seconds = options.seconds or SECONDS.get(count, 60.0)
            shape = Shape(count, rate, seconds, seed=options.seed)
            cell = [run(workload, shape, name) for name in options.only]
            show(workload, shape, cell)
            rows += cell
            if options.json:
                options.json.write_text(json.dumps(report(rows), indent=1) + "\n")
    return 0


def run(workload: str, shape: Shape, name: str) -> Row:
    """Play one workload by one strategy."""
    requests = traced(WORKLOADS[workload](shape))
    engines = [VirtualEngine(SPEEDS, SIZE) for _ in range(shape.engines)]
    strategy = STRATEGIES[name].make(engines, random.Random(shape.seed))
    return row_of(workload, shape, name, play(requests, engines, strategy))


def row_of(workload: str, shape: Shape, name: str, played: Played) -> Row:
    """Return what a run comes to, but for its first part."""
    from_s = shape.seconds * COUNTED_FROM
    counted = [
        (job, engine)
        for job, engine in zip(played.jobs, played.engines, strict=True)
        if job.arrived >= from_s and engine is not None
    ]
    jobs = [job for job, _ in counted]
    ttfts = sorted(job.ttft_s * 1e3 for job in jobs)
    sent = [0] * shape.engines
    for _, engine in counted:
        sent[engine] += 1
    return Row(
        workload=workload,
        engines=shape.engines,
        strategy=name,
        mean_ttft_ms=statistics.fmean(ttfts),
        median_ttft_ms=statistics.median(ttfts),
        p95_ttft_ms=ttfts[int(0.95 * len(ttfts))],
        goodput_per_s=sum(map(is_good, jobs)) / (shape.seconds - from_s),
        hit_rate=sum(job.cached_tokens for job in jobs)
        / sum(job.request.input_tokens for job in jobs),
        busiest=max(sent) * shape.engines / len(jobs),
    )


def is_good(job: Job) -> bool:
    """Tell whether a request kept the objective."""
    return job.ttft_s <= SLO.ttft_s and job.mean_itl_s <= SLO.itl_s


def show(workload: str, shape: Shape, rows: Sequence[Row]) -> None:
    """Print one cell's table."""
    print(f"\n{workload}, {shape.engines} engines, {shape.rate_per_s:g} chats/s, virtual time")
    print(f"{'':16} TTFT mean  median     p95    good/s  hits  busiest")
    for row in rows:
        print(
            f"{row.strategy:16} {row.mean_ttft_ms:9.1f} {row.median_ttft_ms:7.1f} "
            f"{row.p95_ttft_ms:7.0f} {row.goodput_per_s:9.2f} {row.hit_rate:5.2f} "
            f"{row.busiest:8.2f}"
        )
    sys.stdout.flush()


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all figures, and what they were made with."""
    return {
        "bench": "routing_virtual",
        "python": platform.python_version(),
        "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
