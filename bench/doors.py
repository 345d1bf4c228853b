"""Routing queries over gRPC: how many a second one core answers, beside an empty unary call.

    python bench/doors.py [--seconds S] [--json FILE]

Simulated engines, a coordinator and a server that answers nothing are children of this process, in
its process group; the two servers have one core each time, the client another. Rounds alternate, so
that both see the same machine. Ends by itself. `bench/README.md` says what each row means.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import grpc
import psutil
import tokenizers
import uvloop

from lineside.v1 import router_pb2 as pb
from lineside.v1 import router_pb2_grpc as rpc

ENGINES = 4
TOKENS = 2048
CALLERS = 16
"""Calls that are open at a time."""

ROUNDS = 3
BUDGET = 1500
LIMIT_S = 20.0
SEED = 7

FOLDER = Path(__file__).parent.parent / "simulate" / "model"
MODEL = "tiny"
PATH = "/v1/chat/completions"
ECHO, SIZED = "/bench.Echo/Call", "/bench.Echo/Sized"

Call = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Seen:
    """What was seen of one kind of call, over all rounds."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Calls a second in the best round."""
        return max(self.rates)

    @property
    def cost_us(self) -> float:
        """CPU of the server for a call, all its threads, in the best round."""
        return min(self.cpu_us)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    a_second: float
    cpu_us: float
    p50_ms: float
    ratio: float
    """CPU, to the empty call's."""
    budget: str = ""


# --- processes ------------------------------------------------------------------------------------


async def serve_echo() -> None:
    """Answer an empty unary call with nothing, and others with as much as they ask for."""
    answers: dict[int, bytes] = {}

    async def nothing(request: bytes, context: Any) -> bytes:
        return b""

    async def sized(request: bytes, context: Any) -> bytes:
        size = int.from_bytes(request[:4], "little")
        return answers.setdefault(size, bytes(size))

    server = grpc.aio.server()
    unary: Any = grpc.unary_unary_rpc_method_handler
    handlers = {"Call": unary(nothing), "Sized": unary(sized)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"listening": {"route": f"127.0.0.1:{port}"}}), flush=True)
    await asyncio.Event().wait()


