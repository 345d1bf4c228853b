"""The resources in force: policies, pools and providers, bound to the engines there are now. Pure.

Swapped as a whole; a request keeps the bench that it was planned on to its end, so that none sees
half of a set.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from coordinator.candidates import Backend, Provider
from coordinator.cluster import Cluster
from coordinator.engines import Engine, EngineView
from coordinator.providers.dialects import Dialect, root_of
from coordinator.targets import Layout
from lineside.ids import EngineId, ModelName
from policies.evaluate import Bound, PolicySet, compile_
from policies.facts import Target
from policies.inventory import EngineFacts, Members, inventory_of, members_of, saturations
from policies.model import (
    BackendType,
    InferencePolicy,
    InferencePool,
    InferenceProvider,
    InferenceWorkerSet,
    Price,
    Resource,
    Saturation,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """Everything that was applied, by kind."""

    policies: tuple[InferencePolicy, ...] = ()
    pools: tuple[InferencePool, ...] = ()
    worker_sets: tuple[InferenceWorkerSet, ...] = ()
    providers: tuple[InferenceProvider, ...] = ()

    @classmethod
    def of(cls, resources: Sequence[Resource]) -> "Resources":
        """Sort resources by kind."""
        return cls(
            tuple(each for each in resources if isinstance(each, InferencePolicy)),
            tuple(each for each in resources if isinstance(each, InferencePool)),
            tuple(each for each in resources if isinstance(each, InferenceWorkerSet)),
            tuple(each for each in resources if isinstance(each, InferenceProvider)),
        )


EARLIER = 20
"""Sets that are kept to go back to; more are forgotten, the oldest first."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The policies, bound to the targets of one moment."""

    policies: PolicySet
    bound: Bound
    layout: Layout
    members: Members
    bounds: Mapping[str, Saturation]
    """By pool."""
    prices: Sequence[Price | None]
    """By place in the inventory."""


class Rules:
    """What is in force. Written by whoever applies resources; read by every decision."""

    def __init__(self, cluster: Cluster, resources: Resources = Resources()) -> None:
        self.cluster = cluster
        self.revision = 0
        """How many times resources were swapped."""
        self.rolled_back = False
        """Whether what is in force is an earlier set than the last one that was applied."""
        self._earlier: deque[Resources] = deque(maxlen=EARLIER)
        self._is_stopgap = False
        self._bench: Bench | None = None
        self._made_for = -1
        self._put(resources)

    def swap(self, resources: Resources) -> None:
        """Put resources into force, all at once; keep the ones before for `roll_back`."""
        if self.revision > 1 and not self._is_stopgap:
            # A start has no set to go back to: what guards must not be lost.
            self._earlier.append(self.resources)
        self.rolled_back = self._is_stopgap = False
        self._put(resources)

    def bridge(self, stopgap: Resources) -> None:
        """Put something into force until the first set is known; nobody goes back to it."""
        self._is_stopgap = True
        self._put(stopgap)

    def roll_back(self) -> bool:
        """Put the set before into force again; return whether there is one."""
        if not self._earlier:
            return False
        self.rolled_back = True
        self._put(self._earlier.pop())
        return True

    def _put(self, resources: Resources) -> None:
        self.resources = resources
        self.policies = compile_(resources.policies)
        named = Counter(each.metadata.name for each in resources.providers)
        self.providers: dict[str, Provider] = {
            each.metadata.name: _provider(each)
            for each in resources.providers
            if named[each.metadata.name] == 1 and _is_served(each)
        }
        self.revision += 1
        self._bench = None

    def bench(self) -> Bench:
        """Return the policies bound to the engines of now."""
        if self._bench is None or self._made_for != self.cluster.revision:
            self._bench, self._made_for = self._bound(), self.cluster.revision
        return self._bench

    def shown(self) -> dict[str, object]:
        """Return what is in force, for people: policies, and their rules in the order of effect."""
        return {
            "revision": self.revision,
            "rolled_back": self.rolled_back,
            "policies": [
                {
                    "name": policy.key,
                    "priority": policy.spec.priority,
                    "mode": policy.spec.mode.value,
                    "rules": [rule.name for rule in policy.spec.rules],
                }
                for policy in self.resources.policies
            ],
            "order": [str(rule.source) for rule in self.policies.rules],
            "providers": sorted(self.providers),
        }

    def _bound(self) -> Bench:
        engines, resources = self.cluster.assigned(), self.resources
        facts = [_facts(engine) for engine in engines]
        ids = {engine.id for engine in engines}
        served = [
            each
            for each in resources.providers
            if each.metadata.name in self.providers and each.metadata.name not in ids
        ]
        inventory = inventory_of(
            resources.pools, resources.worker_sets, served, facts, self.revision
        )
        backends: dict[str, Backend] = {**self.providers}
        backends.update({engine.id: engine for engine in engines})
        members = members_of(resources.pools, resources.worker_sets, facts)
        return Bench(
            self.policies,
            self.policies.bind(inventory),
            Layout.of(inventory, backends),
            members,
            saturations(resources.pools),
            [_price(target, members, resources) for target in inventory.targets],
        )


