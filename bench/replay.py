"""Replays of a trace over 8 and 64 engines at three loads: the tables of docs/benchmarks.md.

    python bench/replay.py TRACE [--out DIR] [--cell NAME ...]

Runs `lineside replay` once for each cell, writes its JSON and its plot into DIR, and prints tables
of all cells that are there. `docs/benchmarks.md` says what is simulated. Seeds are fixed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOADS = ("0.4", "0.7", "0.9")

ENGINES = {8: ("--until", "1200"), 64: ("--parts", "4")}
"""Engines -> what is replayed over them: the trace's first 20 minutes, and four quarters of it laid
over each other."""

WITHOUT = "0.9"
"""The load at which terms are left out in turn: near capacity they matter most."""

CELLS = {f"{engines}@{load}": (engines, load) for engines in ENGINES for load in LOADS}

Figures = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench", metavar="DIR")
    parser.add_argument("--cell", action="append", choices=CELLS, help="these only; else all")
    options = parser.parse_args()
    if not options.trace.is_file():
        parser.error(f"there is no file {options.trace}; docs/benchmarks.md says where traces are")
    options.trace = options.trace.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in options.cell or CELLS:
        run(cell, options.trace, options.out)
    found = {cell: file for cell in CELLS if (file := _file(options.out, cell, "json")).exists()}
    cells = {cell: json.loads(file.read_text()) for cell, file in found.items()}
    print("\n".join(tables(cells)))
    return 0


def _file(folder: Path, cell: str, suffix: str) -> Path:
    engines, load = CELLS[cell]
    return folder / f"replay-{engines}-{load}.{suffix}"


def run(cell: str, trace: Path, out: Path) -> None:
    """Replay one cell."""
    engines, load = CELLS[cell]
    words = ["replay", str(trace), "--engines", str(engines), "--load", load, "--json"]
    words += ["--without"] if load == WITHOUT else []
    words += [*ENGINES[engines], "--plot", str(_file(out, cell, "svg"))]
    command = [sys.executable, "-m", "cli.main", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    _file(out, cell, "json").write_text(json.dumps(json.loads(done.stdout), indent=1) + "\n")


def tables(cells: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the lines of all tables, in Markdown."""
    names = list(dict.fromkeys(name for cell in cells.values() for name in cell["strategies"]))
    yield "requests, capacity and rate per second:"
    for cell, said in cells.items():
        yield f"- {cell}: {said['requests']}, {said['capacity']:.2f}, {said['rate']:.2f}"
    for title, key, reference in (
        ("mean / oracle", "ttft_mean_ms", "oracle"),
        ("median / oracle", "ttft_p50_ms", "oracle"),
        ("p95 / oracle", "ttft_p95_ms", "oracle"),
        ("good", "good", ""),
        ("goodput, 1/s", "goodput", ""),
        ("hit rate", "hit_rate", ""),
        ("busiest / mean", "spread", ""),
    ):
        yield from table(title, cells, [(n, _row(cells, n, key, reference)) for n in names])
    product = [
        ("mean, ms", _row(cells, "lineside", "ttft_mean_ms", "")),
        ("median, ms", _row(cells, "lineside", "ttft_p50_ms", "")),
        ("p95, ms", _row(cells, "lineside", "ttft_p95_ms", "")),
        ("mean / oracle_beta1", _row(cells, "lineside", "ttft_mean_ms", "oracle_beta1")),
        ("median / oracle_beta1", _row(cells, "lineside", "ttft_p50_ms", "oracle_beta1")),
    ]
    yield from table("lineside", cells, product)
    predicting = [name for name in names if _predicts(cells, name)]
    for title, key in (
        ("median relative error", "median_relative_error"),
        ("within the 80 % band", "within_band"),
    ):
        rows = [
            (name, [_predicted(cell, name, key) for cell in cells.values()]) for name in predicting
        ]
        yield from table(title, cells, rows)


def table(
    title: str, cells: Mapping[str, Figures], rows: Sequence[tuple[str, Sequence[float | None]]]
) -> Iterator[str]:
    yield ""
    yield f"| {title} | {' | '.join(cells)} |"
    yield "| --- |" + " --- |" * len(cells)
    for name, values in rows:
        yield f"| {name} | {' | '.join(map(_shown, values))} |"


def _row(cells: Mapping[str, Figures], name: str, key: str, reference: str) -> list[float | None]:
    return [_value(cell["strategies"], name, key, reference) for cell in cells.values()]


def _value(strategies: Figures, name: str, key: str, reference: str) -> float | None:
    if name not in strategies:
        return None
    value: float = strategies[name][key]
    return value / strategies[reference][key] if reference else value


def _predicts(cells: Mapping[str, Figures], name: str) -> bool:
    return any(cell["strategies"].get(name, {}).get("prediction") for cell in cells.values())


def _predicted(cell: Figures, name: str, key: str) -> float | None:
    found = cell["strategies"].get(name, {}).get("prediction")
    return found[key] if found else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


if __name__ == "__main__":
    sys.exit(main())
