"""Routers of others and ours before the same simulated engines, on real sockets.

    python -m bench.routing [--only WORD ...] [--engines N ...] [--seconds S] [--json FILE]

For each workload and number of engines, each contender gets fresh engines and the same chats at the
same times. Prints a table for each; `bench/README.md` says what each column means. Contenders that
cannot be had or do not start are named with the reason. Takes about an hour; installs the peers
into `.venv-peers/` on first use.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.contenders import CONTENDERS, Contender, Scene, Speed, engines
from bench.peers import Missing
from bench.traffic import Counts, Figures, Slo, client, figures, read_counts, send_all
from cli.children import CouldNotRun
from simulate.arrivals import WORKLOADS, Shape

SEED = 20260
SECONDS = 24.0
COUNTED_FROM = 1 / 4
"""Of the time. What comes before fills the caches, and is not counted."""

SLO = Slo(ttft_s=0.3, itl_s=0.04)
RATES = {
    ("shared-prefix", 3): 12.0,
    ("multi-turn", 3): 10.0,
    ("agentic", 3): 10.0,
    ("unrelated", 3): 8.0,
    ("shared-prefix", 8): 26.0,
    ("multi-turn", 8): 22.0,
    ("agentic", 8): 22.0,
    ("unrelated", 8): 16.0,
}
"""Chats a second: as many as engines, router and client on two processors can follow."""

STRETCH = "engines and arrivals so many times slower; times are shown as if they were not"


@dataclass(frozen=True, slots=True)
class Result:
    """What one contender reached in one cell; `figures` is `None` where it did not run."""

    workload: str
    engines: int
    contender: str
    seed: int
    figures: Figures | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        found = self.figures.to_json() if self.figures else None
        return {
            "workload": self.workload,
            "engines": self.engines,
            "contender": self.contender,
            "seed": self.seed,
            "figures": found,
            "why": self.why,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contenders with one of these")
    parser.add_argument("--workload", nargs="+", choices=sorted(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--engines", nargs="+", type=int, choices=(3, 8), default=[3, 8])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of traffic in each run")
    parser.add_argument("--stretch", type=float, default=1.0, metavar="K", help=STRETCH)
    parser.add_argument("--seeds", nargs="+", type=int, default=[SEED])
    parser.add_argument("--keep-logs", type=Path, metavar="DIR", help="of all that is started")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    results: list[Result] = []
    for count in options.engines:
        for workload in options.workload:
            cell = list(run_cell(workload, count, options))
            show(workload, count, cell)
            results += cell
            if options.json:
                options.json.write_text(json.dumps(report(results, options), indent=1) + "\n")
    return 0


def run_cell(workload: str, count: int, options: argparse.Namespace) -> Iterator[Result]:
    """Run every contender on one workload, for each seed in turn."""
    for seed in options.seeds:
        rate = RATES[workload, count]
        shape = Shape(count, rate, options.seconds, seed=seed)
        for name, contender in CONTENDERS.items():
            if options.only and not any(word in name for word in options.only):
                continue
            with tempfile.TemporaryDirectory(prefix="lineside-bench-") as folder:
                logs = Path(folder)
                if options.keep_logs:
                    place = f"{workload}-{count}-{name}-{seed}".replace(" ", "-")
                    logs = options.keep_logs / place
                    logs.mkdir(parents=True, exist_ok=True)
                try:
                    found = uvloop.run(run(contender, workload, shape, options.stretch, logs))
                    yield Result(workload, count, name, seed, found)
                except (Missing, CouldNotRun) as why:
                    yield Result(workload, count, name, seed, None, str(why))


async def run(
    contender: Contender, workload: str, shape: Shape, stretch: float, logs: Path
) -> Figures:
    """Run one contender before fresh engines. Raises `Missing` or `CouldNotRun`."""
    arrivals = [
        replace(arrival, at_s=arrival.at_s * stretch) for arrival in WORKLOADS[workload](shape)
    ]
    counted_from_s = shape.seconds * COUNTED_FROM
    usual = Speed()
    speed = replace(
        usual,
        prefill_s_per_token=usual.prefill_s_per_token * stretch,
        base_step_s=usual.base_step_s * stretch,
    )
    async with client() as session, engines(shape.engines, speed, logs) as started:
        scene = Scene(started, session, logs)
        before: list[Counts] = []
        began = 0.0

        async def begin_counting() -> None:
            nonlocal began
            began = time.process_time()
            psutil.cpu_percent()
            before.extend(await read_counts(session, scene.urls))

        async with contender(scene) as target:
            samples = await send_all(
                session, arrivals, target, counted_from_s * stretch, begin_counting
            )
            cpu_s = time.process_time() - began
            busy = psutil.cpu_percent() / 100
            after = await read_counts(session, scene.urls)
    counts = [now - then for now, then in zip(after, before, strict=True)]
    seconds = shape.seconds - counted_from_s
    shown = [sample.faster(stretch) for sample in samples]
    return figures(shown, counts, SLO, seconds, cpu_s / stretch, busy)


def show(workload: str, count: int, results: Sequence[Result]) -> None:
    """Print one cell's table: means over the seeds."""
    print(f"\n{workload}, {count} engines, {RATES[workload, count]:g} chats/s")
    print(
        f"{'':26} {'TTFT mean':>9} {'median':>7} {'p95':>7} {'ITL':>5} {'good/s':>7} "
        f"{'hits':>5} {'busiest':>7} {'failed':>6} {'client':>6} {'machine':>7}"
    )
    for name in dict.fromkeys(result.contender for result in results):
        mine = [result for result in results if result.contender == name]
        for why in {result.why for result in mine if result.figures is None}:
            print(f"{name:26} not run: {why}")
        runs = [result.figures.to_json() for result in mine if result.figures]
        if not runs:
            continue
        mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:26} {mean['mean_ttft_ms']:9.0f} {mean['median_ttft_ms']:7.0f} "
            f"{mean['p95_ttft_ms']:7.0f} {mean['mean_itl_ms']:5.1f} {mean['goodput_per_s']:7.2f} "
            f"{mean['hit_rate']:5.2f} {mean['busiest']:7.2f} {mean['failed']:6.1f} "
            f"{mean['client_cpu']:6.2f} {mean['machine_busy']:7.2f}"
        )
    sys.stdout.flush()


def report(results: Sequence[Result], options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, and what they were made with."""
    return {
        "bench": "routing",
        "seconds": options.seconds,
        "stretch": options.stretch,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "rates_per_s": {f"{name}, {count}": rate for (name, count), rate in RATES.items()},
        "rows": [result.to_json() for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
