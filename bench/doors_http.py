"""What the HTTP gateway costs a request, beside other routers, a bare proxy and going direct.

    python -m bench.doors_http [--only WORD ...] [--seconds S] [--json FILE]

All contenders run at once before the same engines, which compute nothing, and are asked in turns,
so that all see the same machine. KV events are those of simulated engines, which hold the first
half of every prompt. Ends by itself; `bench/README.md` says what each column means.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import psutil
import tokenizers
import uvloop

from bench import peers
from bench.contenders import BLOCK, CONTENDERS, FOLDER, Contender, Scene, Speed, engines
from bench.peers import Missing
from bench.traffic import MODEL, Target, chat, client, encoded

ENGINES = 4
ROUNDS = 3
CONNECTIONS = 32
SIZES = (500, 8000)
"""Tokens of a prompt."""

PREFIXES = 16
"""Of each size, known to one engine each."""

BODIES = {500: 6000, 8000: 1500}
"""Different prompts; those who are asked most come round to them again."""

WRITES = 60
"""Of a stream, 8 ms apart."""

PATH = "/v1/chat/completions"
HERE = Path(__file__).parent
LIMIT_S = 20.0
SETTLE_S = 2.0
"""For events to arrive everywhere."""


# --- contenders -----------------------------------------------------------------------------------


@asynccontextmanager
async def started(*command: str) -> AsyncIterator[list[str]]:
    """Run a program that prints where it listens; give its base URLs."""
    quiet = {**os.environ, "DYN_LOG": "error"}  # a line for each request is not what it costs
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=quiet
    )
    try:
        assert child.stdout is not None
        said = json.loads(await asyncio.wait_for(child.stdout.readline(), LIMIT_S))
        yield [f"http://{each}" for each in said["listening"]["http"].split(",")]
    finally:
        child.terminate()
        await child.wait()


@asynccontextmanager
async def direct(scene: Scene) -> AsyncIterator[Target]:
    """Ask an engine itself."""
    yield lambda: scene.urls[0]


@asynccontextmanager
async def bare(scene: Scene) -> AsyncIterator[Target]:
    """Run the least that aiohttp can do, before one engine."""
    async with started(sys.executable, str(HERE / "streaming.py"), "--serve", scene.urls[0]) as at:
        yield lambda: at[0]


@asynccontextmanager
async def dynamo_selector(scene: Scene) -> AsyncIterator[Target]:
    """Run a thin aiohttp proxy with Dynamo's selector."""
    peers.install(peers.DYNAMO_SELECTOR)
    python = str(peers.DYNAMO_SELECTOR.bin / "python")
    told = [f"{engine.url}={engine.events}" for engine in scene.engines]
    arguments = [MODEL, str(FOLDER / "tokenizer.json"), str(BLOCK), *told]
    async with started(python, str(HERE / "dynamo_selector.py"), *arguments) as at:
        yield lambda: at[0]


def routers() -> dict[str, Contender]:
    """Return who is compared, by name."""
    names = ("lineside", "vllm-router cache_aware", "vllm-router kv_aware")
    return {
        "direct": direct,
        "bare aiohttp": bare,
        **{name: CONTENDERS[name] for name in (*names, "sglang-router cache_aware")},
        "aiohttp + dynamo's selector": dynamo_selector,
    }


