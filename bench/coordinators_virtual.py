"""What several coordinators lose to one that sees everything, in virtual time.

    python -m bench.coordinators_virtual [--engines N ...] [--trace TRACE --load F] [--json FILE]

Each request comes to one of them by chance; what they have in flight they hear of each other 50 to
100 ms later. Without a trace: prompts of 4,000 to 20,000 tokens that share nothing. No sockets, no
processor time; `docs/benchmarks.md` says what is simulated.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.replay import capacity_of
from cli.replay_input import read
from cli.virtual_coordinators import Coordinators
from cli.virtual_router import Parts
from coordinator.leaning import Alone, Fellows, Leaning
from simulate.arrivals import Shape, traced, unrelated
from simulate.play import play
from simulate.traces import TraceRequest, overlaid, scaled, spread_ticks
from simulate.virtual import VirtualEngine

LONG = 4000, 20_000
RATE = 0.8
"""Long prompts a second of each engine: two thirds of what it can compute."""

REQUESTS = 500
FIRST_S = 1200.0
"""What of a trace is replayed over few engines; over many four quarters are laid over each other,
as in `bench.replay`."""

MANY = 32


def not_leaning(fellows: Fellows) -> Leaning:
    """Return what leans to nothing, whoever else is there."""
    return Leaning(Alone())


WAYS: dict[str, Callable[[int, int, random.Random], Coordinators]] = {
    "one": lambda count, engines, rng: Coordinators(1, engines, rng),
    "several": Coordinators,
    "not leaning": lambda count, engines, rng: Coordinators(
        count, engines, rng, Parts(leaning=not_leaning)
    ),
    "deaf": lambda count, engines, rng: Coordinators(count, engines, rng, tells=False),
}
"""One that sees everything; several as they are; without their shares; without a word of each
other, and so without shares, too."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one way reached, over all seeds."""

    engines: int
    way: str
    mean_ttft_ms: float
    p95_ttft_ms: float
    good: float
    hit_rate: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="+", type=int, default=[3, 4, 8, 16, 32, 64])
    parser.add_argument("--coordinators", type=int, default=3)
    parser.add_argument("--trace", metavar="TRACE", help="instead of prompts that share nothing")
    parser.add_argument("--load", type=float, default=0.7, help="of a trace: share of capacity")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    rows: list[Row] = []
    for engines in options.engines:
        made = [requests(options, engines, seed) for seed in range(options.seeds)]
        print(f"\n{engines} engines, {options.coordinators} coordinators, {len(made[0])} requests")
        print(f"{'':12} TTFT mean     p95  good  hits")
        for way in options.way:
            began = time.monotonic()
            row = run(way, options.coordinators, engines, made)
            rows.append(row)
            print(
                f"{way:12} {row.mean_ttft_ms:9.0f} {row.p95_ttft_ms:7.0f} {row.good:5.3f}"
                f" {row.hit_rate:5.3f}   in {time.monotonic() - began:.0f} s"
            )
            sys.stdout.flush()
    if options.json:
        said = {"bench": "coordinators_virtual", "python": platform.python_version()}
        options.json.write_text(json.dumps({**said, "rows": list(map(asdict, rows))}) + "\n")
    return 0


def requests(options: argparse.Namespace, engines: int, seed: int) -> list[TraceRequest]:
    """Return what arrives."""
    if options.trace is None:
        rate = RATE * engines
        shape = Shape(engines, rate, REQUESTS / rate, answer_tokens=100, seed=seed)
        return traced(unrelated(shape, *LONG))
    recorded = read(options.trace).requests
    if engines < MANY:
        recorded = [each for each in recorded if each.at_s < FIRST_S]
    else:
        recorded = overlaid(recorded, 4)
    recorded = spread_ticks(recorded, random.Random(seed))
    rate = len(recorded) / recorded[-1].at_s
    return scaled(recorded, options.load * capacity_of(recorded, engines) / rate)


def run(way: str, count: int, engines: int, made: Sequence[list[TraceRequest]]) -> Row:
    """Play what arrives once for each seed."""
    figures = [
        play(
            arriving,
            [VirtualEngine() for _ in range(engines)],
            WAYS[way](count, engines, random.Random(seed)),
        ).figures()
        for seed, arriving in enumerate(made)
    ]
    return Row(
        engines,
        way,
        1e3 * statistics.fmean(each.mean_s or 0.0 for each in figures),
        1e3 * statistics.fmean(each.p95_s or 0.0 for each in figures),
        statistics.fmean(each.good or 0.0 for each in figures),
        statistics.fmean(each.hit_rate or 0.0 for each in figures),
    )


if __name__ == "__main__":
    sys.exit(main())
