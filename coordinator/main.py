"""Builds the coordinator from its settings and runs it; alone reads argv and the environment."""

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from coordinator import dispatch
from coordinator.admin import Admin, Readiness
from coordinator.caches import Caches
from coordinator.cluster import Cluster, Engine
from coordinator.config import Config
from coordinator.discovery import Discovery
from coordinator.door_http import Door
from coordinator.inflight import InFlight
from coordinator.ingest import AgentsServicer, serving
from coordinator.limits import Unlimited
from coordinator.metrics import Gauges, MeteredService, Metrics
from coordinator.overlay import Overlay
from coordinator.predict import FixedRate
from coordinator.recent import RecentWork
from coordinator.records import Records
from coordinator.store import SqliteStore, cluster_secret
from coordinator.tagging import NoTags
from coordinator.tokens import Tokens
from lineside import launch, logs
from lineside.clock import SystemClock
from lineside.ids import EngineId
from lineside.schema import split_address

log = logs.get("coordinator.main")

CHORES_S = 1.0
"""Between two looks for leases and caches that have run out."""

LEASE_SLACK_S = 60.0
"""A lease outlives the gateway's total timeout by this much, then expires by itself."""

CLOSE_S = 1.0
"""What a cancelled handler gets to end in."""

DRAIN_LOOK_S = 0.02

Listening = dict[str, str]


@dataclass(slots=True)
class Lag:
    """How late the event loop runs; written by `_measure` alone."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Parts:
    """All that `run` has built."""

    config: Config
    service: MeteredService
    discovery: Discovery
    agents: AgentsServicer
    admin: Admin
    door: Door
    lag: Lag


async def run(config: Config, stop: asyncio.Event, announce: Callable[[Listening], None]) -> None:
    """Serve until `stop` is set, then drain. The first part to fail stops the rest."""
    async with AsyncExitStack() as stack:
        parts = await _build(config, stack)
        http = await stack.enter_async_context(_serving(parts.door.application(), config.http))
        grpc = await stack.enter_async_context(serving(parts.agents, config.grpc))
        admin = await stack.enter_async_context(_serving(parts.admin.application(), config.admin))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.discovery.run(), name="discovery"),
                tasks.create_task(parts.agents.run(), name="agents"),
                tasks.create_task(_chores(parts), name="chores"),
                tasks.create_task(_measure(parts.lag), name="loop lag"),
            ]
            gc.collect()
            gc.freeze()  # what was built so far lives as long as the process
            announce({"http": http.address, "grpc": grpc, "admin": admin.address})
            await stop.wait()
            await _drain(parts, http)
            for task in running:
                task.cancel()


async def _build(config: Config, stack: AsyncExitStack) -> Parts:
    clock, cluster, caches, lag, registry = SystemClock(), Cluster(), Caches(), Lag(), _registry()
    store = SqliteStore(config.store_path)
    stack.push_async_callback(store.close)
    secret = await cluster_secret(store)
    to_engines = await stack.enter_async_context(dispatch.session())
    probes = await stack.enter_async_context(aiohttp.ClientSession())
    tokens = Tokens(clock, probes)
    stack.callback(tokens.close)
    service = _service(config, cluster, caches, tokens, secret, registry)
    discovery = Discovery(
        config.engines,
        cluster,
        probes,
        node=config.node_id,
        stride=config.stride,
        probe_s=config.probe_s,
        changed=_followers(caches, tokens),
        appeared=tokens.verify,
    )
    agents = AgentsServicer(cluster, caches, secret, clock, config.name, config.agent_token)
    readiness = Readiness(service)
    dispatcher = dispatch.Dispatcher(service, to_engines, config.timeouts, discovery.suspect)
    registry.register(
        Gauges(service, readiness.reasons, caches.size, agents.counters, lambda: lag.seconds)
    )
    return Parts(
        config=config,
        service=service,
        discovery=discovery,
        agents=agents,
        admin=Admin(service, readiness, config, registry, caches.stats),
        door=Door(service, dispatcher, config.timeouts, config.body_limit_bytes),
        lag=lag,
    )


def _service(
    config: Config,
    cluster: Cluster,
    caches: Caches,
    tokens: Tokens,
    secret: bytes,
    registry: CollectorRegistry,
) -> MeteredService:
    return MeteredService(
        Metrics(registry),
        cluster=cluster,
        overlaps=caches,
        tokens=tokens,
        inflight=InFlight(),
        overlay=Overlay(),
        recent=RecentWork(),
        predictor=FixedRate(config.prefill_tokens_per_s, config.step_s),
        limiter=Unlimited(),
        tagger=NoTags(),
        records=Records(),
        clock=SystemClock(),
        rng=random.Random(),
        secret=secret,
        lease_s=config.timeouts.total_s + LEASE_SLACK_S,
    )


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def _followers(caches: Caches, tokens: Tokens) -> Callable[[Sequence[Engine]], None]:
    """Return what hears of every new set of engines."""
    known: set[EngineId] = set()

    def follow(engines: Sequence[Engine]) -> None:
        groups = {engine.id: engine.group for engine in engines}
        for gone in known - groups.keys():
            tokens.forget(gone)
        known.clear()
        known.update(groups)
        caches.assign(groups)

    return follow


@dataclass(frozen=True, slots=True)
class _Site:
    """A listening HTTP server."""

    site: web.TCPSite
    address: str


@asynccontextmanager
async def _serving(app: web.Application, address: str) -> AsyncIterator[_Site]:
    """Serve an application; on the way out cancel what still runs."""
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_http_logger(),
        shutdown_timeout=CLOSE_S,
    )
    await runner.setup()
    host, port = split_address(address)
    try:
        site = web.TCPSite(runner, host or None, port)
        await site.start()
        bound: int = runner.addresses[0][1]
        yield _Site(site, f"{address.rpartition(':')[0]}:{bound}")
    finally:
        await runner.cleanup()


def _http_logger() -> logging.Logger:
    """Return aiohttp's logger: its tracebacks quote what a client sent, so only names are kept."""
    logger = logging.getLogger("coordinator.http")
    logger.filters = [_names_only]
    return logger


