"""Builds the coordinator from its settings and runs it; alone reads argv and the environment."""

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from coordinator import dispatch, ingest
from coordinator.admin import Admin
from coordinator.audit import Audit
from coordinator.breaker import Breakers
from coordinator.caches import Caches
from coordinator.cap import IndexCap
from coordinator.cluster import Cluster
from coordinator.config import Config
from coordinator.credentials import Credentials
from coordinator.decider import Decider
from coordinator.discovery import Discovery
from coordinator.door_http import Door
from coordinator.engines import Engine
from coordinator.hub import Hub
from coordinator.inflight import InFlight
from coordinator.ingest import AgentsServicer
from coordinator.learned_store import EVERY_S, LearnedStore
from coordinator.limits import Unlimited
from coordinator.listeners import CLOSE_S, serving, serving_aside
from coordinator.metrics import Gauges, Metrics
from coordinator.numbering import Numbering
from coordinator.overlay import Overlay
from coordinator.predict import Learned
from coordinator.providers import ProviderKeys
from coordinator.readiness import Readiness
from coordinator.recent import RecentWork
from coordinator.records import Records
from coordinator.resources import ResourceFolder, unfit
from coordinator.rules import Resources, Rules
from coordinator.store import SqliteStore, StoreUnavailable, cluster_secret
from coordinator.tagging import GivenTags
from coordinator.tokens import Tokens
from coordinator.watch import WatchedService
from lineside import launch, logs, process
from lineside.clock import SystemClock
from lineside.ids import EngineId

log = logs.get("coordinator.main")

CHORES_S = 1.0
"""Between two looks for leases and caches that have run out."""

LEASE_SLACK_S = 60.0
"""A lease outlives the gateway's total timeout by this much, then expires by itself."""

DRAIN_LOOK_S = 0.02


@dataclass(slots=True)
class Lag:
    """How late the event loop runs; written by `_measure` alone."""

    seconds: float = 0.0
    beat_at: float = field(default_factory=time.monotonic)
    """When the loop last ran."""

    @property
    def silence_s(self) -> float:
        """For how long the loop has not run. May be asked on any thread."""
        return time.monotonic() - self.beat_at


@dataclass(frozen=True, slots=True)
class Parts:
    """All that `run` has built."""

    config: Config
    service: WatchedService
    breakers: Breakers
    cap: IndexCap
    discovery: Discovery
    agents: AgentsServicer
    admin: Admin
    door: Door
    resources: ResourceFolder | None
    kept: LearnedStore
    lag: Lag


async def run(config: Config, stop: asyncio.Event, announce: process.Announce) -> None:
    """Serve until `stop` is set, then drain. The first part to fail stops the rest."""
    async with AsyncExitStack() as stack:
        parts = await _build(config, stack)
        parts.discovery.begin()
        if parts.resources is not None and (errors := await parts.resources.start()):
            raise OSError(f"resources cannot be put into force: {errors[0]}")
        http = await stack.enter_async_context(
            serving(parts.door.application(), config.http, config.timeouts.receive_s)
        )
        grpc = await stack.enter_async_context(ingest.serving(parts.agents, config.grpc))
        main_loop = asyncio.get_running_loop()
        admin = await stack.enter_async_context(
            serving_aside(parts.admin.application(main_loop), config.admin)
        )
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(parts.discovery.run(), name="discovery"),
                tasks.create_task(parts.agents.run(), name="agents"),
                tasks.create_task(_chores(parts), name="chores"),
                tasks.create_task(_measure(parts.lag), name="loop lag"),
                tasks.create_task(_keep(parts.kept), name="keep what was learned"),
            ]
            if parts.resources is not None:
                running.append(tasks.create_task(parts.resources.run(), name="resources"))
            gc.collect()
            gc.freeze()  # what was built so far lives as long as the process
            gc.set_threshold(20_000, 10, 10)  # requests leave no cycles; a look costs 5 % of ingest
            announce({"http": http, "grpc": grpc, "admin": admin})
            await stop.wait()
            await _drain(parts)
            await parts.kept.save()
            for task in running:
                task.cancel()


