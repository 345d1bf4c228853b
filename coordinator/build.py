"""Builds the coordinator's parts from its settings, and knits them together. Runs none of them.

`main` runs what is built here. What must be closed is put on a stack, in the order of its making.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector

from coordinator import dispatch
from coordinator.agents.ingest import AgentsServicer
from coordinator.breaker import Breakers
from coordinator.config import Config
from coordinator.core import Core, core_of, discovery_of
from coordinator.credentials import Credentials
from coordinator.discovery import Discovery
from coordinator.doors.admin import Admin
from coordinator.doors.asides import Asides
from coordinator.doors.cross_origin import CrossOrigin
from coordinator.doors.door_http import Door
from coordinator.doors.envoy.addresses import Addresses
from coordinator.doors.envoy.doors import EnvoyDoor, EnvoyMetrics
from coordinator.doors.gateway_doors import DoorMetrics, GatewayDoors, keys_of
from coordinator.doors.gateway_tls import GatewayTls
from coordinator.doors.holding import Holding
from coordinator.doors.listing import Listing
from coordinator.gpu_views import GpuViews
from coordinator.holdings.caches import Caches
from coordinator.holdings.cap import IndexCap
from coordinator.holdings.overlay import Overlay
from coordinator.kube.cluster import KubeCluster
from coordinator.kube.transport import connected
from coordinator.kube.views import KubeViews
from coordinator.metrics import Gauges
from coordinator.providers.keys import ProviderKeys
from coordinator.providers.views import ProviderViews
from coordinator.readiness import Readiness
from coordinator.resources import ResourceFolder, Source
from coordinator.rules import Resources, Rules
from coordinator.state.exclusions import Exclusions
from coordinator.state.leader import Leadership
from coordinator.state.learned_store import LearnedStore
from coordinator.state.members import Membership
from coordinator.state.numbering import Numbering
from coordinator.state.peers import Own
from coordinator.state.pulse import Pulse
from coordinator.state.secret import Secret
from coordinator.state.shared import State
from coordinator.state.store import Store
from coordinator.state.stored_resources import StoredResources
from coordinator.state.stores.opening import opened
from coordinator.state.tidying import CHORE, Tidying
from coordinator.tokens.views import TokenizerViews
from coordinator.trust.agents import AgentTrust, TrustMetrics
from coordinator.watch import WatchedService
from coordinator.worth_views import WorthViews
from lineside import logs
from lineside.about import About
from lineside.clock import SystemClock

log = logs.get("coordinator.build")


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
    trust: AgentTrust
    admin: Admin
    door: Door
    gateways: GatewayDoors
    envoy: EnvoyDoor
    resources: Source
    kept: LearnedStore
    state: State
    lag: Lag


@dataclass(frozen=True, slots=True)
class _Base:
    """What there is before any door: what decides, and what it shares with others."""

    config: Config
    lag: Lag
    registry: CollectorRegistry
    keys: ProviderKeys
    credentials: Credentials
    core: Core
    discovery: Discovery
    cap: IndexCap
    trust: AgentTrust
    numbering: Numbering
    agents: AgentsServicer
    source: Source
    kept: LearnedStore
    state: State
    worth: WorthViews
    providers: ProviderViews


@dataclass(frozen=True, slots=True)
class _Doors:
    """Where requests and queries come in."""

    door: Door
    gateways: GatewayDoors
    envoy: EnvoyDoor


async def build(config: Config, stack: AsyncExitStack) -> Parts:
    """Make every part; what must be closed is put on `stack`. Raises `OSError`."""
    base = await _base(config, stack)
    core = base.core
    addresses = Addresses(core.cluster, SystemClock())
    stack.callback(addresses.close)
    tls = GatewayTls(config.gateways)
    others = partial(_others, base.trust, addresses, base.source, tls)
    readiness = Readiness(
        service=core.service,
        cap=base.cap,
        numbering=base.numbering,
        pulse=base.state.pulse,
        resources=base.source,
        others=others,
    )
    doors = await _doors(base, readiness, addresses, tls, stack)
    for metrics in _metrics(base, readiness, doors):
        base.registry.register(metrics)
    return Parts(
        config=config,
        service=core.service,
        breakers=core.breakers,
        cap=base.cap,
        discovery=base.discovery,
        agents=base.agents,
        trust=base.trust,
        admin=_admin(base, readiness),
        door=doors.door,
        gateways=doors.gateways,
        envoy=doors.envoy,
        resources=base.source,
        kept=base.kept,
        state=base.state,
        lag=base.lag,
    )


async def _base(config: Config, stack: AsyncExitStack) -> _Base:
    lag, registry, keys = Lag(), _registry(), ProviderKeys()
    store, secret = await opened(config.store, config.etcd, stack)
    credentials = Credentials.of(config.engines, config.kubernetes.engine_key_file is not None)
    probes = await stack.enter_async_context(
        aiohttp.ClientSession(middlewares=credentials.middlewares())
    )
    core = core_of(config, stack, probes, secret, registry, keys)
    discovery = discovery_of(config, core, probes, credentials)
    numbering, trust = Numbering(store, core.cluster), AgentTrust(config, SystemClock())
    agents = _agents(config, core, secret, numbering, trust)
    cap = IndexCap(config.index_bytes, core.cluster, core.caches)
    source = await _source(config, store, core.rules, keys, discovery, stack)
    state, kept = await _state(core, store, secret, agents, (numbering, source))
    worth = WorthViews(core.service.worth, core.service)
    if isinstance(source, KubeCluster):
        source.stand(
            Leadership(store, state.members.tenure, "statuses", agents.name, SystemClock())
        )
        source.weigh(worth.by_endpoint)
    return _Base(
        config=config,
        lag=lag,
        registry=registry,
        keys=keys,
        credentials=credentials,
        core=core,
        discovery=discovery,
        cap=cap,
        trust=trust,
        numbering=numbering,
        agents=agents,
        source=source,
        kept=kept,
        state=state,
        worth=worth,
        providers=ProviderViews(core.service, lambda: keys.problems),
    )


async def _doors(
    base: _Base,
    readiness: Readiness,
    addresses: Addresses,
    tls: GatewayTls,
    stack: AsyncExitStack,
) -> _Doors:
    config, service, keys = base.config, base.core.service, base.keys
    to_engines = await stack.enter_async_context(dispatch.session(base.credentials))
    dispatcher = dispatch.Dispatcher(
        service, to_engines, config.timeouts, base.discovery.suspect, keys
    )
    asides = Asides(to_engines, config.timeouts, keys, service.heavy)
    holding, listing = Holding(base.core.cluster, service.clock, asides), Listing(service)
    gateways = GatewayDoors(
        config, service, readiness, keys_of(base.credentials, keys), holding, listing, tls
    )
    envoy = EnvoyDoor(
        config=config,
        service=service,
        queries=gateways.queries,
        callers=gateways.callers,
        holding=holding,
        listing=listing,
        addresses=addresses,
    )
    origins, limit = CrossOrigin(config.cors_origins), config.body_limit_bytes
    door = Door(
        service=service,
        dispatcher=dispatcher,
        asides=asides,
        holding=holding,
        listing=listing,
        timeouts=config.timeouts,
        body_limit_bytes=limit,
        cross_origin=origins,
    )
    return _Doors(door, gateways, envoy)


def _metrics(base: _Base, readiness: Readiness, doors: _Doors) -> Iterator[Collector]:
    """Yield what Prometheus reads, beside what counts by itself."""
    core, service, lag = base.core, base.core.service, base.lag
    counters = base.agents.counters
    yield base.state
    yield Gauges(
        service=service,
        readiness=readiness,
        caches=core.caches,
        cap=base.cap,
        agents=counters,
        loop_lag_s=lambda: lag.seconds,
    )
    yield base.providers
    yield DoorMetrics(doors.gateways)
    yield EnvoyMetrics(doors.envoy)
    yield TrustMetrics(base.trust)
    yield KubeViews(base.source if isinstance(base.source, KubeCluster) else None)
    yield TokenizerViews(core.cluster.assigned, core.tokens.checks, core.tokens.reused)
    yield base.worth
    yield GpuViews(lambda: core.cluster.snapshot(service.clock.monotonic()).engines)


async def _state(
    core: Core,
    store: Store,
    secret: Secret,
    agents: AgentsServicer,
    others: Sequence[Numbering | Source],
) -> tuple[State, LearnedStore]:
    """Return what is shared and what outlives a restart, read where the store is there."""
    clock = SystemClock()
    kept = LearnedStore(core.learned, store)
    exclusions = Exclusions(core.breakers, core.service.decider.cooldowns, store, clock)
    if secret.value is not None:  # else the store is away, and both load before their first write
        await kept.load()
        await exclusions.load()

    def remake() -> None:
        for each in (exclusions, kept, *others):
            each.remake()

    members = Membership(store, clock, agents.name, lambda: agents.sessions.open.keys())
    pulse = Pulse(store, secret, clock, remake, lambda: members.tenure.away or kept.away)
    tidying = Tidying(store, Leadership(store, members.tenure, CHORE, members.me, clock), clock)
    state = State(
        pulse=pulse,
        members=members,
        exclusions=exclusions,
        tidying=tidying,
        peers=core.peers,
        inflight=core.service.inflight,
        clock=clock,
    )
    return state, kept


def _agents(
    config: Config, core: Core, secret: Secret, numbering: Numbering, trust: AgentTrust
) -> AgentsServicer:
    return AgentsServicer(
        cluster=core.cluster,
        caches=core.caches,
        secret=secret,
        clock=SystemClock(),
        coordinator=config.name,
        proof=trust.proof,
        numbering=numbering,
        own=Own(core.service.inflight, core.service.overlay),
        peers=core.peers,
        noted=trust.note,
    )


async def _source(
    config: Config,
    store: Store,
    rules: Rules,
    keys: ProviderKeys,
    discovery: Discovery,
    stack: AsyncExitStack,
) -> Source:
    told, clock = _reader_of(keys), SystemClock()
    if config.kubernetes.is_on:
        api = await connected(config.kubernetes)
        stack.push_async_callback(api.close)
        return KubeCluster(
            api=api,
            settings=config.kubernetes,
            rules=rules,
            told=told,
            follow=discovery.follow,
            store=store,
            clock=clock,
        )
    if config.resources is None:
        return StoredResources(store, rules, told, clock)
    return ResourceFolder(Path(config.resources), rules, told)


def _others(
    trust: AgentTrust, addresses: Addresses, source: Source, tls: GatewayTls
) -> Iterator[tuple[str, str]]:
    for each in (trust, addresses, tls):
        yield from each.degraded()
    if isinstance(source, KubeCluster):
        yield from source.degraded()


def _admin(base: _Base, readiness: Readiness) -> Admin:
    core, source = base.core, base.source
    return Admin(
        core.service,
        readiness,
        base.config,
        base.registry,
        index=partial(_index_shown, core.caches, base.cap, core.service.overlay),
        policies=lambda: {**core.rules.shown(), **source.shown()},
        providers=base.providers.shown,
        silence_s=lambda: base.lag.silence_s,
        members=base.state.shown,
        worth=base.worth.of,
    )


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(About(SystemClock()))
    return registry


def _reader_of(keys: ProviderKeys) -> Callable[[Resources], None]:
    """Return what reads providers' keys whenever resources are looked at."""
    return lambda resources: keys.read(resources.providers)


def _index_shown(caches: Caches, cap: IndexCap, overlay: Overlay) -> Mapping[str, object]:
    """Return what `/debug/index` shows."""
    return {**caches.stats(), "cap": cap.shown(), "overlay": overlay.shown()}
