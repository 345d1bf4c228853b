"""What a request is to each engine that may serve it: overlap, wait, own prefill, cost. Pure.

What is shown is `predicted_ttft_s`; what `minimize: PredictedTTFT` orders by is `cost`, which also
counts what this prefill does to those who come after it (decision 009), and how much its engine was
given lately. Nothing is remembered here.

Measurements are columns, one entry for each runner of a field; a `Candidate` is made of them for
those who look at one.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from coordinator.candidates import Candidate
from coordinator.load.fit import Params
from coordinator.load.inflight import Loads
from coordinator.load.predict import Predictor
from coordinator.load.pressure import Beta
from coordinator.load.recent import SHARE
from coordinator.runners import Field, Kind
from lineside.hashing import UNIT
from lineside.ids import EngineId, GroupId
from policies.model import Measure

Units: TypeAlias = tuple[int, int, int]
"""Leading units that an engine holds in gpu; in gpu or cpu; in any medium. Never falls."""

OUTSTANDING_S = 0.02
"""Cost of each request in flight: keeps decode batches even where nothing is queued."""

LEAN_S = 0.1
"""How much dearer than the best an engine may be that a coordinator leans to: see `leaning`."""

FULL_S = 1e4
"""What puts an engine behind all that are not full, whatever their queues."""

MEDIUM_WEIGHTS = (1.0, 0.8, 0.4)
"""What a cached block is worth in gpu, cpu, disk; the rest of it counts as uncached work."""


class Facts(msgspec.Struct, frozen=True):
    """What a decision needs to know of a request, for one of the models that may serve it."""

    prompt_tokens: int | None
    """`None`: unknown; engines are then ranked by load alone."""
    load_tokens: int
    """What the request weighs in an engine's queue: its prompt tokens, or an estimate."""


class Held(NamedTuple):
    """What engines hold of the prompt, in leading units."""

    indexed: Sequence[tuple[Units, tuple[EngineId, ...]]] = ()
    """By the engines' own word: engines that hold as much together, each in one place."""
    claimed: Mapping[EngineId, int] = MappingProxyType({})
    """By our own decisions, in gpu, whatever the index says (yet)."""


class Own(NamedTuple):
    """What a request's own prefill is to engines that hold as much of the prompt and are alike."""

    overlap: int
    """Tokens that will be read from the cache, by the index."""
    ahead: int
    """What our own decisions in flight will have added by then."""
    own_s: float
    weighed_s: float
    """With what it costs those that come after it."""
    units: Units | None
    """What it follows from, but for claims."""

    @property
    def cached(self) -> int:
        """What the decision counts on."""
        return self.overlap + self.ahead


NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Part:
    """What was measured of a field's runners, for one request. Each list has one entry for each."""

    field: Field
    facts: Facts
    loads: Loads
    own: Sequence[Own]
    recent_s: Sequence[float] | None
    """What recent work adds to the cost; `None`: nothing."""
    cost: Sequence[float]
    full: Container[EngineId] = ()
    """Newcomers that have had their share: see `ranking`."""
    leaned: frozenset[int] = NONE
    """Numbers of those that are preferred while there are other coordinators."""

    _ranking: list[Sequence[float]] = dataclasses.field(
        default_factory=list, init=False, repr=False, compare=False
    )
    """Made when somebody asks for it first."""

    @property
    def ranking(self) -> Sequence[float]:
        """What engines are ordered by: their cost, those last that are full for what is cold."""
        if not self._ranking:
            self._ranking.append(self._ranked())
        return self._ranking[0]

    def _ranked(self) -> Sequence[float]:
        ranking = self.cost
        if self.full:
            half = self.facts.load_tokens / 2
            ranking = [
                each + FULL_S if name in self.full and own.cached < half else each
                for each, name, own in zip(self.cost, self.field.row.engines, self.own, strict=True)
            ]
        if self.leaned:
            ranking = [each - self._lean_s(number) for number, each in enumerate(ranking)]
        return ranking

    def _lean_s(self, number: int) -> float:
        return LEAN_S if number in self.leaned else 0.0

    def candidate(
        self,
        number: int,
        stage: str = "",
        dropped_by: str = "",
        why: str = "",
        e2e_s: float | None = None,
        price: float | None = None,
        pools: frozenset[str] = frozenset(),
    ) -> Candidate:
        """Return a runner as the decision saw it, with what is known of it beside."""
        view, prompt = self.field.views[number], self.facts.prompt_tokens
        own, loads = self.own[number], self.loads
        return Candidate(
            target=view.engine,
            model=self.field.model,
            view=view,
            overlap_tokens=own.overlap,
            speculative_tokens=own.ahead,
            uncached_tokens=None if prompt is None else prompt - own.cached,
            own_s=own.own_s,
            wait_s=loads.wait_s[number],
            outstanding=loads.outstanding[number],
            recent_s=self.recent_s[number] if self.recent_s else 0.0,
            cost=self.cost[number],
            queued=loads.queued[number],
            running=loads.outstanding[number] - loads.queued[number],
            is_full=self.ranking[number] > self.cost[number],
            lean_s=self._lean_s(number),
            predicted_ttft_s=self.ttft_s(number),
            predicted_e2e_s=e2e_s,
            price=price,
            pools=pools,
            stage=stage,
            dropped_by=dropped_by,
            why=why,
        )

    def ttft_s(self, number: int) -> float | None:
        """Return a runner's predicted time to first token; `None`: the prompt is not known."""
        if self.facts.prompt_tokens is None:
            return None
        return self.loads.wait_s[number] + self.own[number].own_s

    def column(self, measure: Measure) -> Sequence[float | None]:
        """Return one measurement of all runners; `None`: not known."""
        prompt, loads, reported = self.facts.prompt_tokens, self.loads, self.field.reported
        match measure:
            case Measure.QUEUED_PROMPTS:
                return list(map(max, loads.queued, reported.queued))
            case Measure.RUNNING_PROMPTS:
                return list(map(max, map(sub, loads.outstanding, loads.queued), reported.running))
            case Measure.KV_CACHE_USAGE:
                return reported.kv_cache_usage
            case Measure.GPU_UTILIZATION:
                return reported.gpu_utilization
            case Measure.FRESHNESS:
                return reported.heard_age_s
            case Measure.CACHED_TOKENS if prompt is not None:
                return [own.cached for own in self.own]
            case Measure.UNCACHED_TOKENS if prompt is not None:
                return [prompt - own.cached for own in self.own]
            case Measure.PREDICTED_TTFT:
                return [self.ttft_s(number) for number in range(len(self.own))]
            case _:
                return [None] * len(self.own)