def saturated(bench: Bench, views: Iterable[EngineView]) -> dict[str, bool]:
    """Return whether each pool is: when each of its engines is that can be reached.

    It is unknown, and not here, while none is known not to be and of some nothing is known.
    """
    known: dict[str, list[bool | None]] = {}
    for view in views:
        if view.away or view.asleep:
            continue
        for pool in bench.members.pool_names(view.engine.id):
            full = _is_saturated(view, bench.bounds.get(pool, Saturation()))
            known.setdefault(pool, []).append(full)
    return {
        pool: False not in states
        for pool, states in known.items()
        if False in states or None not in states
    }


def _is_saturated(view: EngineView, bounds: Saturation) -> bool | None:
    """Return whether an engine is; `None`: no fresh report says so."""
    load = view.fresh_load
    if load is None:
        return None
    queued, usage = bounds.queued_prompts, bounds.kv_cache_usage
    return (queued is not None and (load.waiting or 0) >= queued) or (
        usage is not None and (load.kv_cache_usage or 0.0) >= usage
    )


def pools_shown(bench: Bench, views: Iterable[EngineView]) -> list[dict[str, object]]:
    """Return each pool's engines and state, for people."""
    views = list(views)
    full, engines = saturated(bench, views), dict[str, list[str]]()
    for view in views:
        for pool in bench.members.pool_names(view.engine.id):
            engines.setdefault(pool, []).append(view.engine.id)
    return [
        {"name": name, "engines": engines.get(name, []), "saturated": full.get(name)}
        for name in sorted(bench.bounds)
    ]


def _price(target: Target, members: Members, resources: Resources) -> Price | None:
    """Return what a target's tokens cost: by provider and model, else by pool, else by servers."""
    if target.type is BackendType.PROVIDER:
        named = [each for each in resources.providers if each.metadata.name == target.id]
        specs = [spec for each in named for spec in each.spec.models]
    else:
        specs = [spec for pool in members.pools.get(target.id, ()) for spec in pool.spec.models]
    prices = [spec.price for spec in specs if spec.name == target.model]
    prices += [each.spec.price for each in members.worker_sets.get(target.id, ())]
    return next((price for price in prices if price is not None), None)


def _facts(engine: Engine) -> EngineFacts:
    names = tuple(served.name for served in engine.models)
    return EngineFacts(engine.id, engine.base_url, names, dict(engine.labels), engine.namespace)


def _is_served(resource: InferenceProvider) -> bool:
    """Whether requests can be sent to a provider: to an address that is one.

    Lint names the others; they are no targets, whatever got past it.
    """
    spec = resource.spec
    try:
        parts = urlsplit(root_of(spec))
        return bool(spec.root and parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _provider(resource: InferenceProvider) -> Provider:
    spec, base_url = resource.spec, root_of(resource.spec)
    return Provider(
        id=EngineId(resource.metadata.name),
        base_url=base_url,
        endpoint=urlsplit(base_url).netloc,
        upstream={ModelName(each.name): each.upstream or each.name for each in spec.models},
        dialect=Dialect.of(spec),
        timeout_s=spec.timeout_s,
        needs_key=spec.credentials is not None,
    )
