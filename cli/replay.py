"""`lineside replay`: recorded traffic in virtual time over simulated engines, by many strategies.

The product runs as it is, but for its sockets; engines are a model of vLLM's scheduler. What each
strategy knows and what is simulated: docs/benchmarks.md.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.children import CouldNotRun
from cli.commands import Subcommands
from cli.parsing import Parser
from cli.replay_input import Traffic, read
from cli.replay_plot import Line, svg
from cli.resources import given, tell
from cli.shown import Fitting, console, print_json, table, text
from cli.strategies import ALL, STRATEGIES, WITHOUT, Named, lineside
from cli.virtual_router import ManyModels, Paired, VirtualRouter
from coordinator.rules import Resources
from simulate.play import Figures, Played, Strategy, play
from simulate.rivals import Formula
from simulate.traces import TraceRequest, overlaid, scaled, spread_ticks
from simulate.virtual import VirtualEngine

SHOWN = ("trace", "engines", "load", "policy", "model", "plot", "json")
"""What `--help` shows; `--help-all` has all."""

DESCRIPTION = """\
Replay a trace in virtual time over simulated engines, once for each strategy:
the product, other routers' rules, oracles. docs/benchmarks.md says what is
simulated. TRACE has one request a line: `timestamp` (ms), `input_length`,
`output_length`, `hash_ids` (one for each 512 tokens), or is what
`lineside get decisions --json` prints. The first fifth is not counted.
Exit codes: 0 done, 1 findings in policies, 2 usage, 3 could not run."""

WARM_PREDICTIONS = 500
"""Predictions that are not judged: those of a coordinator that has only just begun to learn."""

FAR_ABOVE = 2.0
"""Requests a second for each engine when a group's capacity is measured: twice what it can do."""


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy's run."""

    played: Played
    figures: Figures
    router: VirtualRouter | None
    """Of the product."""
    took_s: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What is replayed."""

    requests: Sequence[TraceRequest]
    engines: int
    rate: float
    """Requests a second."""
    load: float | None
    """As a share of `capacity`, where that was asked for."""
    capacity: float | None
    seed: int


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command: Parser = commands.add_parser(
        "replay",
        help="recorded traffic in virtual time, by strategy",
        description=DESCRIPTION,
        usage="lineside replay [options] TRACE",
    )
    command.add_argument("trace", metavar="TRACE", help="requests, or decision records")
    command.add_argument(
        "--engines", type=_whole, default=8, metavar="N", help="simulated engines (default 8)"
    )
    speed = command.add_mutually_exclusive_group()
    speed.add_argument(
        "--load", type=_positive, metavar="F", help="share of their capacity, as 0.7"
    )
    speed.add_argument("--rate", type=_positive, metavar="R", help="requests a second")
    command.add_argument("--until", type=_positive, metavar="S", help="the trace's first S seconds")
    command.add_argument(
        "--parts", type=_whole, default=1, metavar="K", help="K parts laid over each other"
    )
    command.add_argument("--requests", type=_whole, metavar="N", help="the first N requests")
    command.add_argument(
        "--strategy", action="append", choices=[*ALL], metavar="NAME", help=_strategies()
    )
    command.add_argument(
        "--without", action="store_true", help="also the product with each term left out"
    )
    command.add_argument(
        "--policy", action="append", default=[], metavar="FILES", help="policies; at most twice"
    )
    command.add_argument("--model", default="replayed", help="the requests' model, for policies")
    command.add_argument("--seed", type=int, default=0, metavar="S", help="ties (default 0)")
    command.add_argument("--plot", metavar="FILE.svg", help="draw times to first token")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.show_only(SHOWN)
    command.set_defaults(run=_replay)


def _strategies() -> str:
    return f"of {', '.join(STRATEGIES)}; without a term: {', '.join(WITHOUT)}"


def _positive(said: str) -> float:
    try:
        value = float(said)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"`{said}` is not a number above 0")
    return value


def _whole(said: str) -> int:
    value = int(said) if said.isascii() and said.isdigit() else 0
    if not 0 < value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"`{said}` is not a whole number above 0")
    return value


def _replay(arguments: argparse.Namespace) -> int:
    if arguments.plot and Path(arguments.plot).suffix != ".svg":
        raise CouldNotRun(
            f"{arguments.plot}: plots are written as SVG only", "name a file that ends in .svg"
        )
    if len(arguments.policy) > 2:
        raise CouldNotRun("--policy is given more than twice")
    named, findings = _named(arguments)
    if findings:
        return tell(findings, arguments.json)
    traffic = read(arguments.trace)
    err = Console(stderr=True, highlight=False, markup=False)
    for note in traffic.notes:
        err.print(f"note: {note}", soft_wrap=True)
    asked = _asked(arguments, traffic, err)
    try:
        runs = _runs(asked, named, err)
    except ManyModels as error:
        help = "a trace is of one model: name it with --model, and no others in resources"
        raise CouldNotRun(f"policies that name several models: {error}", help) from None
    if arguments.plot:
        _plot(arguments.plot, asked, runs)
    if arguments.json:
        print_json(shown_json(asked, runs))
    else:
        _show(asked, runs, named)
    return 0


def _named(arguments: argparse.Namespace) -> tuple[dict[str, Named], Sequence[Any]]:
    """Return the strategies that were asked for, or what is wrong with their policies."""
    names = arguments.strategy or list(STRATEGIES)
    names += [name for name in WITHOUT if arguments.without and name not in names]
    named = {name: ALL[name] for name in names}
    for letter, files in zip("ab", arguments.policy, strict=False):
        read_ = given([files])
        if read_.findings:
            return named, read_.findings
        resources = Resources.of(read_.resources)
        made = Named(lineside(resources=resources, model=arguments.model), f"under {files}")
        named[f"policy_{letter}"] = made
    return named, ()


# --- what is replayed -----------------------------------------------------------------------------


def _asked(arguments: argparse.Namespace, traffic: Traffic, err: Console) -> Asked:
    rng, requests = random.Random(arguments.seed), traffic.requests
    if arguments.until:
        requests = [each for each in requests if each.at_s < arguments.until]
    requests = overlaid(requests, arguments.parts)
    if traffic.is_coarse:
        requests = spread_ticks(requests, rng)
    requests = requests[: arguments.requests]
    if len(requests) < 2 or requests[-1].at_s <= 0:
        raise CouldNotRun("a replay needs two requests at least, and some time between them")
    rate, capacity = _rate(requests), None
    if arguments.load:
        capacity = capacity_of(requests, arguments.engines)
        err.print(f"capacity: {capacity:.2f} requests a second")
    wanted = arguments.load * capacity if capacity else arguments.rate or rate
    return Asked(
        scaled(requests, wanted / rate),
        arguments.engines,
        wanted,
        arguments.load,
        capacity,
        arguments.seed,
    )


def _rate(requests: Sequence[TraceRequest]) -> float:
    return len(requests) / requests[-1].at_s


def capacity_of(requests: Sequence[TraceRequest], engines: int) -> float:
    """Return how many of these requests engines complete in a second when far more arrive.

    Of the middle 60 % of that run, routed by the formula with known speeds.
    """
    faster = scaled(requests, FAR_ABOVE * engines / _rate(requests))
    formula = Formula(engines, random.Random(0))
    played = play(faster, [VirtualEngine() for _ in range(engines)], formula)
    ends = sorted(job.finished for job in played.jobs if job.finished is not None)
    begin, end = 0.2 * ends[-1], 0.8 * ends[-1]
    return sum(begin <= at < end for at in ends) / (end - begin)


def _runs(asked: Asked, named: Mapping[str, Named], err: Console) -> dict[str, Run]:
    """Run the strategies one after the other, each on fresh engines."""
    runs = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, disable=not err.is_terminal) as bars:
        for name, strategy in named.items():
            bar = bars.add_task(name, total=len(asked.requests))

            def tick(done: int, bar: Any = bar) -> None:
                if done % 50 == 0 or done == len(asked.requests):
                    bars.update(bar, completed=done)

            runs[name] = run = _run(asked, strategy, tick)
            if not err.is_terminal:
                err.print(f"{name}: {len(asked.requests)} requests in {run.took_s:.1f} s")
    return runs


def _run(asked: Asked, named: Named, tick: Callable[[int], None]) -> Run:
    engines = [VirtualEngine() for _ in range(asked.engines)]
    strategy: Strategy = named.make(engines, random.Random(asked.seed))
    began = time.monotonic()
    played = play(asked.requests, engines, strategy, tick)
    router = strategy if isinstance(strategy, VirtualRouter) else None
    return Run(played, played.figures(), router, time.monotonic() - began)


# --- what is shown --------------------------------------------------------------------------------


def shown_json(asked: Asked, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Return all figures, for machines."""
    shown: dict[str, Any] = {
        "requests": len(asked.requests),
        "engines": asked.engines,
        "rate": asked.rate,
        "load": asked.load,
        "capacity": asked.capacity,
        "seed": asked.seed,
        "strategies": {name: _figures_json(run, runs) for name, run in runs.items()},
    }
    if "policy_b" in runs:
        shown["policies"] = {"sent_elsewhere": _differences(runs)}
    return shown