def measure(
    field: Field,
    facts: Facts,
    held: Held,
    loads: Loads,
    recent_of: Callable[[Sequence[EngineId], Iterable[GroupId]], Sequence[float]],
    predictor: Predictor,
    beta: Beta,
    outstanding_s: float = OUTSTANDING_S,
    full: Container[EngineId] = (),
) -> Part:
    """Predict what a request is to each engine of a field.

    `loads` are the engines'. `recent_of` returns the seconds of work that each was given lately.
    `beta` weighs the request's own prefill as a delay for those that come after it, and
    `outstanding_s` is the cost of each request in flight. Engines that are `full` come last,
    unless they hold most of the prompt.
    """
    own = _own(field, facts, held, predictor, beta)
    cost = [
        wait_s + each[3] + outstanding_s * many
        for wait_s, each, many in zip(loads.wait_s, own, loads.outstanding, strict=True)
    ]
    recent = None
    # What was counts as far as nothing is: queues say it better while there are any.
    if idle := loads.outstanding.count(0):
        share = SHARE * (idle / len(own))
        recent = [share * seconds for seconds in recent_of(field.row.engines, field.groups)]
        cost = [each + more for each, more in zip(cost, recent, strict=True)]
    return Part(field, facts, loads, own, recent, cost, full)


def _own(field: Field, facts: Facts, held: Held, predictor: Predictor, beta: Beta) -> list[Own]:
    """Return what the prefill is to each engine. The hot loop.

    Engines of a kind that hold as much are alike, so each likeness is worked out once.
    """
    row, kinds = field.row, field.kinds
    prefills = [
        _prefill(kind, predictor.params(kind.engine), facts, beta) for kind in field.kind_of
    ]
    nothing = [prefill(None, 0) for prefill in prefills]
    own = [nothing[kind] for kind in kinds]
    for units, engines in held.indexed:
        alike = [prefill(units, 0) for prefill in prefills]
        for number in row.numbers(engines):
            own[number] = alike[kinds[number]]
    claims: dict[tuple[int, Units | None, int], Own] = {}
    for name, claim in held.claimed.items():
        if (place := row.number_of.get(name)) is not None:
            like = kinds[place], own[place].units, claim
            if like not in claims:
                claims[like] = prefills[like[0]](*like[1:])
            own[place] = claims[like]
    return own


def _prefill(
    kind: Kind, params: Params, facts: Facts, beta: Beta
) -> Callable[[Units | None, int], Own]:
    """Return what works out a prefill on an engine that holds so much, and will by a claim."""
    load, prompt, block = facts.load_tokens, facts.prompt_tokens, kind.block
    # Tokens before a picture are matched although the prompt's length is only estimated. The last
    # token is computed in any case.
    limit = max(0, (load if prompt is None else prompt) - 1)
    credit, own_s_of = kind.credit, params.own_s

    def own(units: Units | None, claim: int) -> Own:
        overlap, ahead, worth = 0, 0, 0.0
        if block and units:
            overlap, worth = _cached(units, block, limit)
            worth *= credit
        if block and claim:
            reach = min(claim * UNIT, limit) // block * block
            if reach > overlap:
                ahead, worth = reach - overlap, float(reach)
        own_s = own_s_of(load - worth if worth < load else 0.0, overlap + ahead)
        return Own(overlap, ahead, own_s, own_s * (1 + beta(own_s)), units)

    return own


def _cached(units: Units, block: int, limit: int) -> tuple[int, float]:
    """Return the tokens that will be read from the cache, and what they are worth.

    The engine reuses whole blocks only.
    """
    in_gpu, _, anywhere = units
    cached = min(anywhere * UNIT, limit) // block * block
    if in_gpu * UNIT >= cached:
        return cached, float(cached)
    worth, below = 0.0, 0
    for depth, weight in zip(units, MEDIUM_WEIGHTS, strict=True):
        upto = min(depth * UNIT, cached)
        worth += weight * (upto - below)
        below = upto
    return cached, worth
