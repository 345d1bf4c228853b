"""Builds and runs one simulated server: `python -m simulate.main --port 0`.

Prints one line on standard output once it listens, and ends cleanly on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from aiohttp import web

from lineside import logs
from lineside.clock import Clock, SystemClock
from simulate.config import BadConfig, Config, add_arguments, from_arguments
from simulate.control import Control
from simulate.core import Core
from simulate.driver import Driver
from simulate.events import BatchEncoder
from simulate.faults import Faults
from simulate.generation import Generation
from simulate.listener import Listener
from simulate.metrics import Metrics
from simulate.publisher import CannotBind, NoPublisher, Publisher
from simulate.ranks import Ranks
from simulate.server import Server
from simulate.tokens import Storyteller, Tokenizer

STOP_LIMIT_S = 0.5
"""Streams that are still open this long after SIGTERM are cut."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an engine as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simulate.main",
        description="A simulated vLLM engine: real HTTP API, metrics and KV events, invented text.",
    )
    add_arguments(parser)
    try:
        config = from_arguments(parser.parse_args(arguments))
    except BadConfig as error:
        parser.error(str(error))
    return run(config)


def run(config: Config) -> int:
    """Run an engine until it is told to stop; return the exit code."""
    logs.setup()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(config))
        except (OSError, ValueError, CannotBind) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            sys.stderr.write(f"could not run: {why}\n")
            return 3
    return 0


async def serve(config: Config) -> None:
    """Serve until SIGTERM. Raises `OSError` or `CannotBind` for a taken port, `ValueError` for a
    model folder that cannot be used.
    """
    tokenizer = Tokenizer(Path(config.model_folder))
    storyteller = Storyteller(tokenizer, config.seed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    clock = SystemClock()
    faults = Faults(clock)
    metrics = Metrics(config.names()[0], config.limits(), config.data_parallel_size)
    with contextlib.ExitStack() as opened:
        ranks = Ranks(
            [
                _driver(config, rank, metrics, faults, clock, opened)
                for rank in range(config.data_parallel_size)
            ]
        )
        generation = Generation(config, tokenizer, storyteller)
        control = Control(faults, ranks, clock)
        server = Server(
            config=config,
            tokenizer=tokenizer,
            generation=generation,
            ranks=ranks,
            metrics=metrics,
            faults=faults,
            control=control,
        )
        await _run(config, server.app(), ranks, faults, clock, stop)


def _driver(
    config: Config,
    rank: int,
    metrics: Metrics,
    faults: Faults,
    clock: Clock,
    opened: contextlib.ExitStack,
) -> Driver:
    publisher = _publisher(config, rank, faults, clock)
    opened.callback(publisher.close)
    return Driver(
        core=Core(config.limits(), config.speeds()),
        publisher=publisher,
        metrics=metrics.ranks[rank],
        faults=faults,
        clock=clock,
        rank=rank,
    )


def _publisher(config: Config, rank: int, faults: Faults, clock: Clock) -> Publisher | NoPublisher:
    if not config.publishes:
        return NoPublisher()
    return Publisher(
        config.addresses(rank),
        topic=config.kv_topic,
        buffer_steps=config.replay_buffer_steps,
        encoder=BatchEncoder(byte_hashes=config.byte_hashes, rank=rank),
        faults=faults,
        clock=clock,
        rank=rank,
    )


async def _run(
    config: Config,
    app: web.Application,
    ranks: Ranks,
    faults: Faults,
    clock: Clock,
    stop: asyncio.Event,
) -> None:
    listener = Listener(config.host, config.port)
    if config.faults:
        app.middlewares.append(listener.watch)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_LIMIT_S
    )
    await runner.setup()
    try:
        await listener.open(runner)
        async with asyncio.TaskGroup() as tasks:
            parts = []
            for driver in ranks.drivers:
                parts.append(tasks.create_task(driver.run(), name="steps"))
                parts.append(tasks.create_task(driver.publisher.serve(), name="events"))
            if config.faults:
                parts.append(tasks.create_task(listener.obey(faults, clock), name="listener"))
            _announce(f"{config.host}:{listener.port}", ranks)
            await stop.wait()
            await runner.cleanup()
            for part in parts:
                part.cancel()
    finally:
        await runner.cleanup()


def _announce(http: str, ranks: Ranks) -> None:
    """Print where to reach the server: rank 0, and a list of all ranks if there are more."""
    sockets = [
        {"events": driver.publisher.endpoint, "replay": driver.publisher.replay_endpoint}
        for driver in ranks.drivers
    ]
    listening: dict[str, object] = {"http": http, **sockets[0]}
    if len(sockets) > 1:
        listening["ranks"] = sockets
    sys.stdout.write(json.dumps({"listening": listening}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
