"""What decides, and what it decides from: made from settings, and told of new engines.

The inner half of what `build` makes. Knows no door and no store.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
from prometheus_client import CollectorRegistry

from coordinator.breaker import Breakers
from coordinator.cluster import Cluster
from coordinator.config import Config
from coordinator.credentials import Credentials
from coordinator.decider import Decider
from coordinator.discovery import Discovery
from coordinator.engines import Engine
from coordinator.holdings.audit import Audit
from coordinator.holdings.caches import Caches
from coordinator.holdings.overlay import Overlay
from coordinator.leaning import Leaning
from coordinator.limits import Unlimited
from coordinator.load.inflight import InFlight
from coordinator.load.predict import Learned
from coordinator.load.recent import RecentWork
from coordinator.metrics import Metrics
from coordinator.providers.keys import ProviderKeys
from coordinator.records import Records
from coordinator.rules import Rules
from coordinator.state.peers import Peers
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.hub import Hub
from coordinator.tokens.sources import Tokens
from coordinator.watch import WatchedService
from coordinator.worth import CacheWorth
from lineside.clock import SystemClock
from lineside.ids import EngineId

LEASE_SLACK_S = 60.0
"""A lease outlives the gateway's total timeout by this much, then expires by itself."""


@dataclass(frozen=True, slots=True)
class Core:
    """What decides, and what it decides from."""

    cluster: Cluster
    caches: Caches
    rules: Rules
    tokens: Tokens
    learned: Learned
    breakers: Breakers
    service: WatchedService
    peers: Peers


def core_of(
    config: Config,
    stack: AsyncExitStack,
    probes: aiohttp.ClientSession,
    secret: Secret,
    registry: CollectorRegistry,
    keys: ProviderKeys,
) -> Core:
    """Make what decides; what must be closed is put on `stack`."""
    cluster, caches = Cluster(), Caches()
    hub = Hub(config.hub.fetch, config.hub.url, config.hub.cache, config.hub.token_file)
    tokens = Tokens(SystemClock(), probes, hub=hub)
    stack.callback(tokens.close)
    breakers, rules = Breakers(cluster, config.stalled_s), Rules(cluster)
    learned, peers = Learned(config.prefill_tokens_per_s, config.step_s), Peers()
    decider = Decider(
        cluster=cluster,
        rules=rules,
        overlaps=caches,
        tokens=tokens,
        inflight=InFlight(peers.sums),
        claimed_elsewhere=peers.units,
        leaning=Leaning(peers),
        overlay=Overlay(),
        recent=RecentWork(),
        predictor=learned,
        key_missing=keys.missing,
        clock=SystemClock(),
        rng=random.Random(),
        secret=secret,
    )
    service = _service(config, decider, breakers, Metrics(registry))
    stack.callback(service.heavy.close)
    return Core(cluster, caches, rules, tokens, learned, breakers, service, peers)


def _service(
    config: Config, decider: Decider, breakers: Breakers, metrics: Metrics
) -> WatchedService:
    return WatchedService(
        breakers=breakers,
        metrics=metrics,
        decider=decider,
        limiter=Unlimited(),
        shed_wait_s=config.shed_wait_s,
        tagger=GivenTags(config.tags, config.tags_header),
        records=Records(),
        audit=Audit(config.announce_share, random.Random()),
        lease_s=config.timeouts.total_s + LEASE_SLACK_S,
    )


def discovery_of(
    config: Config, core: Core, probes: aiohttp.ClientSession, credentials: Credentials
) -> Discovery:
    """Return the search for engines, whose finds reach all that counts by engine."""
    decider, clock = core.service.decider, SystemClock()
    return Discovery(
        config.engines,
        core.cluster,
        probes,
        credentials,
        node=config.node_id,
        stride=config.stride,
        probe_s=config.probe_s,
        changed=_followers(
            core.breakers, core.caches, core.tokens, decider, core.learned, core.service.worth
        ),
        appeared=_greeter(core.breakers, core.tokens, decider),
        looked=lambda engine: core.breakers.heard(engine, clock.monotonic()),
    )


def _greeter(
    breakers: Breakers, tokens: Tokens, decider: Decider
) -> Callable[[Engine], Awaitable[object]]:
    """Return what hears of each engine that is new, or back."""

    def greet(engine: Engine) -> Awaitable[object]:
        breakers.reset(engine.id)
        decider.welcome(engine)
        return tokens.keep_verified(engine)

    return greet


def _followers(
    breakers: Breakers,
    caches: Caches,
    tokens: Tokens,
    decider: Decider,
    learned: Learned,
    worth: CacheWorth,
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
        breakers.found(groups)
        decider.recent.keep(groups)
        decider.newcomers.keep(groups)
        learned.keep(groups)
        worth.keep(groups)

    return follow
