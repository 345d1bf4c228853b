"""Times to first token as a picture, over time and by engine. Pure; SVG, which needs no library."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from simulate.virtual import Job

WIDTH, HEIGHT = 960, 420
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP = 60, 50, 340, 300, 70
BUCKETS = 40
"""Points of a line over time."""

COLOURS = (
    *("#d62728", "#000000", "#7f7f7f", "#1f77b4", "#17becf", "#2ca02c"),
    *("#9467bd", "#ff7f0e", "#bcbd22", "#8c564b", "#e377c2"),
)
"""In the order of strategies; they repeat where there are more."""


@dataclass(frozen=True, slots=True)
class Line:
    """One strategy: the requests that count, and where each went."""

    name: str
    jobs: Sequence[tuple[Job, int]]


def svg(title: str, lines: Sequence[Line], engines: int) -> str:
    """Draw the mean time to first token of each strategy, on a logarithmic scale."""
    begin = min((job.arrived for line in lines for job, _ in line.jobs), default=0.0)
    end = max((job.arrived for line in lines for job, _ in line.jobs), default=1.0)
    over_time = [_over_time(line, begin, end) for line in lines]
    by_engine = [_by_engine(line, engines) for line in lines]
    values = [y for points in (*over_time, *by_engine) for _, y in points]
    scale = _Scale.of(values)
    span = f"{begin:.0f} to {end:.0f} s"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            ' font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            _text(LEFT, 20, f"Mean time to first token (s): {title}", size=14),
            *_panel(LEFT, f"over time, {span}", scale, over_time),
            *_panel(
                LEFT + PANEL_WIDTH + GAP, f"by engine, 1 to {engines}, best first", scale, by_engine
            ),
            *_legend(line.name for line in lines),
            "</svg>\n",
        ]
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Whole decades that hold all values."""

    low: int
    high: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "_Scale":
        low = math.floor(math.log10(min(values, default=0.1)))
        return cls(low, max(low + 1, math.ceil(math.log10(max(values, default=1.0)))))

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return TOP + PANEL_HEIGHT * (1 - share)


Points = Sequence[tuple[float, float]]
"""Places from 0 to 1, with values."""


def _over_time(line: Line, begin: float, end: float) -> Points:
    buckets: list[list[float]] = [[] for _ in range(BUCKETS)]
    for job, _ in line.jobs:
        share = (job.arrived - begin) / ((end - begin) or 1.0)
        buckets[min(BUCKETS - 1, int(share * BUCKETS))].append(job.ttft_s)
    return [((place + 0.5) / BUCKETS, _mean(of)) for place, of in enumerate(buckets) if of]


def _by_engine(line: Line, engines: int) -> Points:
    """Return the engines' means in order: engines are alike, and lines by number would cross."""
    by_engine: list[list[float]] = [[] for _ in range(engines)]
    for job, engine in line.jobs:
        by_engine[engine].append(job.ttft_s)
    means = sorted(_mean(of) for of in by_engine if of)
    return [((place + 0.5) / engines, mean) for place, mean in enumerate(means)]


def _mean(values: Sequence[float]) -> float:
    return max(1e-3, sum(values) / len(values))


def _panel(left: float, title: str, scale: _Scale, lines: Sequence[Points]) -> Iterator[str]:
    yield _text(left, TOP - 10, title)
    for decade in range(scale.low, scale.high + 1):
        y = scale.y(10.0**decade)
        yield f'<path d="M{left} {y:.1f}h{PANEL_WIDTH}" stroke="#ddd"/>'
        yield _text(left - 6, y + 4, f"{10.0**decade:g}", anchor="end")
    for number, points in enumerate(lines):
        at = " ".join(f"{left + x * PANEL_WIDTH:.1f},{scale.y(y):.1f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        width = 2.5 if number == 0 else 1.2
        yield f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _legend(names: Iterable[str]) -> Iterator[str]:
    left = LEFT + 2 * PANEL_WIDTH + GAP + 16
    for number, name in enumerate(names):
        y, colour = TOP + 18 * number, COLOURS[number % len(COLOURS)]
        yield f'<path d="M{left} {y}h18" stroke="{colour}" stroke-width="2.5"/>'
        yield _text(left + 24, y + 4, name)


def _text(x: float, y: float, said: str, *, size: int = 12, anchor: str = "start") -> str:
    attributes = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {attributes}>{escape(said)}</text>"