@contextmanager
def process(*command: str, stdin: bytes = b"") -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Run a child of this process group; give it and where it listens."""
    child = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(stdin)
        child.stdin.close()
        line = child.stdout.readline()
        yield psutil.Process(child.pid), json.loads(line)["listening"]
    finally:
        child.terminate()
        child.wait(LIMIT_S)


def coordinator(engines: list[str]) -> bytes:
    """Return the configuration of a coordinator before these engines."""
    listen = dict.fromkeys(("http", "grpc", "admin", "route"), "127.0.0.1:0")
    config = {
        "transport": "plaintext",
        "engines": [{"url": f"http://{each}", "tokenizer": str(FOLDER)} for each in engines],
        "log_level": "error",
        "shed_wait_s": 86_400,  # the engines get nothing of all this
        "gateways": {"anonymous": True, "transport": "plaintext", "leave_s": 0, "report_s": 1},
    }
    return json.dumps(config | listen).encode()


# --- calls ----------------------------------------------------------------------------------------


def chats(model: str, tokens: int) -> Iterator[bytes]:
    """Yield bodies of chats of about so many tokens; no two begin alike."""
    tokenizer, rng = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json")), Random(SEED)
    vocabulary = [word for word in tokenizer.get_vocab() if re.fullmatch(r"Ġ[a-z]{2,}", word)]
    for number in count():
        text = f"{number:06d} " + " ".join(word[1:] for word in rng.choices(vocabulary, k=tokens))
        message = {"role": "user", "content": text}
        yield json.dumps({"model": model, "max_tokens": 64, "messages": [message]}).encode()


async def measured(server: psutil.Process, call: Call, seconds: float, seen: Seen) -> None:
    """Keep `CALLERS` calls open for a while."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < end:
            await call()
            took.append(time.perf_counter() - began)

    before, began = server.cpu_times(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(caller())
    wall, after = time.perf_counter() - began, server.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    seen.rates.append(len(took) / wall)
    seen.cpu_us.append(cpu / len(took) * 1e6)
    seen.wall_us.append(statistics.median(took) * 1e6)


async def compare(seconds: float, tokens: int) -> list[Row]:
    """Run everything and measure."""
    ours, other = pinned(0), pinned(1)
    os.sched_setaffinity(0, other)
    with ExitStack() as stack:
        engines = [
            stack.enter_context(
                process(
                    "-m", "simulate.main", "--port", "0", "--model-name", MODEL, "--no-kv-events"
                )
            )[1]["http"]
            for _ in range(ENGINES)
        ]
        echo = stack.enter_context(process(__file__, "--serve-echo"))
        command = ("-m", "coordinator.main", "--config", "-")
        router = stack.enter_context(process(*command, stdin=coordinator(engines)))
        for server, _ in (echo, router):
            for thread in server.threads():
                os.sched_setaffinity(thread.id, ours)
            server.cpu_affinity(sorted(ours))
        await until_exact(router[1], tokens)
        return await rounds(echo, router, seconds, tokens)


def pinned(place: int) -> set[int]:
    """Return a core of this machine, by place; the last one where there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[min(place, len(cores) - 1)]}


async def until_exact(where: dict[str, str], tokens: int) -> None:
    """Wait until the coordinator knows prompts' tokens, or the figures would mean nothing."""
    body = next(chats(MODEL, tokens))
    asked = {"path": PATH, "headers": {}, "body": json.loads(body)}
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        while True:
            async with session.post(f"http://{where['admin']}/debug/route", json=asked) as answer:
                said = await answer.json()
            if said.get("tokens") == "exact" and "decision" in said:
                print(f"prompts have {said['prompt_tokens']} tokens, {len(body)} bytes", flush=True)
                return
            await asyncio.sleep(0.1)


async def rounds(
    echo: tuple[psutil.Process, dict[str, str]],
    router: tuple[psutil.Process, dict[str, str]],
    seconds: float,
    tokens: int,
) -> list[Row]:
    """Take turns."""
    bodies, slice_s = chats(MODEL, tokens), seconds / ROUNDS / len(NAMES)
    ready = [next(bodies) for _ in range(int(4000 * slice_s))]
    async with (
        grpc.aio.insecure_channel(echo[1]["route"]) as to_echo,
        grpc.aio.insecure_channel(router[1]["route"]) as to_router,
    ):
        seen = {kind: Seen() for kind in NAMES}
        empty, sized, route, both = await calls(to_echo, to_router, ready)
        for _ in range(ROUNDS):
            await measured(echo[0], empty, slice_s, seen["empty"])
            await measured(echo[0], sized, slice_s, seen["sized"])
            await measured(router[0], route, slice_s, seen["route"])
            await measured(router[0], both, slice_s, seen["both"])
    return [row(*NAMES[kind], each, seen["empty"]) for kind, each in seen.items()]


NAMES = {
    "empty": ("an empty call", ""),
    "sized": ("nothing done, Route's sizes", ""),
    "route": ("Route", f"at least {BUDGET}"),
    "both": ("Route, and Report of its end", ""),
}
"""Each kind of call in a row of the table, and its budget."""


async def calls(
    to_echo: grpc.aio.Channel, to_router: grpc.aio.Channel, ready: list[bytes]
) -> tuple[Call, Call, Call, Call]:
    """Return a call of each kind."""
    nothing: Any = to_echo.unary_unary(ECHO)
    full: Any = to_echo.unary_unary(SIZED)
    stub: Any = rpc.RouterStub(to_router)  # type: ignore[no-untyped-call]
    order = count()
    asked = pb.RouteRequest(path=PATH, body=ready[0])
    size = (await stub.Route(asked)).ByteSize()
    filled = size.to_bytes(4, "little") + bytes(asked.ByteSize() - 4)

    async def empty() -> None:
        await nothing(b"")

    async def sized() -> None:
        await full(filled)

    async def route() -> str:
        body = ready[next(order) % len(ready)]
        answer = await stub.Route(pb.RouteRequest(path=PATH, body=body))
        if answer.WhichOneof("outcome") != "routed":
            raise SystemExit(f"refused: {answer.refused.reason}")
        return str(answer.decision_id)

    async def both() -> None:
        finished = pb.ReportRequest.FINISHED
        await stub.Report(pb.ReportRequest(decision_id=await route(), event=finished))

    return empty, sized, route, both


def row(what: str, budget: str, seen: Seen, empty: Seen) -> Row:
    """Return a line of the table."""
    ratio = seen.cost_us / empty.cost_us
    return Row(what, seen.rate, seen.cost_us, min(seen.wall_us) / 1000, ratio, budget)


def show(rows: list[Row]) -> None:
    print(f"{'on one core':30} {'a second':>9} {'CPU us':>8} {'p50 ms':>8} {'ratio':>6}  budget")
    for each in rows:
        print(
            f"{each.what:30} {each.a_second:9.0f} {each.cpu_us:8.0f} {each.p50_ms:8.2f}"
            f" {each.ratio:6.2f}  {each.budget}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=27.0, help="for all rounds together")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a prompt")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--serve-echo", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_echo:
        uvloop.run(serve_echo())
        return
    rows = uvloop.run(compare(arguments.seconds, arguments.tokens))
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
