"""Routers before simulated engines, as processes of this machine: started, awaited, ended by pid.

Each contender is a context manager that gives the URL for a chat. All listen on loopback only.
"""

import asyncio
import itertools
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

import simulate
from bench import peers
from bench.peers import Missing, Peer
from bench.traffic import MODEL, Target, chat, encoded
from cli.children import CouldNotRun, child
from cli.stack import Stack, running

FOLDER = Path(simulate.__path__[0]) / "model"
BLOCK = 16
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A simulated engine: where it is asked, and where it tells."""

    url: str
    events: str
    replay: str


@dataclass(frozen=True, slots=True)
class Speed:
    """What the engines are like."""

    blocks: int = 2563
    """41,000 tokens."""
    prefill_s_per_token: float = 40e-6
    base_step_s: float = 0.008
    max_num_seqs: int = 32


@asynccontextmanager
async def engines(count: int, speed: Speed, logs: Path) -> AsyncIterator[list[Engine]]:
    """Run that many fresh engines."""
    arguments = ["--port", "0", "--model-name", MODEL, "--blocks", str(speed.blocks)]
    arguments += ["--max-model-len", "16384", "--max-num-seqs", str(speed.max_num_seqs)]
    arguments += ["--prefill-s-per-token", str(speed.prefill_s_per_token)]
    arguments += ["--base-step-s", str(speed.base_step_s), "--attention-s-per-token-pair", "0"]
    async with AsyncExitStack() as stack:
        starts = [
            stack.enter_async_context(
                child(f"engine {n}", "simulate.main", arguments, log=logs / f"engine-{n}.log")
            )
            for n in range(count)
        ]
        started = [await start for start in starts]
        yield [
            Engine(f"http://{each.listening['http']}", each.listening["events"], replay)
            for each in started
            for replay in (each.listening["replay"],)
        ]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a contender is started before."""

    engines: Sequence[Engine]
    session: aiohttp.ClientSession
    logs: Path

    @property
    def urls(self) -> list[str]:
        """Of the engines."""
        return [engine.url for engine in self.engines]


Contender = Callable[[Scene], AbstractAsyncContextManager[Target]]


# --- ours -----------------------------------------------------------------------------------------


@asynccontextmanager
async def lineside(scene: Scene) -> AsyncIterator[Target]:
    """Run a coordinator and an agent."""
    async with lineside_stack(scene) as stack:
        yield lambda: stack.http


@asynccontextmanager
async def lineside_stack(scene: Scene) -> AsyncIterator[Stack]:
    """Run the same, for those who also want to look into it."""
    specs = [
        {
            "url": engine.url,
            "kv": engine.events,
            "replay": engine.replay,
            "tokenizer": str(FOLDER),
        }
        for engine in scene.engines
    ]
    async with running(specs, logs=scene.logs) as stack:
        found = await stack.wait_fresh(scene.session, len(specs), READY_LIMIT_S)
        if sum(engine["fresh"] for engine in found) < len(specs):
            raise CouldNotRun("the engines did not get fresh")
        yield stack


@asynccontextmanager
async def round_robin(scene: Scene) -> AsyncIterator[Target]:
    """Let the client ask the engines in turn: a proxy that costs nothing."""
    turns = itertools.cycle(scene.urls)
    yield lambda: next(turns)


@asynccontextmanager
async def at_random(scene: Scene) -> AsyncIterator[Target]:
    """Let the client ask any engine: a proxy that costs nothing."""
    dice = random.Random(7)
    yield lambda: dice.choice(scene.urls)


# --- others ---------------------------------------------------------------------------------------


def vllm_router(policy: str) -> Contender:
    """Return vllm-router with a policy and its defaults."""

    @asynccontextmanager
    async def run(scene: Scene) -> AsyncIterator[Target]:
        http, metrics = free_port(), free_port()
        command = [_program(peers.VLLM_ROUTER, "vllm-router"), "--host", "127.0.0.1"]
        command += ["--port", str(http), "--prometheus-port", str(metrics)]
        command += ["--prometheus-host", "127.0.0.1", "--policy", policy, "--log-level", "warning"]
        command += ["--worker-startup-check-interval", "1", "--worker-urls", *scene.urls]
        if policy == "kv_aware":
            command += ["--kv-event-model", MODEL, "--kv-event-block-size", str(BLOCK)]
            for engine in scene.engines:
                command += ["--kv-event-source", f"{engine.url}={engine.events}"]
                command += ["--kv-event-replay-source", f"{engine.url}={engine.replay}"]
        async with process(command, scene.logs / f"vllm-router-{policy}.log"):
            yield await _answering(scene, f"http://127.0.0.1:{http}")

    return run


