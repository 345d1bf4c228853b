"""Builds and runs one simulated engine: `python -m simulate.main --port 0`.

Prints one line on standard output once it listens, and ends cleanly on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from aiohttp import web

from lineside import logs
from lineside.clock import SystemClock
from simulate.config import BadConfig, Config, add_arguments, from_arguments
from simulate.core import Core
from simulate.driver import Driver
from simulate.events import BatchEncoder, CannotBind, Publisher
from simulate.generation import Generation
from simulate.metrics import Metrics
from simulate.server import Server
from simulate.tokens import Storyteller, Tokenizer

STOP_LIMIT_S = 0.5
"""Streams that are still open this long after SIGTERM are cut."""

_log = logs.get("simulate.main")


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
            _log.warning("could not run", reason=str(error))
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
    publisher = Publisher(
        host=config.host,
        port=config.kv_port,
        replay_port=config.replay_port,
        topic=config.kv_topic,
        buffer_steps=config.replay_buffer_steps,
        encoder=BatchEncoder(byte_hashes=config.byte_hashes),
    )
    try:
        metrics = Metrics(config.names()[0], config.limits())
        core = Core(config.limits(), config.speeds())
        driver = Driver(core, publisher, metrics, SystemClock())
        generation = Generation(config, tokenizer, storyteller)
        server = Server(config, tokenizer, generation, driver, publisher, metrics)
        await _run(config, server.app(), driver, publisher, stop)
    finally:
        publisher.close()


async def _run(
    config: Config,
    app: web.Application,
    driver: Driver,
    publisher: Publisher,
    stop: asyncio.Event,
) -> None:
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_LIMIT_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        async with asyncio.TaskGroup() as tasks:
            parts = [
                tasks.create_task(driver.run(), name="steps"),
                tasks.create_task(publisher.serve_replays(), name="replays"),
            ]
            _announce(runner, config, publisher)
            await stop.wait()
            await runner.cleanup()
            for part in parts:
                part.cancel()
    finally:
        await runner.cleanup()


def _announce(runner: web.AppRunner, config: Config, publisher: Publisher) -> None:
    port = runner.addresses[0][1]
    listening = {
        "http": f"{config.host}:{port}",
        "events": publisher.endpoint,
        "replay": publisher.replay_endpoint,
    }
    sys.stdout.write(json.dumps({"listening": listening}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
