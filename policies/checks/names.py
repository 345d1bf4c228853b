"""Names and globs that nothing in an inventory bears. Pure; asked only where there is one."""

from collections.abc import Iterable, Iterator, Sequence

from lineside.findings import did_you_mean
from lineside.schema import Path
from policies.checks.codes import Found
from policies.checks.words import is_called
from policies.facts import Inventory
from policies.globs import any_of
from policies.model import (
    BackendSelector,
    Consider,
    Drop,
    GatewayBackend,
    InferencePolicy,
    InferencePool,
    InferenceProvider,
    ModelSelector,
    PoolState,
    Resource,
    Share,
    Stage,
)
from policies.walk import parts


class Names:
    """All names that a policy may use of an inventory, and of the resources beside it."""

    def __init__(self, inventory: Inventory, resources: Iterable[Resource]) -> None:
        there = list(resources)
        pools = {each.metadata.name for each in there if isinstance(each, InferencePool)}
        providers = {each.metadata.name for each in there if isinstance(each, InferenceProvider)}
        models = inventory.models.values()
        self.pools = {pool for each in inventory.targets for pool in each.pools} | pools
        self.backends = {name for each in inventory.targets for name in each.names}
        self.backends |= self.pools | providers
        self.models = {name for each in models for name in {each.name, *each.aliases}}
        self.classes = {name for each in models for name in each.classes}

    def check(self, resource: Resource) -> Iterator[Found]:
        """Check every name in a policy or a gateway backend."""
        if isinstance(resource, GatewayBackend):
            for field in ("pool", "provider"):
                name = getattr(resource.spec, field)
                known = self.pools if field == "pool" else self.backends - self.pools
                if name is not None:
                    yield from _backend(("spec", field), field, name, known)
        elif isinstance(resource, InferencePolicy):
            for path, part in parts(resource):
                yield from self._part(path, part)

    def _part(self, path: Path, part: object) -> Iterator[Found]:
        match part:
            case BackendSelector(names=names):
                yield from self._backends((*path, "names"), names or ())
            case ModelSelector(names=names, classes=classes):
                yield from _models((*path, "names"), names or (), self.models)
                yield from _models((*path, "classes"), classes or (), self.classes)
            case Stage(names=names, order=order):
                yield from self._backends((*path, "names"), names or ())
                yield from self._backends((*path, "order"), order or ())
            case Share(backend=backend, model=model):
                if backend is not None:
                    yield from _backend((*path, "backend"), "backend", backend, self.backends)
                if model is not None:
                    yield from _model((*path, "model"), model, self.models)
            case Consider(pools=pools) | Drop(pools=pools):
                for place, name in enumerate(pools or ()):
                    yield from _backend((*path, "pools", place), "pool", name, self.pools)
            case PoolState(name=str(name)):
                yield from _backend((*path, "name"), "pool", name, self.pools)

    def _backends(self, path: Path, names: Sequence[str]) -> Iterator[Found]:
        for place, name in enumerate(names):
            yield from _backend((*path, place), "backend", name, self.backends)


def _backend(path: Path, kind: str, name: str, known: set[str]) -> Iterator[Found]:
    if not any_of((name,))(known):
        message = f"no {kind} of the inventory {is_called(name)}"
        yield Found(path, "unknown-backend", message, did_you_mean(name, sorted(known)))


def _models(path: Path, names: Sequence[str], known: set[str]) -> Iterator[Found]:
    for place, name in enumerate(names):
        yield from _model((*path, place), name, known)


def _model(path: Path, name: str, known: set[str]) -> Iterator[Found]:
    if not any_of((name,))(known):
        message = f"no model of the inventory {is_called(name)}"
        yield Found(path, "unknown-model", message, did_you_mean(name, sorted(known)))