def _figures_json(run: Run, runs: Mapping[str, Run]) -> dict[str, Any]:
    figures, oracle = run.figures, runs.get("oracle")
    shown: dict[str, Any] = {
        "requests": figures.requests,
        "ttft_mean_ms": _ms(figures.mean_s),
        "ttft_p50_ms": _ms(figures.p50_s),
        "ttft_p95_ms": _ms(figures.p95_s),
        "good": figures.good,
        "goodput": figures.goodput,
        "hit_rate": figures.hit_rate,
        "spread": figures.spread,
    }
    if oracle is not None:
        shown["mean_to_oracle"] = _ratio(figures.mean_s, oracle.figures.mean_s)
        shown["p50_to_oracle"] = _ratio(figures.p50_s, oracle.figures.p50_s)
    if run.router is not None:
        shown["refused"], shown["elsewhere"] = run.router.refused, run.router.elsewhere
        shown["prediction"] = prediction(run.router.paired)
    return shown


def prediction(paired: Sequence[Paired]) -> dict[str, Any] | None:
    """Return how far predictions were off, once enough was seen; `None`: it was not."""
    judged = paired[WARM_PREDICTIONS:]
    if not judged:
        return None
    return {
        "requests": len(judged),
        "median_relative_error": statistics.median(
            abs(each.predicted_s - each.ttft_s) / each.ttft_s for each in judged
        ),
        "within_band": _within(judged),
    }


