"""The engines in the running for a model, and what follows from their views alone. Pure.

Worked out once for all requests that see the same views; `measurement` adds the request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.engines import Engine, EngineView
from coordinator.targets import Layout
from lineside.hashing import UNIT
from lineside.ids import EngineId, GroupId, ModelName

SETS_KEPT = 4096
"""Sets of engines whose numbers a row remembers; all are looked up again when there are more."""


class Kind(NamedTuple):
    """What a prediction needs to know of an engine beside its cache. Engines are of few kinds."""

    block: int
    """Tokens in a block; 0: nothing can be said of its cache."""
    credit: float
    """How far what the index says of it counts."""
    engine: Engine
    """One of them, to ask the predictor about."""


class Row:
    """Engines in a fixed order, and their numbers in it. Kept while the engines are the same."""

    def __init__(self, engines: tuple[EngineId, ...]) -> None:
        self.engines = engines
        self.number_of = {engine: number for number, engine in enumerate(engines)}
        self._numbers: dict[tuple[EngineId, ...], tuple[int, ...]] = {}

    def numbers(self, engines: tuple[EngineId, ...]) -> tuple[int, ...]:
        """Return the numbers of some engines, without those that are not in the row."""
        found = self._numbers.get(engines)
        if found is None:
            if len(self._numbers) >= SETS_KEPT:
                self._numbers.clear()
            known = map(self.number_of.get, engines)
            found = self._numbers[engines] = tuple(each for each in known if each is not None)
        return found


@dataclass(frozen=True)
class Field:
    """What follows from the engines' views alone, worked out once for all who see the same.

    The sequences have one entry for each engine in the running.
    """

    model: ModelName
    views: tuple[EngineView, ...]
    row: Row
    groups: frozenset[GroupId]
    """That the engines are of: most often one."""
    places: tuple[int, ...]
    """In the inventory."""
    kinds: tuple[int, ...]
    """Places in `kind_of`."""
    kind_of: tuple[Kind, ...]
    at: Mapping[int, int]
    """From a place in the inventory to a number in the sequences."""
    out: tuple[tuple[int, EngineView, str], ...]
    """The others: place, view, and why."""
    _reported: "list[Reported]" = field(default_factory=list, init=False, repr=False, compare=False)
    """Made when a policy asks for it first."""

    @property
    def reported(self) -> "Reported":
        """What engines and their GPUs say: the same for all requests."""
        if not self._reported:
            loads = [view.fresh_load for view in self.views]
            self._reported.append(
                Reported(
                    [(load and load.waiting) or 0 for load in loads],
                    [(load and load.running) or 0 for load in loads],
                    [load.kv_cache_usage if load else None for load in loads],
                    [view.gpu_utilization for view in self.views],
                    [view.heard_age_s for view in self.views],
                )
            )
        return self._reported[0]


class Reported(NamedTuple):
    """Columns, one entry for each engine in the running; reports that are stale do not count."""

    queued: Sequence[int]
    running: Sequence[int]
    kv_cache_usage: Sequence[float | None]
    gpu_utilization: Sequence[float | None]
    heard_age_s: Sequence[float | None]


def field_of(
    model: ModelName,
    views: Iterable[EngineView],
    layout: Layout,
    class_of: Callable[[Engine], str],
    before: Field | None = None,
) -> Field:
    """Return which engines are in the running for a model.

    Failing engines are used where there are no others: what may fail beats what surely does.
    `class_of` names engines that are predicted alike. `before`: the field that this one replaces.
    """
    running: list[tuple[int, EngineView]] = []
    failing: list[tuple[int, EngineView]] = []
    out: list[tuple[int, EngineView, str]] = []
    for view in views:
        place = layout.place(view.engine.id, model)
        if place is None:
            continue  # discovered since the layout was made
        if view.away or view.asleep:
            out.append((place, view, "away" if view.away else "asleep"))
        else:
            (failing if view.failing else running).append((place, view))
    if running:
        out += [(place, view, "failing") for place, view in failing]
    running = running or failing
    numbers, kind_of = _kinds((view for _, view in running), class_of)
    engines = tuple(view.engine.id for _, view in running)
    return Field(
        model,
        tuple(view for _, view in running),
        before.row if before is not None and before.row.engines == engines else Row(engines),
        frozenset(view.engine.group for _, view in running),
        tuple(place for place, _ in running),
        numbers,
        kind_of,
        {place: number for number, (place, _) in enumerate(running)},
        tuple(out),
    )


def _kinds(
    views: Iterable[EngineView], class_of: Callable[[Engine], str]
) -> tuple[tuple[int, ...], tuple[Kind, ...]]:
    """Return each engine's kind as a place in the kinds, and the kinds."""
    places: dict[tuple[int, float, str], int] = {}
    kind_of: list[Kind] = []
    numbers = []
    for view in views:
        block = (view.block_size or UNIT) if view.cache_usable else 0
        key = block, view.credit, class_of(view.engine)
        if key not in places:
            places[key] = len(kind_of)
            kind_of.append(Kind(block, view.credit, view.engine))
        numbers.append(places[key])
    return tuple(numbers), tuple(kind_of)
