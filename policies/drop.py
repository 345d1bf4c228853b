"""One exclude over one inventory: whom it takes at once, and whom once they are measured. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.compiled import CompiledDrop
from policies.facts import places
from policies.masks import Masks
from policies.match import FALSE, UNKNOWN, Asked, Condition, in_bounds, only_more
from policies.model import BackendSelector, Drop, Labels, Measure, Threshold
from policies.stage import Columns, Values
from policies.verdict import PassedBound, Source, Taken

BOUNDS: Mapping[str, tuple[str, Measure]] = {
    "queued_prompts": ("queuedPrompts", Measure.QUEUED_PROMPTS),
    "running_prompts": ("runningPrompts", Measure.RUNNING_PROMPTS),
    "kv_cache_usage": ("kvCacheUsage", Measure.KV_CACHE_USAGE),
    "gpu_utilization": ("gpuUtilization", Measure.GPU_UTILIZATION),
    "predicted_ttft": ("predictedTTFT", Measure.PREDICTED_TTFT),
    "predicted_e2e": ("predictedE2E", Measure.PREDICTED_E2E),
    "uncached_tokens": ("uncachedTokens", Measure.UNCACHED_TOKENS),
    "cost": ("cost", Measure.COST),
    "freshness": ("freshness", Measure.FRESHNESS),
}
"""Each threshold of a drop: its attribute, its name in documents, and what it is about."""


@dataclass(frozen=True, slots=True)
class _Limit:
    field: str
    measure: Measure
    threshold: Threshold
    passed: Callable[[Values, Sequence[int]], list[int]]


class BoundDrop:
    """An exclude over one inventory."""

    __slots__ = ("_limits", "_words", "condition", "mask", "measures", "source")

    def __init__(self, compiled: CompiledDrop, masks: Masks) -> None:
        drop = compiled.drop
        self.source: Source = compiled.source
        self.condition: Condition | None = compiled.condition
        self.mask = masks.part(backend=drop.backend, models=drop.models, pools=drop.pools)
        self._limits = tuple(_limits(drop))
        self._words = words(drop)
        self.measures = bool(self._limits)
        """Whether it needs measurements."""

    def holds(self, asked: Asked, unknown: dict[str, None]) -> bool:
        """Say whether a guard counts, and note what was not known: it counts then."""
        assert self.condition
        truth = self.condition.truth(asked)
        if truth is UNKNOWN:
            unknown.update(dict.fromkeys(self.condition.unknown(asked)))
        return truth is not FALSE

    def measure(self, alive: int, columns: Columns) -> tuple[int, tuple[str, ...]]:
        """Return which targets it drops, and the fields that were needed and are not known.

        All bounds must be passed. A target is kept where one is not, or is not known.
        """
        targets: Sequence[int] = places(alive & self.mask)
        read: list[Values] = []
        for limit in self._limits:
            values = columns.of(limit.measure)
            read.append(values)
            targets = limit.passed(values, targets)
            if not targets:
                return 0, ()
        unknown = tuple(
            limit.field
            for limit, values in zip(self._limits, read, strict=True)
            if any(values[at] is None for at in targets)
        )
        if unknown:
            targets = [at for at in targets if all(values[at] is not None for values in read)]
        return sum(1 << at for at in targets), unknown

    def taken(self, targets: int, columns: Columns | None = None) -> Taken:
        """Account for targets that were dropped, with what was measured if it was."""
        if columns is None:
            return Taken(self.source, targets, self._words)
        bounds = tuple(
            PassedBound(limit.field, limit.threshold, columns.of(limit.measure))
            for limit in self._limits
        )
        return Taken(self.source, targets, self._words, bounds)


def _limits(drop: Drop) -> Iterator[_Limit]:
    for attribute, (name, measure) in BOUNDS.items():
        threshold = getattr(drop, attribute)
        if threshold is not None:
            yield _Limit(name, measure, threshold, _passed(threshold))


def _passed(threshold: Threshold) -> Callable[[Values, Sequence[int]], list[int]]:
    """Return what says which targets pass all bounds, or may."""
    if (more := only_more(threshold)) is not None:
        return lambda values, targets: [
            at for at in targets if (value := values[at]) is None or value > more
        ]
    within = in_bounds(threshold)
    return lambda values, targets: [
        at for at in targets if (value := values[at]) is None or within(value)
    ]


def words(drop: Drop) -> str:
    """Say whom a drop is about, in its own words: `type Local, labels zone=a`."""
    said = [*_backend(drop.backend or BackendSelector())]
    if drop.models is not None:
        lists = (*(drop.models.names or ()), *(drop.models.classes or ()))
        said.append(f"models {' '.join((*lists, *_pairs(drop.models.labels)))}".rstrip())
    if drop.pools is not None:
        said.append(f"pools {' '.join(drop.pools)}".rstrip())
    if said or any(getattr(drop, attribute) is not None for attribute in BOUNDS):
        return ", ".join(said)
    return "everything"


def _backend(selector: BackendSelector) -> Iterator[str]:
    if selector.type is not None:
        yield f"type {selector.type.value}"
    if selector.names is not None:
        yield f"names {' '.join(selector.names)}".rstrip()
    if selector.labels:
        yield f"labels {' '.join(_pairs(selector.labels))}"


def _pairs(labels: Labels | None) -> list[str]:
    return [f"{name}={value}" for name, value in (labels or {}).items()]