@dataclass
class Runner:
    """A contender that runs, and what was seen of it."""

    name: str
    host: str
    port: int
    processes: list[psutil.Process]
    alone_ms: dict[int, list[float]] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    cpu_us: dict[int, list[float]] = field(default_factory=dict)
    chunk_us: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Return the processor time that it has taken so far."""
        found = [each.cpu_times() for each in self.processes]
        return sum(each.user + each.system for each in found)


def own_processes(before: set[int]) -> list[psutil.Process]:
    """Return the processes that were started since, without our agent: it serves no requests."""
    found = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    return [each for each in found if "agent.main" not in each.cmdline()]


async def run_all(scene: Scene, names: Sequence[str], stack: AsyncExitStack) -> list[Runner]:
    """Start them all; say who cannot be had."""
    runners = []
    for name, contender in routers().items():
        if name != "direct" and names and not any(word in name for word in names):
            continue
        before = {each.pid for each in psutil.Process().children(recursive=True)}
        try:
            target = await stack.enter_async_context(contender(scene))
        except Missing as why:
            print(f"{name}: {why}", file=sys.stderr)
            continue
        host, _, port = target().removeprefix("http://").rpartition(":")
        runners.append(Runner(name, host, int(port), own_processes(before)))
    return runners


# --- what is asked --------------------------------------------------------------------------------


class Prompts:
    """Chats: a first half that one engine knows, and a second that nobody has seen."""

    def __init__(self, tokens: int) -> None:
        vocabulary = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")).get_vocab()
        self._words = [word[1:] for word in vocabulary if re.fullmatch(r"Ġ[a-z]{2,}", word)]
        self._rng = Random(tokens)
        self._half = tokens // 2
        self.prefixes = [self._text(self._half) for _ in range(PREFIXES)]
        self._bodies = [self._body(number) for number in range(BODIES[tokens])]
        self._next = 0

    def take(self) -> bytes:
        """Return another body."""
        self._next = (self._next + 1) % len(self._bodies)
        return self._bodies[self._next]

    def _text(self, tokens: int) -> str:
        return " ".join(self._rng.choices(self._words, k=tokens))

    def _body(self, number: int) -> bytes:
        system = {"role": "system", "content": self.prefixes[number % PREFIXES]}
        asked = {"role": "user", "content": f"{number} {self._text(self._half)}"}
        body = {"model": MODEL, "messages": [system, asked], "max_tokens": 16}
        return json.dumps(body).encode()


class Asker:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, body: bytes) -> None:
        """Ask, and read the answer to its end. Raises `RuntimeError` for anything but a 200."""
        head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        said = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not said.startswith(b"http/1.1 200"):
            rest = await self._reader.read(500)
            raise RuntimeError(f"{said.splitlines()[0]!r}: {rest!r}")
        if found := re.search(rb"content-length: *(\d+)", said):
            await self._reader.readexactly(int(found[1]))
        else:
            await self._reader.readuntil(b"0\r\n\r\n")

    async def events(self, writes: int) -> list[float]:
        """Ask for a stream; return when each part came."""
        words = [{"role": "user", "content": f"stream {writes}"}]
        body = json.dumps(
            {"model": MODEL, "messages": words, "max_tokens": writes, "stream": True}
        ).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        got, times = bytearray(), []
        async with asyncio.timeout(LIMIT_S):
            while not got.endswith(b"\r\n0\r\n\r\n"):
                part = await self._reader.read(2**18)
                if not part:
                    raise RuntimeError(f"broke off: {bytes(got[-200:])!r}")
                times.append(time.perf_counter())
                got += part
        if got.count(b"data: {") != writes + 1:
            raise RuntimeError(f"{got.count(b'data: {')} events of {writes + 1}")
        return times


@asynccontextmanager
async def asker(runner: Runner) -> AsyncIterator[Asker]:
    reader, writer = await asyncio.open_connection(runner.host, runner.port, limit=2**22)
    try:
        yield Asker(reader, writer)
    finally:
        writer.close()


async def alone(runner: Runner, prompts: Prompts, seconds: float) -> list[float]:
    """Return the milliseconds of each request on one connection."""
    took = []
    async with asker(runner) as one:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await one.ask(prompts.take())
            took.append((time.perf_counter() - began) * 1e3)
    return took


async def together(runner: Runner, prompts: Prompts, seconds: float) -> tuple[float, float]:
    """Return requests a second and the CPU of one, in microseconds, on many connections."""
    count = 0

    async def keep_asking(one: Asker, end: float) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await one.ask(prompts.take())
            count += 1

    async with AsyncExitStack() as stack:
        askers = [await stack.enter_async_context(asker(runner)) for _ in range(CONNECTIONS)]
        spent, began = runner.cpu_s(), time.perf_counter()
        await asyncio.gather(*(keep_asking(one, began + seconds) for one in askers))
        wall, spent = time.perf_counter() - began, runner.cpu_s() - spent
    return count / wall, spent / count * 1e6


async def streams(runner: Runner) -> tuple[float, float]:
    """Return the CPU of a chunk, in microseconds, and the longest gap of a stream alone, in ms."""
    async with AsyncExitStack() as stack:
        askers = [await stack.enter_async_context(asker(runner)) for _ in range(CONNECTIONS)]
        spent = runner.cpu_s()
        await asyncio.gather(*(one.events(WRITES) for one in askers))
        spent = runner.cpu_s() - spent
    async with asker(runner) as one:
        times = await one.events(WRITES // 2)
    gap = max(late - early for early, late in pairwise(times))
    return spent / (CONNECTIONS * WRITES) * 1e6, gap * 1e3


async def warm(scene: Scene, simulated: Sequence[str], prompts: Sequence[Prompts]) -> None:
    """Let simulated engines compute what is to be known, and wait until it is."""
    for each in prompts:
        for number, prefix in enumerate(each.prefixes):
            turns = [{"role": "system", "content": prefix}, {"role": "user", "content": "Hm?"}]
            body = encoded({"messages": turns, "max_tokens": 1})
            sample = await chat(scene.session, simulated[number % ENGINES], body, 1)
            if sample.error:
                raise RuntimeError(sample.error)
    await asyncio.sleep(SETTLE_S)


async def measure(runners: Sequence[Runner], prompts: dict[int, Prompts], seconds: float) -> None:
    """Let all take turns."""
    slice_s = seconds / (1 + 2 * ROUNDS * len(SIZES)) / len(runners)
    for runner in runners:
        await together(runner, prompts[SIZES[0]], slice_s / 2)
        await alone(runner, prompts[SIZES[1]], slice_s / 2)
    for _ in range(ROUNDS):
        for size, each in prompts.items():
            for runner in runners:
                took = await alone(runner, each, slice_s)
                runner.alone_ms.setdefault(size, []).extend(took)
            for runner in runners:
                rate, cpu_us = await together(runner, each, slice_s)
                runner.rates.setdefault(size, []).append(rate)
                runner.cpu_us.setdefault(size, []).append(cpu_us)
        for runner in runners:
            try:
                chunk_us, gap_ms = await streams(runner)
            except RuntimeError as error:
                raise RuntimeError(f"{runner.name}: {error}") from error
            runner.chunk_us.append(chunk_us)
            runner.gaps_ms.append(gap_ms)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One contender."""

    name: str
    added_ms: dict[int, float]
    """To going direct, at the median, on one connection."""
    rate: dict[int, float]
    """To going direct."""
    cpu_us: dict[int, float]
    chunk_us: float
    gap_ms: float


