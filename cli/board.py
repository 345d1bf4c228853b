"""What the demo shows: a live table while it runs, a summary at the end, the same as JSON."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.traffic import Sample

PLAIN_EVERY_S = 4.0
"""Where there is no terminal, one line of progress this often."""

NOTABLE = 1.5
"""A smaller gain may be chance."""

_QUEUE = re.compile(r"^vllm:num_requests_(?:waiting|running)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Board:
    """The samples of one pass, by engine."""

    title: str
    engines: Sequence[str]
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    is_over: bool = False
    """All that was sent is answered."""
    _by_engine: dict[str, list[Sample]] = field(default_factory=dict)
    _queues: dict[str, int] = field(default_factory=dict)

    def add(self, sample: Sample, engine: str) -> None:
        """Take one finished request."""
        self.samples.append(sample)
        self._by_engine.setdefault(engine, []).append(sample)

    def queue(self, engine: str, metrics: str) -> None:
        """Take an engine's /metrics: what waits and runs there."""
        self._queues[engine] = sum(int(float(value)) for value in _QUEUE.findall(metrics))

    def table(self) -> Group:
        """Return the table as it is now."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("engine")
        for name in ("queue", "from cache", "share", "median TTFT"):
            table.add_column(name, justify="right")
        for engine in self.engines:
            samples = self._by_engine.get(engine, [])
            share = len(samples) / len(self.samples) if self.samples else 0.0
            queue = self._queues.get(engine)
            table.add_row(
                engine,
                "-" if queue is None else str(queue),
                percent(cached_share(samples)),
                percent(share),
                milliseconds(ttft_p50_ms(samples)),
            )
        return Group(Text(self.line()), table)

    def line(self) -> str:
        """Return the pass in one line."""
        elapsed = time.monotonic() - self.started
        progress = f"{elapsed:.0f} of {self.seconds:.0f} s"
        if self.is_over:
            progress = f"{self.seconds:.0f} s, and the last"
        elif elapsed >= self.seconds:
            progress = f"{self.seconds:.0f} s, waiting for the last"
        failed = sum(sample.failed for sample in self.samples)
        return (
            f"{self.title}: {progress}, {len(self.samples)} answered"
            f"{f', {failed} failed' if failed else ''},"
            f" median TTFT {milliseconds(ttft_p50_ms(self.samples))}"
        )


@asynccontextmanager
async def show(board: Board, console: Console) -> AsyncIterator[None]:
    """Show a pass while it runs: a live table on a terminal, a line now and then elsewhere."""
    live = Live(get_renderable=board.table, console=console, refresh_per_second=4)
    with live if console.is_terminal else nullcontext():
        async with asyncio.TaskGroup() as tasks:
            plain = None
            if not console.is_terminal:
                plain = tasks.create_task(_plain(board, console))
            yield
            board.is_over = True
            if plain is not None:
                plain.cancel()
    if not console.is_terminal:
        console.print(board.table())


async def _plain(board: Board, console: Console) -> None:
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        console.print(board.line())


def ttft_p50_ms(samples: Sequence[Sample]) -> float | None:
    """Return the median time to first token; `None` without samples."""
    seen = [sample.ttft_s for sample in samples if sample.ttft_s is not None and not sample.failed]
    return 1000 * median(seen) if seen else None


def cached_share(samples: Sequence[Sample]) -> float | None:
    """Return the share of prompt tokens that the engines say came from their caches."""
    said = [
        (sample.cached_tokens, sample.prompt_tokens)
        for sample in samples
        if sample.cached_tokens is not None and sample.prompt_tokens
    ]
    prompt = sum(tokens for _, tokens in said)
    return sum(cached for cached, _ in said) / prompt if prompt else None


def percent(share: float | None) -> str:
    """Return a share for people."""
    return "-" if share is None else f"{100 * share:.0f} %"


def milliseconds(value: float | None) -> str:
    """Return milliseconds for people."""
    return "-" if value is None else f"{value:.0f} ms"


@dataclass(frozen=True, slots=True)
class Summary:
    """Both passes, and the decision records of the second."""

    round_robin: Sequence[Sample]
    lineside: Sequence[Sample]
    decisions: Sequence[dict[str, Any]]

    @property
    def failed(self) -> int:
        """Requests without a whole answer, in both passes."""
        return sum(sample.failed for sample in (*self.round_robin, *self.lineside))

    @property
    def prediction_error(self) -> float | None:
        """Mean distance of reported from predicted cached tokens, as a share of the prompt."""
        outcomes = [decision["outcome"] for decision in self.decisions]
        errors = [
            _distance(o) / o["prompt_tokens"]
            for o in outcomes
            if o["cached_tokens"] is not None
            and o["predicted_cached_tokens"] is not None
            and o["prompt_tokens"]
        ]
        return mean(errors) if errors else None

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "requests": len(self.round_robin) + len(self.lineside),
            "failed": self.failed,
            "ttft_p50_ms": {
                "round_robin": ttft_p50_ms(self.round_robin),
                "lineside": ttft_p50_ms(self.lineside),
            },
            "cached_token_share": {
                "round_robin": cached_share(self.round_robin),
                "lineside": cached_share(self.lineside),
            },
            "cached_token_prediction_error": self.prediction_error,
        }


def _distance(outcome: dict[str, Any]) -> int:
    """Return how far the engine's word is from the index's, and what was on its way beyond."""
    least: int = outcome["predicted_cached_tokens"]
    most = least + (outcome.get("speculative_tokens") or 0)
    reported: int = outcome["cached_tokens"]
    return max(least - reported, reported - most, 0)


def show_summary(summary: Summary, console: Console) -> None:
    """Print the summary for people."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("median TTFT", "prompt tokens from cache", "requests"):
        table.add_column(name, justify="right")
    for name, samples in (
        ("round robin", summary.round_robin),
        ("Lineside", summary.lineside),
    ):
        table.add_row(
            name,
            milliseconds(ttft_p50_ms(samples)),
            percent(cached_share(samples)),
            str(len(samples)),
        )
    console.print()
    console.print(table)
    console.print()
    for sentence in _sentences(summary):
        console.print(sentence, soft_wrap=not console.is_terminal)


def _sentences(summary: Summary) -> list[str]:
    sentences = []
    direct, routed = ttft_p50_ms(summary.round_robin), ttft_p50_ms(summary.lineside)
    before, after = cached_share(summary.round_robin), cached_share(summary.lineside)
    if direct and routed and direct / routed >= NOTABLE:
        sentences.append(f"The first token came {direct / routed:.1f} times sooner.")
    elif direct and routed:
        sentences.append(
            "No notable difference: in so short a run most prompts are new to every engine."
        )
    if before is not None and after is not None and after > before:
        sentences.append(
            f"The engines computed {percent(1 - after)} of the prompts' tokens instead of"
            f" {percent(1 - before)}: chats went where their prompts already were."
        )
    if (error := summary.prediction_error) is not None:
        sentences.append(
            "Lineside knew beforehand what the engines would find in their caches:"
            f" on average it was off by {100 * error:.1f} % of a prompt."
        )
    if summary.failed:
        sentences.append(f"{summary.failed} requests failed; that is a defect.")
    return sentences
