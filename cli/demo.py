"""`lineside demo`: the same chats over three engines, round robin and then through Lineside.

Each pass gets fresh engines, the same seeded chats and the same arrival times. Round robin goes
straight to the engines (docs/decisions/006). Times are the client's, cached tokens the engines'.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from rich.console import Console

from cli import envoy
from cli.board import Board, Summary, show, show_summary
from cli.children import Child, CouldNotRun, child
from cli.commands import Subcommands
from cli.shown import print_json
from cli.stack import Stack, running
from cli.traffic import Sample, chat
from simulate.workload import Sizes, Turn, Workload

ENGINES = 3
MODEL = "demo-model"
RATE_PER_S = 9.0
"""Chats a second: 40 to 50 % of what the three engines can do round robin."""

SIZES = Sizes(groups=16, conversations_per_group=3, turns=3, prefix_tokens=4000)
"""Sixteen long prefixes. Together the engines can hold them all; each alone a third of them."""

BLOCKS = 2000
"""KV blocks of 16 tokens per engine: six or seven of the prefixes with their conversations."""

DEFAULT_SECONDS = 16.0
READY_LIMIT_S = 20.0

_INTRODUCTION = f"""\
{ENGINES} simulated vLLM engines; {SIZES.groups} long system prompts of about \
{SIZES.prefix_tokens} tokens, {RATE_PER_S:.0f} chats a second that each begin with one of them.
First every chat goes to the next engine in turn ({{seconds:.0f}} s), then Lineside chooses.
"""

BEHIND_ENVOY = {
    "route": "127.0.0.1:0",
    "gateways": {"anonymous": True, "leave_s": 0.0},
    "envoy": {"answers": "usage"},
}
"""Settings of a coordinator that an Envoy on this machine asks."""

Send = Callable[[Turn], Awaitable[Sample]]


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "demo",
        help="three simulated engines: round robin against Lineside",
        description="Send the same chats to three simulated vLLM engines, round robin and through\n"
        "Lineside, and compare the time to first token. Ends by itself.",
    )
    command.add_argument(
        "--seconds",
        type=_seconds,
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"seconds of traffic in each of the two passes (default {DEFAULT_SECONDS:.0f})",
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="other chats (default 1)")
    command.add_argument("--json", action="store_true", help="print one JSON object at the end")
    command.add_argument(
        "--envoy", action="store_true", help="the second pass through a real Envoy"
    )
    command.add_argument(
        "--keep", action="store_true", help="leave it running afterwards, until Ctrl-C"
    )
    command.set_defaults(run=lambda arguments: asyncio.run(_demo(arguments)))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of seconds from 1 to 3600")
    return value


async def _demo(arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json, highlight=False)
    if arguments.envoy:
        envoy.binary()  # say at once that there is none
    console.print(
        _INTRODUCTION.format(seconds=arguments.seconds), soft_wrap=not console.is_terminal
    )
    with tempfile.TemporaryDirectory(prefix="lineside-demo-") as folder:
        direct = await _round_robin(arguments, console, Path(folder))
        summary = await _lineside(arguments, console, Path(folder), direct)
    return 1 if summary.failed else 0


async def _round_robin(arguments: argparse.Namespace, console: Console, logs: Path) -> list[Sample]:
    async with _engines(logs, "direct") as engines, _session() as session:
        urls = itertools.cycle([(f"http://{e.listening['http']}", e.name) for e in engines])

        async def send(turn: Turn) -> Sample:
            url, name = next(urls)
            return await chat(session, url, {**turn.body, "model": MODEL}, name)

        return await _pass("round robin", arguments, console, session, engines, send)


async def _lineside(
    arguments: argparse.Namespace, console: Console, logs: Path, direct: list[Sample]
) -> Summary:
    async with _engines(logs, "routed") as engines, _session() as session:
        specs = [
            {
                "url": f"http://{engine.listening['http']}",
                "kv": engine.listening["events"],
                "replay": engine.listening["replay"],
                "tokenizer": str(Path(sys.modules["simulate"].__path__[0]) / "model"),
            }
            for engine in engines
        ]
        settings = BEHIND_ENVOY if arguments.envoy else {}
        async with AsyncExitStack() as parts:
            stack = await parts.enter_async_context(running(specs, logs=logs, settings=settings))
            await _ready(stack, session)
            front = await parts.enter_async_context(_front(arguments.envoy, stack, engines, logs))

            async def send(turn: Turn) -> Sample:
                return await chat(session, front, {**turn.body, "model": MODEL})

            title = "Lineside behind Envoy" if arguments.envoy else "Lineside"
            routed = await _pass(title, arguments, console, session, engines, send)
            summary = Summary(direct, routed, await stack.decisions(session))
            show_summary(summary, console)
            if arguments.json:
                print_json(summary.to_json())
                sys.stdout.flush()
            if arguments.keep:
                await _keep(stack, front, console)
    return summary


@asynccontextmanager
async def _front(
    is_envoy: bool, stack: Stack, engines: Sequence[Child], folder: Path
) -> AsyncIterator[str]:
    """Give where clients ask: an Envoy that asks the coordinator, or the coordinator itself."""
    if not is_envoy:
        yield stack.http
        return
    members = [engine.listening["http"] for engine in engines]
    async with envoy.gateway(members, stack.coordinator.listening["route"], folder) as url:
        yield url


async def _ready(stack: Stack, session: aiohttp.ClientSession) -> None:
    engines = await stack.wait_fresh(session, ENGINES, READY_LIMIT_S)
    if not all(engine["fresh"] for engine in engines):
        states = ", ".join(f"{e['id']} {e['cache_state']} {e['reason']}" for e in engines)
        raise CouldNotRun(f"the engines were not ready within {READY_LIMIT_S:.0f} s: {states}")


async def _pass(
    title: str,
    arguments: argparse.Namespace,
    console: Console,
    session: aiohttp.ClientSession,
    engines: Sequence[Child],
    send: Send,
) -> list[Sample]:
    board = Board(title, [engine.name for engine in engines], arguments.seconds)
    names = {engine.listening["http"]: engine.name for engine in engines}
    chats = _Chats(arguments.seed)

    async def one(turn: Turn) -> None:
        sample = await send(turn)
        board.add(sample, names.get(sample.engine, sample.engine))
        chats.settle(turn, sample)

    async with show(board, console), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(_watch_queues(board, session, engines))
        async with asyncio.TaskGroup() as sending:
            async for turn in _arrivals(arguments, chats):
                sending.create_task(one(turn))
        watching.cancel()
    return board.samples


async def _arrivals(arguments: argparse.Namespace, chats: "_Chats") -> AsyncIterator[Turn]:
    """Yield chats at seeded random times, the same in both passes."""
    dice = random.Random(f"{arguments.seed} arrivals")
    loop = asyncio.get_running_loop()
    due = loop.time()
    end = due + arguments.seconds
    while (due := due + dice.expovariate(RATE_PER_S)) < end:
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield await chats.take()


class _Chats:
    """The workload as a stream: when a round of conversations is used up, another begins."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rounds = itertools.count()
        self._workload = self._round()
        self._of: dict[int, Workload] = {}
        self._settled = asyncio.Event()

    def _round(self) -> Workload:
        return Workload(self._seed, SIZES, next(self._rounds))

    async def take(self) -> Turn:
        """Return the next chat; wait when every conversation is being answered."""
        while True:
            if not self._workload.left:
                self._workload = self._round()
            if (turn := self._workload.next()) is not None:
                self._of[id(turn)] = self._workload
                return turn
            self._settled.clear()
            await self._settled.wait()

    def settle(self, turn: Turn, sample: Sample) -> None:
        """Give an answer, or its absence, back to the chat's conversation."""
        workload = self._of.pop(id(turn))
        if sample.failed:
            workload.failed(turn)
        else:
            workload.answered(turn, sample.answer)
        self._settled.set()


async def _watch_queues(
    board: Board, session: aiohttp.ClientSession, engines: Sequence[Child]
) -> None:
    while True:
        for engine in engines:
            async with session.get(f"http://{engine.listening['http']}/metrics") as answer:
                board.queue(engine.name, await answer.text())
        await asyncio.sleep(0.5)


async def _keep(stack: Stack, front: str, console: Console) -> None:
    console.print(
        f"\nstill running: gateway {front}/v1 (model `{MODEL}`),"
        f" debug {stack.admin}/debug/decisions; Ctrl-C ends it"
    )
    await asyncio.Event().wait()


@asynccontextmanager
async def _engines(logs: Path, run: str) -> AsyncIterator[list[Child]]:
    arguments = ["--port", "0", "--model-name", MODEL, "--blocks", str(BLOCKS)]
    arguments += ["--max-model-len", "16384"]
    async with AsyncExitStack() as stack:
        engines = []
        for number in range(1, ENGINES + 1):
            log = logs / f"{run}-engine-{number}.log"
            start = child(f"engine {number}", "simulate.main", arguments, log=log)
            engines.append(await stack.enter_async_context(start))
        yield engines


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
