"""Pools, engine sets, providers and engines to the targets that policies choose among. Pure.

The read path gives the engines that it knows, offline tools those that a engine set lists.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lineside.ids import ModelName
from policies.facts import Inventory, Model, Target
from policies.globs import any_of
from policies.model import (
    BackendType,
    InferencePool,
    InferenceProvider,
    InferenceWorkerSet,
    ModelSpec,
    Saturation,
)

DEFAULT_POOL = "default"
"""The pool of engines that no pool names."""

IN_NONE = frozenset({DEFAULT_POOL})


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine, as far as resources can name it."""

    id: str
    url: str
    models: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    """Of its pod: only worker sets of this namespace select it. `None`: it is no pod's."""


@dataclass(frozen=True, slots=True)
class Members:
    """Which engines belong to what, by the engine's id."""

    worker_sets: Mapping[str, Sequence[InferenceWorkerSet]]
    pools: Mapping[str, Sequence[InferencePool]]
    names: Mapping[str, frozenset[str]]
    """Of the pools: they are asked for with every engine of many a request."""

    def pool_names(self, engine: str) -> frozenset[str]:
        """Return the names of an engine's pools; of one that no pool names, the default pool's."""
        return self.names.get(engine, IN_NONE)


def members_of(
    pools: Sequence[InferencePool],
    worker_sets: Sequence[InferenceWorkerSet],
    engines: Iterable[EngineFacts],
) -> Members:
    """Return the engine sets and pools of each engine."""
    in_sets, in_pools, pool_names = {}, {}, {}
    for engine in engines:
        in_sets[engine.id] = [each for each in worker_sets if _lists(each, engine)]
        names = {each.metadata.name for each in in_sets[engine.id]}
        in_pools[engine.id] = taking = [pool for pool in pools if _takes(pool, engine, names)]
        pool_names[engine.id] = frozenset(pool.metadata.name for pool in taking) or IN_NONE
    return Members(in_sets, in_pools, pool_names)


def inventory_of(
    pools: Sequence[InferencePool],
    worker_sets: Sequence[InferenceWorkerSet],
    providers: Sequence[InferenceProvider],
    engines: Sequence[EngineFacts],
    revision: int = 0,
) -> Inventory:
    """Return all targets: each engine and each provider with each model that it serves."""
    members = members_of(pools, worker_sets, engines)
    targets = [
        *(target for engine in engines for target in _of_engine(engine, members)),
        *(target for provider in providers for target in _of_provider(provider)),
    ]
    specs = [spec for pool in pools for spec in pool.spec.models]
    specs += [spec for provider in providers for spec in provider.spec.models]
    return Inventory(tuple(targets), _models(targets, specs), revision)


def saturations(pools: Sequence[InferencePool]) -> dict[str, Saturation]:
    """Return each pool's bounds, the default pool's among them."""
    return {DEFAULT_POOL: Saturation()} | {p.metadata.name: p.spec.saturation for p in pools}


def _of_engine(engine: EngineFacts, members: Members) -> Iterator[Target]:
    sets, pools = members.worker_sets[engine.id], members.pools[engine.id]
    names = members.pool_names(engine.id)
    labels = dict(engine.labels)
    for more in (*(each.spec.labels for each in sets), *(pool.spec.labels for pool in pools)):
        labels |= more
    called = names | {each.metadata.name for each in sets} | {engine.id}
    for model in engine.models:
        yield Target(engine.id, BackendType.LOCAL, ModelName(model), called, labels, names)


def _of_provider(provider: InferenceProvider) -> Iterator[Target]:
    name = provider.metadata.name
    for spec in provider.spec.models:
        yield Target(
            name,
            BackendType.PROVIDER,
            ModelName(spec.name),
            frozenset({name}),
            provider.spec.labels,
        )


def _models(targets: Iterable[Target], specs: Sequence[ModelSpec]) -> dict[ModelName, Model]:
    """Return the targets' models; what several resources say of one is put together."""
    models = {target.model: Model(target.model) for target in targets}
    for spec in specs:
        if (known := models.get(ModelName(spec.name))) is not None:
            models[known.name] = known.also(spec.aliases, spec.classes, spec.labels)
    return models


def _lists(worker_set: InferenceWorkerSet, engine: EngineFacts) -> bool:
    """Whether a engine set names an engine, by its address or by its labels."""
    spec = worker_set.spec
    if any(each.url.rstrip("/") == engine.url.rstrip("/") for each in spec.engines):
        return True
    if engine.namespace not in (None, worker_set.metadata.namespace):
        return False
    wanted = spec.selector or {}
    return bool(wanted) and all(engine.labels.get(key) == value for key, value in wanted.items())


def _takes(pool: InferencePool, engine: EngineFacts, worker_sets: Iterable[str]) -> bool:
    """Whether a pool has an engine: by its engine set, else by a model that it serves."""
    if pool.spec.worker_sets:
        named = any_of(pool.spec.worker_sets)
        return named(worker_sets)
    return any(spec.name in engine.models for spec in pool.spec.models)