def rows(runners: Sequence[Runner]) -> Iterator[Row]:
    base = runners[0]
    own = {size: statistics.median(took) for size, took in base.alone_ms.items()}
    for each in runners:
        added = {size: statistics.median(each.alone_ms[size]) - own[size] for size in SIZES}
        rate = {size: max(each.rates[size]) / max(base.rates[size]) for size in SIZES}
        cpu = {size: min(each.cpu_us[size]) for size in SIZES}
        yield Row(
            each.name,
            added,
            rate,
            cpu,
            statistics.mean(each.chunk_us),
            statistics.median(each.gaps_ms),
        )


def show(found: Sequence[Row], base: Runner) -> None:
    small, large = SIZES
    own = {size: statistics.median(took) for size, took in base.alone_ms.items()}
    print(
        f"direct: {own[small]:.3f} and {own[large]:.3f} ms,"
        f" {max(base.rates[small]):.0f} and {max(base.rates[large]):.0f} a second"
    )
    heads = ("added ms, 500", "8k", "a second, 500", "8k", "CPU us, 500", "8k", "a chunk", "gap ms")
    print(f"{'':28}" + "".join(f"{head:>14}" for head in heads))
    for row in found:
        figures = [row.added_ms[small], row.added_ms[large], row.rate[small], row.rate[large]]
        shown = "".join(f"{figure:14.3f}" for figure in figures)
        costs = [row.cpu_us[small], row.cpu_us[large], row.chunk_us, row.gap_ms]
        print(f"{row.name:28}{shown}" + "".join(f"{cost:14.1f}" for cost in costs))


async def compare(names: Sequence[str], seconds: float, logs: Path) -> list[Row]:
    """Run everything, and measure."""
    prompts = {size: Prompts(size) for size in SIZES}
    speed = Speed(blocks=20_000, prefill_s_per_token=1e-6, base_step_s=0.001)
    stub = [sys.executable, str(HERE / "stub_engine.py"), MODEL, str(SIZES[1])]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(client())
        found = await stack.enter_async_context(engines(ENGINES, speed, logs))
        behind = [each.url.removeprefix("http://") for each in found]
        stubs = await stack.enter_async_context(started(*stub, *behind))
        mixed = [
            type(each)(url, each.events, each.replay)
            for url, each in zip(stubs, found, strict=True)
        ]
        scene = Scene(mixed, session, logs)
        runners = await run_all(scene, names, stack)
        await warm(scene, [each.url for each in found], list(prompts.values()))
        await measure(runners, prompts, seconds)
        made = list(rows(runners))
        show(made, runners[0])
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD", help="words of names")
    parser.add_argument("--seconds", type=float, default=30.0, help="for all rounds, streams apart")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lineside-bench-") as logs:
        made = uvloop.run(compare(arguments.only, arguments.seconds, Path(logs)))
    if arguments.json:
        told: Any = [asdict(row) for row in made]
        arguments.json.write_text(json.dumps(told, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