@asynccontextmanager
async def sglang_router(scene: Scene) -> AsyncIterator[Target]:
    """Run sglang-router's text trees with their defaults."""
    http, metrics = free_port(), free_port()
    command = [_program(peers.SGLANG_ROUTER, "sglang-router"), "launch", "--host", "127.0.0.1"]
    command += ["--port", str(http), "--prometheus-port", str(metrics)]
    command += ["--prometheus-host", "127.0.0.1", "--policy", "cache_aware"]
    command += ["--log-level", "warn", "--worker-urls", *scene.urls]
    async with process(command, scene.logs / "sglang-router.log"):
        yield await _answering(scene, f"http://127.0.0.1:{http}")


def dynamo(*options: str) -> Contender:
    """Return Dynamo's frontend with KV routing, before workers that pass on to the engines."""

    @asynccontextmanager
    async def run(scene: Scene) -> AsyncIterator[Target]:
        http = free_port()
        python = _program(peers.DYNAMO, "python")
        planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        frontend = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
        frontend += ["--http-port", str(http), "--router-mode", "kv", *planes, *options]
        worker = [python, str(Path(__file__).with_name("dynamo_worker.py")), MODEL, str(FOLDER)]
        worker += [str(Speed().blocks), str(BLOCK)]
        worker += [f"{engine.url}={engine.events}" for engine in scene.engines]
        loopback = {"DYN_FILE_KV": str(scene.logs / "discovery"), "DYN_LOG": "warn"}
        loopback |= {"DYN_TCP_RPC_HOST": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
        loopback |= {"TMPDIR": str(scene.logs)}
        async with (
            process(worker, scene.logs / "dynamo-worker.log", loopback),
            process(frontend, scene.logs / "dynamo-frontend.log", loopback),
        ):
            yield await _answering(scene, f"http://127.0.0.1:{http}")

    return run


CONTENDERS: Mapping[str, Contender] = {
    "lineside": lineside,
    "round robin": round_robin,
    "random": at_random,
    "vllm-router cache_aware": vllm_router("cache_aware"),
    "vllm-router kv_aware": vllm_router("kv_aware"),
    "sglang-router cache_aware": sglang_router,
    "dynamo kv": dynamo(),
    "dynamo kv, tuned": dynamo(
        "--router-prefill-load-scale", "4", "--router-predicted-ttl-secs", "5"
    ),
}


# --- processes ------------------------------------------------------------------------------------


def _program(peer: Peer, name: str) -> str:
    peers.install(peer)
    return str(peer.bin / name)


@asynccontextmanager
async def process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Run a program in a session of its own; end it, and what it started, on the way out."""
    with log.open("wb") as file:
        try:
            started = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise Missing(f"does not start: {error.strerror}") from None
    try:
        yield
    finally:
        await _end(started)


async def _end(started: asyncio.subprocess.Process) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, how)  # its session is its own, so only what it started
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await started.wait()
                if how == signal.SIGKILL:
                    return


async def _answering(scene: Scene, url: str) -> Target:
    """Wait until a router answers as many chats in a row as there are engines. Raises `Missing`."""
    words = [{"role": "user", "content": "Are you there?"}]
    body = encoded({"messages": words, "max_tokens": 2, "ignore_eos": True})
    deadline = time.monotonic() + READY_LIMIT_S
    answered = 0
    why = ""
    while answered < 2 * len(scene.engines):
        if time.monotonic() > deadline:
            raise Missing(f"does not answer within {READY_LIMIT_S:.0f} s: {why}")
        sample = await chat(scene.session, url, body, 2)
        answered, why = (answered + 1, "") if not sample.error else (0, sample.error)
        if why:
            await asyncio.sleep(0.25)
    return lambda: url


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