def _within(paired: Sequence[Paired]) -> float | None:
    """Return the share of outcomes inside their band; `None`: predictions have none."""
    if all(each.low_s == each.high_s for each in paired):
        return None
    return statistics.mean(each.low_s <= each.ttft_s <= each.high_s for each in paired)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _ratio(of: float | None, to: float | None) -> float | None:
    return of / to if of is not None and to else None


def _differences(runs: Mapping[str, Run]) -> int:
    a, b = runs["policy_a"].played.engines, runs["policy_b"].played.engines
    return sum(one != other for one, other in zip(a, b, strict=True))


def _show(asked: Asked, runs: Mapping[str, Run], named: Mapping[str, Named]) -> None:
    out = console()
    load = f", {asked.load:g} of capacity" if asked.load else ""
    out.print(f"{len(asked.requests)} requests, {asked.engines} engines, {asked.rate:.2f}/s{load}")
    wide = table(*_COLUMNS, right=",".join(_COLUMNS[1:]), whole="strategy")
    few = [each.replace("/oracle", "/\noracle") for each in _COLUMNS if each not in _IF_ROOM]
    narrow = table(*few, right=",".join(few[1:]), whole="strategy")
    told = table("strategy", "what it is", whole="strategy")
    for name, run in runs.items():
        row = dict(zip(_COLUMNS, (name, *_row(run, runs)), strict=True))
        wide.add_row(*row.values())
        narrow.add_row(*(said for column, said in row.items() if column not in _IF_ROOM))
        told.add_row(name, text(named[name].what))
    out.print(Fitting(wide, narrow), "", told, sep="\n")
    for name, run in runs.items():
        _show_router(out.print, name, run)
    if "policy_b" in runs:
        out.print(f"policy_b sent {_differences(runs)} requests elsewhere than policy_a")


_COLUMNS = (
    *("strategy", "mean", "p50", "p95", "good", "good/s", "hits", "spread"),
    *("mean/oracle", "p50/oracle"),
)

_IF_ROOM = ("good/s", "spread")


def _row(run: Run, runs: Mapping[str, Run]) -> Iterator[str]:
    """Yield what all columns but the first say."""
    figures, shown = run.figures, _figures_json(run, runs)
    yield from map(_seconds, (figures.mean_s, figures.p50_s, figures.p95_s))
    yield _decimal(figures.good, 3)
    yield _decimal(figures.goodput, 2)
    yield _decimal(figures.hit_rate, 3)
    yield _decimal(figures.spread, 2)
    yield _decimal(shown.get("mean_to_oracle"), 2)
    yield _decimal(shown.get("p50_to_oracle"), 2)


def _show_router(say: Callable[[str], None], name: str, run: Run) -> None:
    if run.router is None:
        return
    if found := prediction(run.router.paired):
        error, within = found["median_relative_error"], found["within_band"]
        band = "" if within is None else f", {within:.0%} in the 80 % band"
        say(f"{name}: predicted TTFT is off by {error:.1%} (median){band}")
    if run.router.refused or run.router.elsewhere:
        say(f"{name}: {run.router.refused} refused, {run.router.elsewhere} sent to providers")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _plot(name: str, asked: Asked, runs: Mapping[str, Run]) -> None:
    lines = [Line(each, list(run.played.counted())) for each, run in runs.items()]
    load = f", {asked.load:g} of capacity" if asked.load else ""
    title = f"{len(asked.requests)} requests, {asked.engines} engines{load}"
    try:
        Path(name).write_text(svg(title, lines, asked.engines))
    except OSError as error:
        why = (error.strerror or "no reason given").lower()
        raise CouldNotRun(f"{name}: cannot be written: {why}") from None