def _names_only(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0]:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[0].__name__}", ()
        record.exc_info = None
    return True


async def _chores(parts: Parts) -> None:
    while True:
        await asyncio.sleep(CHORES_S)
        if late := parts.service.expire():
            log.warning("leases expired", count=late)


async def _measure(lag: Lag) -> None:
    """Keep the event loop's lag up to date: how much too late a short sleep ends."""
    now, pause_s = asyncio.get_running_loop().time, 0.1
    while True:
        due = now() + pause_s
        await asyncio.sleep(pause_s)
        lag.seconds = max(0.0, now() - due)


async def _drain(parts: Parts, http: _Site) -> None:
    """Accept nothing more; let what is in flight finish, for a while."""
    parts.service.draining = True
    await http.site.stop()
    log.info("draining", inflight=parts.service.inflight.outstanding)
    clock = parts.service.clock
    deadline = clock.monotonic() + parts.config.drain_s
    while parts.service.inflight.outstanding and clock.monotonic() < deadline:
        await clock.sleep(DRAIN_LOOK_S)
    log.info("drained", inflight=parts.service.inflight.outstanding)


async def _run_until_signalled(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def announce(listening: Listening) -> None:
        sys.stdout.write(json.dumps({"listening": listening}) + "\n")
        sys.stdout.flush()

    await run(config, stop, announce)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a coordinator with these options."""
    parser = argparse.ArgumentParser(prog="lineside coordinator")
    launch.add_arguments(parser, Config)
    return start(parser.parse_args(argv))


def start(arguments: argparse.Namespace) -> int:
    """Run a coordinator; return 0, 1 for findings in its settings, 3 if it could not run."""
    config = launch.configured(Config, arguments, os.environ)
    if isinstance(config, int):
        return config
    logs.setup(config.log_level)
    log.info("starting", config=config.shown())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_until_signalled(config))
    except OSError as error:
        sys.stderr.write(f"could not run: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
