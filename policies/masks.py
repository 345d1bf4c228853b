"""Which targets of an inventory a selector takes, as bit masks: bit `n` is `targets[n]`. Pure.

Made once per inventory, so that a request costs a few operations on whole masks.
"""

from collections.abc import Callable, Iterable, Mapping

from policies.facts import Inventory, Model, Target, places
from policies.globs import any_of
from policies.match import Meant
from policies.model import BackendSelector, BackendType, Consider, Labels, ModelSelector
from policies.verdict import Ranked


class Masks:
    """Selectors over one inventory; of requested names it knows all that mean something."""

    def __init__(self, inventory: Inventory) -> None:
        self._targets, self._models = inventory.targets, inventory.models
        self.all = (1 << len(self._targets)) - 1
        self.local = self._mask(lambda target: target.type is BackendType.LOCAL)
        self._ranked: dict[str, list[Ranked]] = {}
        self._meant = {
            name: self._of(requested=name)
            for name in {name for model in self._models.values() for name in model.all_names}
        }

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
            named = any_of(pools)
            mask &= self._mask(lambda target: named(target.pools))
        return mask

    def backends(self, selector: BackendSelector) -> int:
        """Return the targets of the backends that a selector takes."""
        named = None if selector.names is None else any_of(selector.names)
        return self._mask(
            lambda target: (
                (selector.type is None or target.type is selector.type)
                and (named is None or named(target.names))
                and _has(target.labels, selector.labels)
            )
        )

    def models(self, selector: ModelSelector) -> int:
        """Return the targets that serve a model that a selector takes."""
        free = selector.names is None and selector.classes is None
        name, class_ = any_of(selector.names or ()), any_of(selector.classes or ())

        def takes(model: Model) -> bool:
            hit = free or name(model.aliases | {model.name}) or class_(model.classes)
            return hit and _has(model.labels, selector.labels)

        return self._serving(takes)

    def share(self, backend: str | None, model: str | None) -> int:
        """Return the targets of a backend or of a model, by exact name; neither: none."""
        mask = 0 if backend is None and model is None else self.all
        if backend is not None:
            mask &= self._mask(lambda target: backend in target.names)
        if model is not None:
            mask &= self._serving(lambda known: model == known.name or model in known.aliases)
        return mask

    def _serving(self, takes: Callable[[Model], bool]) -> int:
        names = {name for name, model in self._models.items() if takes(model)}
        return self._mask(lambda target: target.model in names)

    def _mask(self, takes: Callable[[Target], bool]) -> int:
        mask = 0
        for place, target in enumerate(self._targets):
            if takes(target):
                mask |= 1 << place
        return mask

    def _of(self, requested: str) -> Meant:
        models = [model for model in self._models.values() if requested in model.all_names]
        targets = self._serving(lambda model: requested in model.all_names)
        local = [self._targets[place] for place in places(targets & self.local)]
        return Meant(
            names=tuple(model.all_names for model in models),
            pools=frozenset(pool for target in local for pool in target.pools),
            targets=targets,
        )


_NOTHING = Meant()


def _has(labels: Mapping[str, str], wanted: Labels | None) -> bool:
    return all(labels.get(name) == value for name, value in (wanted or {}).items())
