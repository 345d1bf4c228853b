"""Which targets of an inventory a selector takes, as bit masks: bit `n` is `targets[n]`. Pure.

Made once per inventory, so that a request costs a few operations on whole masks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from policies.facts import Inventory, Model, places
from policies.globs import any_of, compile_glob
from policies.match import Meant
from policies.model import BackendSelector, BackendType, Consider, ModelSelector
from policies.verdict import Ranked

T = TypeVar("T")


class Masks:
    """Selectors over one inventory; of requested names it knows all that mean something."""

    def __init__(self, inventory: Inventory) -> None:
        self._targets, self._models = inventory.targets, inventory.models
        self._types: _Index[BackendType] = _Index((t.type,) for t in self._targets)
        self._names: _Index[str] = _Index(t.names for t in self._targets)
        self._pools: _Index[str] = _Index(t.pools for t in self._targets)
        self._labels: _Index[tuple[str, str]] = _Index(t.labels.items() for t in self._targets)
        self._serving: _Index[str] = _Index((t.model,) for t in self._targets)
        self.all = (1 << len(self._targets)) - 1
        self.local = self._types.get(BackendType.LOCAL, 0)
        self._ranked: dict[str, list[Ranked]] = {}
        called: dict[str, list[Model]] = {}
        for model in self._models.values():
            for name in model.all_names:
                called.setdefault(name, []).append(model)
        self._meant = {name: self._of(models) for name, models in called.items()}

    def ranked(self, stage: str) -> list[Ranked]:
        """Return what stands for each target in a stage of that name, made once for all."""
        if stage not in self._ranked:
            self._ranked[stage] = [Ranked(place, stage) for place in range(len(self._targets))]
        return self._ranked[stage]

    def meant(self, requested: str) -> Meant:
        """Return what a requested name means: nothing, if the inventory does not have it."""
        return self._meant.get(requested, _NOTHING)

    def consider(self, entries: Iterable[Consider]) -> int:
        """Return the union of what the entries name."""
        union = 0
        for entry in entries:
            union |= self.part(backend=entry.backend, models=entry.models, pools=entry.pools)
        return union

    def part(
        self,
        backend: BackendSelector | None = None,
        models: ModelSelector | None = None,
        pools: tuple[str, ...] | None = None,
    ) -> int:
        """Return what all the given selectors take; none given: all."""
        mask = self.all if backend is None else self.backends(backend)
        if models is not None:
            mask &= self.models(models)
        if pools is not None:
            mask &= _fitting(self._pools, pools)
        return mask

    def backends(self, selector: BackendSelector) -> int:
        """Return the targets of the backends that a selector takes."""
        mask = self.all if selector.type is None else self._types.get(selector.type, 0)
        if selector.names is not None:
            mask &= _fitting(self._names, selector.names)
        for label in (selector.labels or {}).items():
            mask &= self._labels.get(label, 0)
        return mask

    def models(self, selector: ModelSelector) -> int:
        """Return the targets that serve a model that a selector takes."""
        free = selector.names is None and selector.classes is None
        name, class_ = any_of(selector.names or ()), any_of(selector.classes or ())
        return self._of_models(
            model
            for model in self._models.values()
            if (free or name(model.aliases | {model.name}) or class_(model.classes))
            and (selector.labels or {}).items() <= model.labels.items()
        )

    def share(self, backend: str | None, model: str | None) -> int:
        """Return the targets of a backend or of a model, by exact name; neither: none."""
        mask = 0 if backend is None and model is None else self.all
        if backend is not None:
            mask &= self._names.get(backend, 0)
        if model is not None:
            known = self._models.values()
            mask &= self._of_models(m for m in known if model == m.name or model in m.aliases)
        return mask

    def by_model(self) -> tuple[tuple[str, int], ...]:
        """Return each model that targets serve, with those."""
        return tuple(self._serving.items())

    def _of_models(self, models: Iterable[Model]) -> int:
        mask = 0
        for model in models:
            mask |= self._serving.get(model.name, 0)
        return mask

    def _of(self, models: Sequence[Model]) -> Meant:
        targets = self._of_models(models)
        local = [self._targets[place] for place in places(targets & self.local)]
        return Meant(
            names=tuple(model.all_names for model in models),
            pools=frozenset(pool for target in local for pool in target.pools),
            targets=targets,
        )


class _Index(dict[T, int]):
    """For each value, the targets that have it."""

    def __init__(self, values: Iterable[Iterable[T]]) -> None:
        super().__init__()
        for place, of_target in enumerate(values):
            for value in of_target:
                self[value] = self.get(value, 0) | 1 << place


def _fitting(index: Mapping[str, int], patterns: Iterable[str]) -> int:
    mask = 0
    for pattern in patterns:
        if "*" not in pattern:
            mask |= index.get(pattern, 0)
            continue
        fits = compile_glob(pattern)
        for name, targets in index.items():
            if fits(name):
                mask |= targets
    return mask


_NOTHING = Meant()
