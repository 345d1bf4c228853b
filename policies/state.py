"""A cluster at one moment as a document: what `explain` and `test` evaluate policies on. Pure.

It lists engines and providers with their measurements, and which pools are saturated; resources
beside it may name more. What is left out is not known, except the counts that a coordinator always
has: queued and running prompts are then 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec
from msgspec import field

from lineside.documents import Problem
from lineside.ids import ModelName
from policies.facts import Inventory, Measured, Model, Pools, Target
from policies.globs import any_of
from policies.inventory import DEFAULT_POOL, EngineFacts, inventory_of
from policies.model import (
    BackendType,
    InferencePool,
    InferenceProvider,
    InferenceWorkerSet,
    Labels,
    Measure,
    Name,
    Number,
    Resource,
    Strict,
)
from policies.words import Exact

Moment = TypeVar("Moment", bound="Measurements")


class Measurements(Strict, frozen=True, kw_only=True):
    """What is measured of a backend; each has the name and the unit that a `drop` has for it."""

    queued_prompts: Number = 0
    running_prompts: Number = 0
    kv_cache_usage: Number | None = None
    gpu_utilization: Number | None = None
    predicted_ttft: Number | None = field(default=None, name="predictedTTFT")
    predicted_e2e: Number | None = field(default=None, name="predictedE2E")
    uncached_tokens: Number | None = None
    cached_tokens: Number | None = None
    cost: Number | None = None
    freshness: Number | None = None
    available: bool = True
    """`false`: away, asleep or failing; it gets no request whatever policies say."""


class Change(Strict, frozen=True, kw_only=True):
    """Measurements that take the place of others; what is left out stays."""

    queued_prompts: Number | None = None
    running_prompts: Number | None = None
    kv_cache_usage: Number | None = None
    gpu_utilization: Number | None = None
    predicted_ttft: Number | None = field(default=None, name="predictedTTFT")
    predicted_e2e: Number | None = field(default=None, name="predictedE2E")
    uncached_tokens: Number | None = None
    cached_tokens: Number | None = None
    cost: Number | None = None
    freshness: Number | None = None
    available: bool | None = None


class EngineState(Measurements, frozen=True, kw_only=True):
    """One engine, and each model that it serves."""

    id: Exact
    url: Name | None = None
    """By which a worker set may list it. `None`: `http://` and its id."""
    models: tuple[Name, ...]
    pools: tuple[Name, ...] = ()
    """Beside those that take it by their own words."""
    names: tuple[Name, ...] = ()
    """Further names that selectors may call it, as of its worker set."""
    labels: Labels = field(default_factory=dict)


class ProviderState(Measurements, frozen=True, kw_only=True):
    """One provider."""

    name: Name
    models: tuple[Name, ...] = ()
    """Beside those of its resource, where one of that name is given."""
    labels: Labels = field(default_factory=dict)


class ModelState(Strict, frozen=True, kw_only=True):
    """What a model is called beside its name, and its labels."""

    name: Name
    aliases: tuple[Name, ...] = ()
    classes: tuple[Name, ...] = ()
    labels: Labels = field(default_factory=dict)


class PoolMoment(Strict, frozen=True, kw_only=True):
    """A pool at this moment."""

    saturated: bool


class ClusterState(Strict, frozen=True, kw_only=True):
    """A cluster at one moment."""

    api_version: Literal["lineside.dev/v1alpha1"] | None = None
    kind: Literal["ClusterState"] | None = None
    engines: tuple[EngineState, ...] = ()
    """None at all: those that worker sets list."""
    providers: tuple[ProviderState, ...] = ()
    models: tuple[ModelState, ...] = ()
    pools: Mapping[Name, PoolMoment] = field(default_factory=dict)
    """A pool that is not here is not known."""

    def problems(self) -> Iterator[Problem]:
        """Yield each engine and each provider that is there twice."""
        for name, backends in (
            ("engines", [each.id for each in self.engines]),
            ("providers", [each.name for each in self.providers]),
        ):
            for number, each in enumerate(backends):
                if each in backends[:number]:
                    message = f"`{each}` is in `{name}` twice"
                    yield Problem(((name, number),), "duplicate-backend", message)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What policies are evaluated on beside the request."""

    inventory: Inventory
    measured: Measured
    pools: Pools
    out: int = 0
    """Targets that cannot serve now, as a bit mask."""

    def value(self, target: int, measure: Measure) -> float | None:
        """Return one measurement."""
        return self.measured.column(measure, [target])[0]


@dataclass(frozen=True, slots=True)
class _Resources:
    """Resources by kind, without policies."""

    pools: list[InferencePool]
    worker_sets: list[InferenceWorkerSet]
    providers: list[InferenceProvider]


def offline_inventory(resources: Sequence[Resource]) -> Inventory | None:
    """Return what resources alone say of a cluster; `None` where they say nothing."""
    said = _by_kind(resources)
    there = said.pools or said.worker_sets or said.providers
    return cluster_of(resources, ClusterState()).inventory if there else None


