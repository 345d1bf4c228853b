"""Engines and providers in the order of an inventory: what policies mean by a target. Pure.

A layout is made anew when engines or resources change, and kept until then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from coordinator.candidates import Backend
from lineside.ids import EngineId, ModelName
from policies.facts import Inventory, places
from policies.model import BackendType


class Reach(msgspec.Struct, frozen=True):
    """Which backends whoever sends a request on can make use of."""

    subset: frozenset[str] | None = None
    """Endpoints, or hosts with all their ports; `None`: all."""
    translates: bool = True
    """It puts answers into the client's API."""
    nowhere: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Endpoints that it cannot find, and why."""


ANYWHERE = Reach()

MASKS = 1000
"""Sets of places whose models are kept; all are forgotten when there are more."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An inventory, and the backend at each of its places."""

    inventory: Inventory
    backends: Sequence[Backend]
    _places: Mapping[tuple[str, ModelName], int]
    providers: int = 0
    """The places of providers, as a bit mask."""
    _models: dict[int, tuple[ModelName, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, inventory: Inventory, backends: Mapping[str, Backend]) -> "Layout":
        """Lay out an inventory whose targets' ids are these backends'."""
        return cls(
            inventory,
            [backends[target.id] for target in inventory.targets],
            {(each.id, each.model): place for place, each in enumerate(inventory.targets)},
            sum(
                1 << place
                for place, each in enumerate(inventory.targets)
                if each.type is BackendType.PROVIDER
            ),
        )

    def models(self, mask: int) -> tuple[ModelName, ...]:
        """Return the models of some places, sorted."""
        found = self._models.get(mask)
        if found is None:
            if len(self._models) >= MASKS:
                self._models.clear()
            targets = self.inventory.targets
            found = tuple(sorted({targets[place].model for place in places(mask)}))
            self._models[mask] = found
        return found

    def outside(self, places: Iterable[int], subset: frozenset[str]) -> list[int]:
        """Return those places whose endpoints are not in a subset: HOST:PORT, or a HOST's all."""
        return [place for place in places if not is_within(self.backends[place], subset)]

    def place(self, engine: EngineId, model: ModelName) -> int | None:
        """Return where an engine's model is; `None`: it was not known when this was made."""
        return self._places.get((engine, model))


def is_within(backend: Backend, subset: frozenset[str]) -> bool:
    """Whether a subset names a backend's endpoint, HOST:PORT, or its HOST with all ports."""
    return backend.endpoint in subset or _host(backend.endpoint) in subset


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].removeprefix("[").removesuffix("]")
