"""Decision records, decided once more by other policies. Pure.

A record has the candidates of its time with what was measured of them, and no headers: rules that
match on those are not met. Backends that it does not name are there where resources name them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from policies.evaluate import Bound, compile_
from policies.facts import Inventory, Measured, RequestFacts, Truth
from policies.model import BackendType, InferencePolicy, Measure, Resource
from policies.state import ClusterState, EngineState, Measurements, ProviderState, cluster_of
from policies.verdict import Chosen, Denied

MAX_BOUND = 64
"""Inventories that are kept bound; the oldest goes first. Records of an hour have a few."""


class Ages(msgspec.Struct, frozen=True):
    """How old what is known of a candidate was."""

    cache_s: float | None = None


class RecordedCandidate(msgspec.Struct, frozen=True):
    """A candidate of a record, as far as policies may ask. Records have more."""

    id: str
    model: str = ""
    type: str = "local"
    endpoint: str = ""
    pools: tuple[str, ...] = ()
    outstanding: float | None = None
    queued_prompts: float | None = None
    running_prompts: float | None = None
    uncached_tokens: float | None = None
    overlap_tokens: float | None = None
    predicted_ttft_s: float | None = None
    kv_cache_usage: float | None = None
    gpu_utilization: float | None = None
    predicted_e2e_s: float | None = None
    freshness_s: float | None = None
    cost: float | None = None
    """What `minimize: PredictedTTFT` orders by, and no money."""
    lean_s: float = 0.0
    """What it orders by is so much less: the coordinator leant to it."""
    price: float | None = None
    ages: Ages = Ages()

    @property
    def backend_type(self) -> BackendType:
        """Who computes it."""
        is_provider = self.type.lower() == BackendType.PROVIDER.value.lower()
        return BackendType.PROVIDER if is_provider else BackendType.LOCAL

    def value(self, measure: Measure) -> float | None:
        """Return what was measured; prompts that wait and run are ours in flight where unsaid."""
        match measure:
            case Measure.PREDICTED_TTFT:
                return self.predicted_ttft_s
            case Measure.QUEUED_PROMPTS:
                return self.outstanding or 0 if self.queued_prompts is None else self.queued_prompts
            case Measure.RUNNING_PROMPTS:
                known = self.running_prompts
                return self.outstanding or 0 if known is None else known
            case Measure.UNCACHED_TOKENS:
                return self.uncached_tokens
            case Measure.CACHED_TOKENS:
                return self.overlap_tokens
            case Measure.KV_CACHE_USAGE:
                return self.kv_cache_usage
            case Measure.GPU_UTILIZATION:
                return self.gpu_utilization
            case Measure.COST:
                return self.price
            case Measure.FRESHNESS:
                return self.ages.cache_s if self.freshness_s is None else self.freshness_s
            case Measure.PREDICTED_E2E:
                return self.predicted_e2e_s


class Recorded(msgspec.Struct, frozen=True):
    """A decision record, as far as policies may ask."""

    id: str
    model: str
    tenant: str = ""
    api: str = ""
    stream: bool = False
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    prompt_tokens: int | None = None
    candidates: tuple[RecordedCandidate, ...] = ()

    def facts(self) -> RequestFacts:
        """Return the request. Its id stands for its conversation: both sides split it alike."""
        known = {truth.value: truth for truth in Truth}
        return RequestFacts(
            model=self.model,
            tenant=self.tenant,
            api=self.api,
            stream=self.stream,
            input_tokens=self.prompt_tokens,
            tags={name: known.get(state, Truth.UNKNOWN) for name, state in self.tags.items()},
            conversation=self.id,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request, in words that can be compared and counted."""

    words: str
    """The winner with its model, or the refusal with who refused."""
    rewrites: Any = None


class Replay:
    """One set of policies, with the resources beside it."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._resources = resources
        policies = [each for each in resources if isinstance(each, InferencePolicy)]
        self._policies = compile_(policies)
        self._bound: dict[object, tuple[Inventory, Bound]] = {}

    @property
    def names_headers(self) -> frozenset[str]:
        """Headers that conditions ask for and no record has."""
        return self._policies.names_headers

    def outcome(self, record: Recorded) -> Outcome:
        """Decide a record's request once more."""
        inventory, bound = self._binding(record)
        plan = bound.plan(record.facts(), {})
        if isinstance(plan, Denied):
            return Outcome(f"refused {plan.status} by {plan.source}")
        # The same number for both sides, so that ties end alike.
        verdict = plan.decide(_measured(inventory, record), random.Random(0))
        if not isinstance(verdict, Chosen):
            return Outcome(f"refused 503 by {verdict.source}")
        target = inventory.targets[verdict.ranked[0].target]
        return Outcome(f"{target.id} with {target.model}", verdict.set)

    def _binding(self, record: Recorded) -> tuple[Inventory, Bound]:
        key = tuple((c.id, c.model, c.type, c.endpoint, c.pools) for c in record.candidates)
        if key not in self._bound:
            inventory = cluster_of(self._resources, _state(record)).inventory
            if len(self._bound) >= MAX_BOUND:
                del self._bound[next(iter(self._bound))]
            self._bound[key] = inventory, self._policies.bind(inventory)
        return self._bound[key]


def _state(record: Recorded) -> ClusterState:
    """Return who was there. What they measured is asked of the record itself."""
    engines: dict[str, EngineState] = {}
    providers: dict[str, ProviderState] = {}
    for each in record.candidates:
        model = each.model or record.model
        if each.backend_type is BackendType.PROVIDER:
            known = providers.get(each.id, ProviderState(name=each.id))
            providers[each.id] = msgspec.structs.replace(known, models=(*known.models, model))
        else:
            url = each.endpoint if "://" in each.endpoint else f"http://{each.endpoint or each.id}"
            engine = engines.get(
                each.id, EngineState(id=each.id, url=url, models=(), pools=each.pools)
            )
            engines[each.id] = msgspec.structs.replace(engine, models=(*engine.models, model))
    return ClusterState(engines=tuple(engines.values()), providers=tuple(providers.values()))


def _measured(inventory: Inventory, record: Recorded) -> Measured:
    of = {(each.id, each.model or record.model): each for each in record.candidates}
    there = [of.get((target.id, target.model)) for target in inventory.targets]
    idle = Measurements()

    def column(measure: Measure, targets: Sequence[int]) -> list[float | None]:
        return [
            _unsaid(measure, idle) if (said := there[at]) is None else said.value(measure)
            for at in targets
        ]

    def ranking(targets: Sequence[int]) -> list[float | None]:
        return [
            None
            if (said := there[at]) is None
            else said.predicted_ttft_s
            if said.cost is None
            else said.cost - said.lean_s
            for at in targets
        ]

    return Measured(column, ranking)


def _unsaid(measure: Measure, idle: Measurements) -> float | None:
    is_count = measure in (Measure.QUEUED_PROMPTS, Measure.RUNNING_PROMPTS)
    return idle.queued_prompts if is_count else None