def cluster_of(resources: Sequence[Resource], state: ClusterState) -> Cluster:
    """Put resources and a state together."""
    said = _by_kind(resources)
    facts = [_facts(each) for each in state.engines] or list(_listed(said))
    known = inventory_of(said.pools, said.worker_sets, said.providers, facts)
    engines = {each.id: each for each in state.engines}
    targets = [_with_state(target, engines.get(target.id)) for target in known.targets]
    there = {(target.id, target.model) for target in targets}
    targets += [target for target in _provided(state) if (target.id, target.model) not in there]
    inventory = Inventory(tuple(targets), _models(targets, known.models, state))
    moments: dict[str, Measurements] = {each.name: each for each in state.providers}
    moments |= engines
    away = {name for name, moment in moments.items() if not moment.available}
    return Cluster(
        inventory,
        _measured(inventory, moments),
        {name: moment.saturated for name, moment in state.pools.items()},
        sum(1 << place for place, target in enumerate(targets) if target.id in away),
    )


def _by_kind(resources: Sequence[Resource]) -> _Resources:
    return _Resources(
        [each for each in resources if isinstance(each, InferencePool)],
        [each for each in resources if isinstance(each, InferenceWorkerSet)],
        [each for each in resources if isinstance(each, InferenceProvider)],
    )


def _facts(said: EngineState) -> EngineFacts:
    return EngineFacts(said.id, said.url or f"http://{said.id}", said.models, said.labels)


def _listed(said: _Resources) -> Iterator[EngineFacts]:
    """Yield the engines that worker sets list, with the models of the pools that take those.

    A set that lists none (its engines are found by labels) stands for one engine of its name, as
    does a pool of no worker set, which has whichever engines serve its models.
    """
    for each in said.worker_sets:
        name = each.metadata.name
        models = dict.fromkeys(
            spec.name
            for pool in said.pools
            if pool.spec.worker_sets and any_of(pool.spec.worker_sets)([name])
            for spec in pool.spec.models
        )
        for url in [engine.url for engine in each.spec.engines] or [f"http://{name}"]:
            labels = {**(each.spec.selector or {}), **each.spec.labels}
            yield EngineFacts(url.rpartition("://")[2].rstrip("/"), url, tuple(models), labels)
    for pool in said.pools:
        if not pool.spec.worker_sets:
            name, models = pool.metadata.name, dict.fromkeys(m.name for m in pool.spec.models)
            yield EngineFacts(name, f"http://{name}", tuple(models), pool.spec.labels)


def _with_state(target: Target, said: EngineState | None) -> Target:
    if said is None or target.type is BackendType.PROVIDER:
        return target
    named = frozenset(said.pools)
    pools = (target.pools - {DEFAULT_POOL}) | named if named else target.pools
    names = (target.names - (target.pools - pools)) | pools | frozenset(said.names)
    return replace(target, names=names, pools=pools)


def _provided(state: ClusterState) -> Iterator[Target]:
    for each in state.providers:
        for model in each.models:
            names = frozenset({each.name})
            yield Target(each.name, BackendType.PROVIDER, ModelName(model), names, each.labels)


def _models(
    targets: Sequence[Target], known: Mapping[ModelName, Model], state: ClusterState
) -> dict[ModelName, Model]:
    models = {target.model: known.get(target.model, Model(target.model)) for target in targets}
    for said in state.models:
        if (model := models.get(ModelName(said.name))) is not None:
            models[model.name] = model.also(said.aliases, said.classes, said.labels)
    return models


_FIELDS: Mapping[Measure, str] = {
    Measure.PREDICTED_TTFT: "predicted_ttft",
    Measure.PREDICTED_E2E: "predicted_e2e",
    Measure.QUEUED_PROMPTS: "queued_prompts",
    Measure.RUNNING_PROMPTS: "running_prompts",
    Measure.UNCACHED_TOKENS: "uncached_tokens",
    Measure.CACHED_TOKENS: "cached_tokens",
    Measure.KV_CACHE_USAGE: "kv_cache_usage",
    Measure.GPU_UTILIZATION: "gpu_utilization",
    Measure.COST: "cost",
    Measure.FRESHNESS: "freshness",
}


FIELDS_OF_MEASURES: Mapping[Measure, str] = {
    measure: next(
        field.encode_name
        for field in msgspec.structs.fields(Measurements)
        if field.name == attribute
    )
    for measure, attribute in _FIELDS.items()
}
"""What documents call each measurement."""


def _measured(inventory: Inventory, moments: Mapping[str, Measurements]) -> Measured:
    """Answer from the state; a backend that it does not have is idle, and else not known."""
    unsaid = Measurements()

    def column(measure: Measure, targets: Sequence[int]) -> list[float | None]:
        at = (moments.get(inventory.targets[target].id, unsaid) for target in targets)
        return [getattr(moment, _FIELDS[measure]) for moment in at]

    def ranking(targets: Sequence[int]) -> list[float | None]:
        return column(Measure.PREDICTED_TTFT, targets)

    return Measured(column, ranking)


def changed(
    state: ClusterState, changes: Mapping[str, Change], pools: Mapping[str, PoolMoment]
) -> ClusterState:
    """Return the state with some measurements of some backends, and some pools, replaced."""

    def after(name: str, said: Moment) -> Moment:
        change = changes.get(name)
        fields = () if change is None else change.__struct_fields__
        news = {name: new for name in fields if (new := getattr(change, name)) is not None}
        return msgspec.structs.replace(said, **news)

    return msgspec.structs.replace(
        state,
        engines=tuple(after(each.id, each) for each in state.engines),
        providers=tuple(after(each.name, each) for each in state.providers),
        pools={**state.pools, **pools},
    )
