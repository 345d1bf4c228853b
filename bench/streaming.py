"""Streaming pass-through: the gateway's CPU for each chunk beside a bare aiohttp proxy's.

    python bench/streaming.py [--seconds S] [--json FILE]

One engine that only talks, both proxies before it, all children of this process and in its process
group; rounds alternate, so that both see the same machine. Ends by itself. `bench/README.md` says
what each row means.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop
from aiohttp import web

STREAMS = 32
INTERVAL_S = 0.008
ROUNDS = 3
BUDGET = 1.5
STALL_MS = 40.0
"""What a delayed acknowledgement costs where Nagle's algorithm waits for it."""

MODEL = "talker"
PATH = "/v1/completions"
LIMIT_S = 20.0


# --- the engine and the bare proxy, as processes ----------------------------------------------


def event(at: int, finish: str | None = None) -> bytes:
    """Return an event of a vLLM stream, of its usual length."""
    choice = {"index": 0, "text": f" word{at:06d}", "logprobs": None, "finish_reason": finish}
    choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    chunk = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion"}
    chunk |= {"created": 1790000000, "model": MODEL, "choices": [choice]}  # type: ignore[dict-item]
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def talk(request: web.Request) -> web.StreamResponse:
    """Stream as many writes as the body says, of so many events each.

    All streams are written to at the same moments, as by an engine whose step brings a token to
    each: else it is chance how many of them a proxy finds ready when it wakes.
    """
    asked = await request.json()
    writes, together, pause_s = asked["max_tokens"], asked["n"], asked["top_p"]
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    loop = asyncio.get_running_loop()
    due = loop.time() // pause_s * pause_s
    for at in range(writes):
        await response.write(b"".join(event(at * together + each) for each in range(together)))
        due += pause_s
        await asyncio.sleep(max(0.0, due - loop.time()))
    await response.write(event(0, "length"))
    await response.write_eof(b"data: [DONE]\n\n")
    return response


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


def engine() -> web.Application:
    """Return the engine: it computes nothing."""
    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post(PATH, talk)
    return app


def bare(upstream: str) -> web.Application:
    """Return the least that aiohttp can do: bytes in, the same bytes out."""
    app = web.Application(client_max_size=2**24)

    async def session(app: web.Application) -> Any:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as opened:
            app["session"] = opened
            yield

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kind = {"content-type": "application/json"}
        url = upstream + request.path
        async with request.app["session"].post(url, data=body, headers=kind) as answer:
            response = web.StreamResponse(headers={"content-type": answer.content_type})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    app.cleanup_ctx.append(session)
    app.router.add_post("/{path:.*}", relay)
    return app


async def serve(app: web.Application) -> None:
    """Serve until killed, on any free port, which is printed."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"listening": {"http": f"127.0.0.1:{runner.addresses[0][1]}"}}), flush=True)
    await asyncio.Event().wait()


@contextmanager
def process(*command: str, stdin: bytes = b"") -> Iterator[tuple[psutil.Process, str]]:
    """Run a child of this process group; give it and where it listens."""
    child = subprocess.Popen([sys.executable, *command], stdin=-1, stdout=-1)
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(stdin)
        child.stdin.close()
        listening = json.loads(child.stdout.readline())["listening"]
        yield psutil.Process(child.pid), listening["http"]
    finally:
        child.kill()
        child.wait()


# --- the client -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """What a round sends through one proxy."""

    streams: int
    writes: int
    together: int
    pause_s: float

    def body(self) -> bytes:
        asked = {"max_tokens": self.writes, "n": self.together, "top_p": self.pause_s}
        return json.dumps({"model": MODEL, "prompt": [1] * 64, "stream": True, **asked}).encode()

    @property
    def events(self) -> int:
        return self.writes * self.together + 2


async def receive(address: str, load: Load) -> list[float]:
    """Read one stream to its end; return when each part came. Raises if anything is missing."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    body = load.body()
    head = f"POST {PATH} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    received, times = bytearray(), []
    async with asyncio.timeout(LIMIT_S):
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = await reader.read(2**20)
            if not part:
                raise RuntimeError(f"{address} broke off: {bytes(received[-200:])!r}")
            times.append(time.perf_counter())
            received += part
    writer.close()
    if received.count(b"data: ") != load.events:
        raise RuntimeError(f"{address}: {received.count(b'data: ')} events of {load.events}")
    return times


