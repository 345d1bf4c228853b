"""Runs the coordinator: listeners, chores, drain. Alone reads argv and the environment.

`build` makes the parts; nothing here decides or accounts.
"""

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from pathlib import Path

from coordinator.agents import ingest
from coordinator.build import Lag, Parts, build
from coordinator.config import Config
from coordinator.doors.listeners import CLOSE_S, serving, serving_aside
from coordinator.resources import unfit
from coordinator.state.learned_store import LearnedStore
from coordinator.state.members import Coordinator
from lineside import launch, logs, process
from lineside.about import is_compiled
from lineside.core_log import CoreLog
from lineside.findings import Finding
from lineside.schema import split_address

log = logs.get("coordinator.main")

CHORES_S = 1.0
"""Between two looks for leases and caches that have run out."""

DRAIN_LOOK_S = 0.02


async def run(
    config: Config, stop: asyncio.Event, announce: process.Announce, said: CoreLog | None = None
) -> None:
    """Serve until `stop` is set, then drain. The first part to fail stops the rest."""
    async with AsyncExitStack() as stack:
        parts = await build(config, stack)
        if said is not None:
            said.hear = parts.trust.handshakes.hear
        parts.discovery.begin()
        if errors := await parts.resources.start():
            raise OSError(f"resources cannot be put into force: {errors[0]}")
        bound = await _listening(parts, stack)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.discovery.run(), name="discovery"),
                tasks.create_task(parts.agents.run(), name="agents"),
                tasks.create_task(_chores(parts), name="chores"),
                tasks.create_task(_measure(parts.lag), name="loop lag"),
                tasks.create_task(_keep(parts.kept), name="keep what was learned"),
                tasks.create_task(parts.state.run(), name="state"),
                tasks.create_task(parts.resources.run(), name="resources"),
                tasks.create_task(parts.envoy.run(), name="names of engines"),
            ]
            gc.collect()
            gc.freeze()  # what was built so far lives as long as the process
            gc.set_threshold(20_000, 10, 10)  # requests leave no cycles; a look costs 5 % of ingest
            parts.state.members.join(_as_member(parts.config, bound))
            announce(bound)
            await stop.wait()
            await _drain(parts)
            await parts.state.end(parts.kept)
            for task in running:
                task.cancel()


def _as_member(config: Config, bound: Mapping[str, str]) -> Coordinator:
    """Return what others are told of this coordinator."""
    host = config.advertise
    listening = {
        name: address if host is None else f"{host}:{split_address(address)[1]}"
        for name, address in bound.items()
    }
    return Coordinator(metadata.version("lineside"), time.time(), listening)


async def _listening(parts: Parts, stack: AsyncExitStack) -> dict[str, str]:
    """Open every listener until the stack is left; return the addresses that were bound."""
    config, main_loop = parts.config, asyncio.get_running_loop()
    app = parts.door.application()
    parts.gateways.add_to(app)
    bound = {
        "http": await stack.enter_async_context(
            serving(app, config.http, config.timeouts.receive_s, parts.door.malformed.answer)
        ),
        "grpc": await stack.enter_async_context(
            ingest.serving(parts.agents, config.grpc, parts.trust.credentials())
        ),
        "admin": await stack.enter_async_context(
            serving_aside(parts.admin.application(main_loop), config.admin)
        ),
    }
    if config.route is not None:
        route = parts.gateways.serving(config.route, [parts.envoy.register])
        bound["route"] = await stack.enter_async_context(route)
    return bound


async def _chores(parts: Parts) -> None:
    while True:
        await asyncio.sleep(CHORES_S)
        if late := parts.service.expire():
            log.warning("leases expired", count=late)
        await parts.gateways.look()
        await parts.trust.look()
        _look_at_engines(parts)
        _look_at_providers(parts)
        parts.agents.vouch(parts.service.audit.take_due())
        _doubt(parts)
        if change := parts.cap.look(parts.service.clock.monotonic()):
            log.warning("stride changed", group=change.group, factor=change.factor)


def _doubt(parts: Parts) -> None:
    """Tell agents which of their engines' digests proved wrong."""
    doubts = parts.service.audit.take_doubts()
    parts.agents.doubt(doubts)
    for engine, doubt in doubts.items():
        log.warning("engine mispredicted", engine=engine, reason=doubt.how)


def _look_at_engines(parts: Parts) -> None:
    """Show each engine's report to its breaker; tell of those that are used no more, or again."""
    service, breakers = parts.service, parts.breakers
    now = service.clock.monotonic()
    views = service.cluster.snapshot(now).engines
    breakers.retain({view.engine.id for view in views})
    service.audit.keep({view.engine.id for view in views})
    for engine in service.audit.look(views):
        service.cluster.observe_word(engine, service.audit.word(engine))
    for view in views:
        breakers.look(view, service.inflight.watched(view.engine.id), now)
    for engine, reason in breakers.take_news():
        if reason:
            log.warning("engine excluded", engine=engine, reason=reason)
        else:
            log.info("engine used again", engine=engine)


def _look_at_providers(parts: Parts) -> None:
    """Forget those that are no longer there; tell of those that get no requests, or again do."""
    decider = parts.service.decider
    decider.cooldowns.retain(decider.rules.providers)
    for provider, cause in decider.cooldowns.take_news():
        if cause is None:
            log.info("provider used again", provider=provider)
        else:
            log.warning("provider cools down", provider=provider, reason=cause.value)


async def _keep(kept: LearnedStore) -> None:
    while True:
        await asyncio.sleep(kept.pause_s)
        await kept.save()


async def _measure(lag: Lag) -> None:
    """Keep the event loop's lag up to date: how much too late a short sleep ends."""
    now, pause_s = asyncio.get_running_loop().time, 0.1
    while True:
        due = now() + pause_s
        await asyncio.sleep(pause_s)
        lag.seconds, lag.beat_at = max(0.0, now() - due), time.monotonic()


async def _drain(parts: Parts) -> None:
    """Refuse what is new, let what is in flight finish for a while, then end it.

    The doors listen until the end: a refusal that says so is better than a closed port.
    """
    await parts.gateways.leave()
    parts.service.draining = True
    log.info("draining", inflight=_open(parts))
    await _until_idle(parts, parts.config.drain_s)
    if cut := _open(parts):
        parts.door.stop()
        await _until_idle(parts, CLOSE_S)
    log.info("drained", cut=cut)


def _open(parts: Parts) -> int:
    """Return how many requests are in this process's hands; those that gateways send are not."""
    return parts.door.calls + parts.envoy.calls


async def _until_idle(parts: Parts, limit_s: float) -> None:
    clock = parts.service.clock
    deadline = clock.monotonic() + limit_s
    while _open(parts) and clock.monotonic() < deadline:
        await clock.sleep(DRAIN_LOOK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a coordinator with these options."""
    parser = argparse.ArgumentParser(prog="lineside coordinator")
    launch.add_arguments(parser, Config)
    return start(parser.parse_args(argv))


def _unfit(config: Config) -> Sequence[Finding]:
    return () if config.resources is None else unfit(Path(config.resources))


def start(arguments: argparse.Namespace) -> int:
    """Run a coordinator; return 0, 1 for findings in its settings, 3 if it could not run."""
    config = launch.configured(Config, arguments, os.environ, _unfit)
    if isinstance(config, int):
        return config
    said = CoreLog()
    said.open()
    logs.setup(config.log_level)
    log.info("starting", compiled=is_compiled(sys.modules), config=config.shown())
    return process.serve(partial(run, config, said=said))


if __name__ == "__main__":
    sys.exit(main())
