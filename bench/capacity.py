"""How many requests a minute three engines serve within an objective for the first token.

    python -m bench.capacity [--only WORD ...] [--seconds S] [--json FILE]

A ladder of 1 to 32 clients, each of which asks again as soon as it is answered; fresh engines for
each rung. Capacity is the most requests a minute of any rung whose 90th percentile of the time to
first token keeps the objective. `bench/README.md` says more. Takes about a quarter of an hour.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.contenders import CONTENDERS, Scene, Speed, engines
from bench.peers import Missing
from bench.traffic import Sample, Target, chat, client, encoded, quantile
from cli.children import CouldNotRun
from simulate.clients import ANSWER_TOKENS, CLIENTS, Chats

SEED = 20260
ENGINES = 3
LADDER = (1, 2, 4, 8, 16, 32)
SECONDS = 30.0
COUNTED_FROM_S = 5.0
"""Until then clients settle."""

WARMING, WARM_S = 8, 12.0
"""Other clients that ask before, and for how long: what all share is cached then."""

SPEED = Speed(prefill_s_per_token=160e-6, base_step_s=0.032)
"""A quarter of the usual speed, so that 32 clients keep engines busy and not this machine."""

OBJECTIVE_S = 1.0
OTHERS_S = (0.5, 2.0)
"""Objectives for which factors are given beside."""

KEPT_BY = 0.9
BASE = "random"
PUBLISHED = {"shared-prefix": 7.4, "multi-turn": 3.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One number of clients before fresh engines. Times in seconds."""

    workload: str
    contender: str
    clients: int
    per_minute: float
    """Requests that were answered."""
    median_ttft_s: float
    p90_ttft_s: float
    within: float
    """Share of requests that kept the objective."""
    failed: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contenders with one of these")
    parser.add_argument("--workload", nargs="+", choices=sorted(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--ladder", nargs="+", type=int, default=LADDER, metavar="CLIENTS")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of traffic on each rung")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    words = options.only or ["lineside", BASE]
    names = [name for name in CONTENDERS if any(word in name for word in words)]
    rungs: list[Rung] = []
    for workload in options.workload:
        print(f"\n{workload}, {ENGINES} engines")
        print(f"{'':26} clients  requests/min  TTFT median    p90  within {OBJECTIVE_S:g} s")
        for clients in options.ladder:
            for name in names:
                rung = run_rung(workload, name, clients, options.seconds)
                rungs += [rung] if rung else []
        show_factors(workload, rungs, names)
        if options.json:
            options.json.write_text(json.dumps(report(rungs, options.seconds), indent=1) + "\n")
    return 0


def run_rung(workload: str, name: str, clients: int, seconds: float) -> Rung | None:
    """Run one rung and print it; `None` where the contender does not run."""
    with tempfile.TemporaryDirectory(prefix="lineside-bench-") as folder:
        try:
            samples = uvloop.run(run(workload, name, clients, seconds, Path(folder)))
        except (Missing, CouldNotRun) as why:
            print(f"{name:26} {clients:7}  not run: {why}")
            return None
    rung = rung_of(workload, name, clients, samples, seconds - COUNTED_FROM_S)
    print(
        f"{name:26} {clients:7} {rung.per_minute:13.0f} {rung.median_ttft_s:12.2f} "
        f"{rung.p90_ttft_s:6.2f} {rung.within:10.2f}",
        flush=True,
    )
    return rung


async def run(
    workload: str, name: str, clients: int, seconds: float, logs: Path
) -> list[tuple[float, Sample]]:
    """Return every chat with the time of its end. Raises `Missing` or `CouldNotRun`."""
    async with (
        client() as session,
        engines(ENGINES, SPEED, logs) as started,
        CONTENDERS[name](Scene(started, session, logs)) as target,
    ):
        await serve(session, workload, range(-WARMING, 0), target, WARM_S)
        return await serve(session, workload, range(clients), target, seconds)


async def serve(
    session: aiohttp.ClientSession, workload: str, numbers: range, target: Target, seconds: float
) -> list[tuple[float, Sample]]:
    """Let these clients ask for that long."""
    begun = time.perf_counter()
    ended: list[tuple[float, Sample]] = []
    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            chats = CLIENTS[workload](SEED, number)
            tasks.create_task(ask(session, chats, target, begun, seconds, ended))
    return ended


async def ask(
    session: aiohttp.ClientSession,
    chats: Chats,
    target: Target,
    begun: float,
    seconds: float,
    ended: list[tuple[float, Sample]],
) -> None:
    """Ask one chat after the other until the time is over."""
    for body in chats:
        sample = await chat(session, target(), encoded(body), ANSWER_TOKENS)
        at_s = time.perf_counter() - begun
        ended.append((at_s, sample))
        if at_s > seconds:
            return


def rung_of(
    workload: str,
    name: str,
    clients: int,
    ended: Sequence[tuple[float, Sample]],
    counted_s: float,
) -> Rung:
    """Return what the chats come to that ended in the counted time."""
    last_s = COUNTED_FROM_S + counted_s
    samples = [sample for at_s, sample in ended if COUNTED_FROM_S <= at_s <= last_s]
    ttfts = [sample.ttft_s for sample in samples if not sample.error]
    return Rung(
        workload=workload,
        contender=name,
        clients=clients,
        per_minute=len(ttfts) * 60 / counted_s,
        median_ttft_s=quantile(ttfts, 0.5),
        p90_ttft_s=quantile(ttfts, KEPT_BY),
        within=sum(ttft <= OBJECTIVE_S for ttft in ttfts) / max(1, len(samples)),
        failed=len(samples) - len(ttfts),
    )


def capacity(rungs: Sequence[Rung], objective_s: float) -> float:
    """Return the most requests a minute of any rung that keeps the objective; 0 for none."""
    kept = [rung.per_minute for rung in rungs if rung.per_minute and rung.p90_ttft_s <= objective_s]
    return max(kept, default=0.0)


def show_factors(workload: str, rungs: Sequence[Rung], names: Sequence[str]) -> None:
    """Print each contender's capacity, and how many times that of random choice it is."""
    of = {
        name: [rung for rung in rungs if (rung.workload, rung.contender) == (workload, name)]
        for name in names
    }
    for objective_s in (OBJECTIVE_S, *OTHERS_S):
        base = capacity(of.get(BASE, []), objective_s)
        for name in names:
            found = capacity(of[name], objective_s)
            factor = f"{found / base:.1f} x {BASE}" if base else f"{BASE} keeps it on no rung"
            print(f"{name:26} {found:5.0f} a minute at p90 <= {objective_s:g} s: {factor}")
    print(f"published: {PUBLISHED[workload]} x {BASE}")


def report(rungs: Sequence[Rung], seconds: float) -> dict[str, Any]:
    """Return all figures, and what they were made with."""
    return {
        "bench": "capacity",
        "engines": ENGINES,
        "seconds": seconds,
        "counted_from_s": COUNTED_FROM_S,
        "speed": asdict(SPEED),
        "objective_s": OBJECTIVE_S,
        "kept_by": KEPT_BY,
        "seed": SEED,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "rows": [asdict(rung) for rung in rungs],
    }


if __name__ == "__main__":
    sys.exit(main())