async def cpu_of(proxy: psutil.Process, address: str, load: Load) -> float:
    """Return the microseconds of CPU that a proxy took for each part that an engine wrote."""
    before = proxy.cpu_times()
    await asyncio.gather(*(receive(address, load) for _ in range(load.streams)))
    after = proxy.cpu_times()
    spent = (after.user - before.user) + (after.system - before.system)
    return spent / (load.streams * load.writes) * 1e6


async def gaps_ms(address: str, load: Load) -> list[float]:
    times = await receive(address, load)
    return [(late - early) * 1e3 for early, late in pairwise(times)]


# --- the table --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    unit: str
    ours: float
    bare: float
    budget: str

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


Proxy = tuple[psutil.Process, str]


async def measure(ours: Proxy, other: Proxy, direct: str, seconds: float) -> list[Row]:
    """Measure everything, in rounds that alternate."""
    rows = []
    writes = max(20, int(seconds / INTERVAL_S / (2 * ROUNDS * 3)))
    for together in (1, 4, 16):
        load = Load(STREAMS, writes, together, INTERVAL_S)
        for proxy in (ours, other):
            await cpu_of(*proxy, Load(4, 5, together, 0.001))  # warm
        spent: dict[int, list[float]] = {0: [], 1: []}
        for number in range(ROUNDS):
            for side in (number % 2, 1 - number % 2):
                spent[side].append(await cpu_of(*(ours, other)[side], load))
        what = f"CPU for a read of {together} event{'s' * (together > 1)}"
        medians = statistics.median(spent[0]), statistics.median(spent[1])
        rows.append(Row(what, "us", *medians, f"at most {BUDGET} x"))
    alone = Load(1, 100, 1, 0.005)
    late = [max(await gaps_ms(address, alone)) for address in (ours[1], other[1], direct)]
    what = f"longest gap at one connection (engine itself {late[2]:.1f})"
    rows.append(Row(what, "ms", late[0], late[1], f"under {STALL_MS:.0f}"))
    return rows


def show(rows: Sequence[Row]) -> None:
    print(f"{'':58} {'ours':>8} {'bare':>8} {'ratio':>6}  budget")
    for row in rows:
        name = f"{row.what}, {row.unit}"
        print(f"{name:58} {row.ours:8.1f} {row.bare:8.1f} {row.ratio:6.2f}  {row.budget}")


async def until_found(address: str) -> None:
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://{address}/v1/models") as answer:
                if (await answer.json())["data"]:
                    return
            await asyncio.sleep(0.05)


async def compare(seconds: float) -> list[Row]:
    """Run the three processes and measure."""
    with ExitStack() as stack:
        _, talker = stack.enter_context(process(__file__, "--serve", "engine"))
        url = f"http://{talker}"
        other = stack.enter_context(process(__file__, "--serve", url))
        listen = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
        config = {"transport": "plaintext", "engines": [{"url": url}], "log_level": "error"}
        command = ("-m", "coordinator.main", "--config", "-")
        stdin = json.dumps(config | listen).encode()
        ours = stack.enter_context(process(*command, stdin=stdin))
        await until_found(ours[1])
        return await measure(ours, other, talker, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=45.0, help="for all rounds together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        app = engine() if arguments.serve == "engine" else bare(arguments.serve)
        uvloop.run(serve(app))
        return
    rows = uvloop.run(compare(arguments.seconds))
    show(rows)
    if arguments.json:
        figures = [asdict(row) | {"ratio": row.ratio} for row in rows]
        with tempfile.NamedTemporaryFile("w", dir=arguments.json.parent, delete=False) as file:
            json.dump(figures, file, indent=1)
        Path(file.name).replace(arguments.json)


if __name__ == "__main__":
    main()