async def _build(config: Config, stack: AsyncExitStack) -> Parts:
    clock, cluster, caches, lag, registry = SystemClock(), Cluster(), Caches(), Lag(), _registry()
    credentials = Credentials.of(config.engines)
    store = SqliteStore(config.store_path)
    stack.push_async_callback(store.close)
    try:
        secret = await cluster_secret(store)
    except StoreUnavailable as error:
        raise OSError(f"cannot use the store `{config.store_path}`: {error}") from error
    to_engines = await stack.enter_async_context(dispatch.session(credentials))
    probes = await stack.enter_async_context(
        aiohttp.ClientSession(middlewares=credentials.middlewares())
    )
    hub = Hub(config.hub.fetch, config.hub.url, config.hub.cache, config.hub.token_file)
    tokens = Tokens(clock, probes, hub=hub)
    stack.callback(tokens.close)
    breakers = Breakers(cluster, config.stalled_s)
    rules, keys = Rules(cluster), ProviderKeys()
    learned = Learned(config.prefill_tokens_per_s, config.step_s)
    kept = LearnedStore(learned, store)
    await kept.load()
    service = _service(config, breakers, rules, caches, tokens, learned, secret, registry)
    discovery = Discovery(
        config.engines,
        cluster,
        probes,
        credentials,
        node=config.node_id,
        stride=config.stride,
        probe_s=config.probe_s,
        changed=_followers(caches, tokens, service.decider, learned),
        appeared=_greeter(breakers, tokens, service.decider),
        looked=lambda engine: breakers.heard(engine, clock.monotonic()),
    )
    numbering = Numbering(store, cluster)
    agents = AgentsServicer(
        cluster, caches, secret, clock, config.name, config.agent_token, numbering
    )
    cap = IndexCap(config.index_bytes, cluster, caches)
    folder = None
    if config.resources is not None:
        folder = ResourceFolder(Path(config.resources), rules, _reader_of(keys))
    readiness = Readiness(service, cap, numbering, folder)
    index = partial(_index_shown, caches, cap, service.overlay)
    dispatcher = dispatch.Dispatcher(service, to_engines, config.timeouts, discovery.suspect, keys)
    registry.register(Gauges(service, readiness, caches, cap, agents.counters, lambda: lag.seconds))
    return Parts(
        config=config,
        service=service,
        breakers=breakers,
        cap=cap,
        discovery=discovery,
        agents=agents,
        admin=Admin(
            service,
            readiness,
            config,
            registry,
            index,
            lambda: {**rules.shown(), **(folder.shown() if folder else _NO_FOLDER)},
            lambda: lag.silence_s,
        ),
        door=Door(service, dispatcher, config.timeouts, config.body_limit_bytes),
        resources=folder,
        kept=kept,
        lag=lag,
    )


def _service(
    config: Config,
    breakers: Breakers,
    rules: Rules,
    caches: Caches,
    tokens: Tokens,
    learned: Learned,
    secret: bytes,
    registry: CollectorRegistry,
) -> WatchedService:
    decider = Decider(
        cluster=rules.cluster,
        rules=rules,
        overlaps=caches,
        tokens=tokens,
        inflight=InFlight(),
        overlay=Overlay(),
        recent=RecentWork(),
        predictor=learned,
        clock=SystemClock(),
        rng=random.Random(),
        secret=secret,
    )
    return WatchedService(
        breakers,
        metrics=Metrics(registry),
        decider=decider,
        limiter=Unlimited(),
        shed_wait_s=config.shed_wait_s,
        tagger=GivenTags(config.tags, config.tags_header),
        records=Records(),
        audit=Audit(config.announce_share, random.Random()),
        lease_s=config.timeouts.total_s + LEASE_SLACK_S,
    )


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def _reader_of(keys: ProviderKeys) -> Callable[[Resources], None]:
    """Return what reads providers' keys whenever resources are looked at."""
    return lambda resources: keys.read(resources.providers)


_NO_FOLDER: Mapping[str, object] = {"source": None, "rejected": False, "findings": []}
"""What is shown where no resources are watched."""


def _greeter(
    breakers: Breakers, tokens: Tokens, decider: Decider
) -> Callable[[Engine], Awaitable[object]]:
    """Return what hears of each engine that is new, or back."""

    def greet(engine: Engine) -> Awaitable[object]:
        breakers.reset(engine.id)
        decider.welcome(engine)
        return tokens.keep_verified(engine)

    return greet


def _index_shown(caches: Caches, cap: IndexCap, overlay: Overlay) -> Mapping[str, object]:
    """Return what `/debug/index` shows."""
    return {**caches.stats(), "cap": cap.shown(), "overlay": overlay.shown()}


def _followers(
    caches: Caches, tokens: Tokens, decider: Decider, learned: Learned
) -> Callable[[Sequence[Engine]], None]:
    """Return what hears of every new set of engines."""
    known: set[EngineId] = set()

    def follow(engines: Sequence[Engine]) -> None:
        groups = {engine.id: engine.group for engine in engines}
        for gone in known - groups.keys():
            tokens.forget(gone)
        known.clear()
        known.update(groups)
        caches.assign(groups)
        decider.recent.keep(groups)
        decider.newcomers.keep(groups)
        learned.keep(groups)

    return follow


async def _chores(parts: Parts) -> None:
    while True:
        await asyncio.sleep(CHORES_S)
        if late := parts.service.expire():
            log.warning("leases expired", count=late)
        _look_at_engines(parts)
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
        breakers.look(view, service.inflight.queue(view.engine.id, now).outstanding, now)
    for engine, reason in breakers.take_news():
        if reason:
            log.warning("engine excluded", engine=engine, reason=reason)
        else:
            log.info("engine used again", engine=engine)


async def _keep(kept: LearnedStore) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
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

    The door listens until the end: a refusal that says so is better than a closed port.
    """
    parts.service.draining = True
    log.info("draining", inflight=parts.door.calls)
    await _until_idle(parts, parts.config.drain_s)
    if cut := parts.door.calls:
        parts.door.stop()
        await _until_idle(parts, CLOSE_S)
    log.info("drained", cut=cut)


async def _until_idle(parts: Parts, limit_s: float) -> None:
    clock = parts.service.clock
    deadline = clock.monotonic() + limit_s
    while parts.door.calls and clock.monotonic() < deadline:
        await clock.sleep(DRAIN_LOOK_S)


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
    if config.resources is not None and (errors := unfit(Path(config.resources))):
        sys.stderr.writelines(f"{finding}\n" for finding in errors)
        return launch.FINDINGS
    logs.setup(config.log_level)
    log.info("starting", config=config.shown())
    return process.serve(partial(run, config))


if __name__ == "__main__":
    sys.exit(main())
