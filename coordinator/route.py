"""Request facts, engines, overlaps and load to a decision: filter, predict, rank. Pure.

What is shown is `predicted_ttft_s`; what is minimised is `cost`, which also counts what this
prefill does to those who come after it. Nothing is remembered here: the caller accounts it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.cluster import Engine, EngineView
from coordinator.inflight import Queue
from coordinator.predict import Predictor
from coordinator.refusal import NoEngineReady
from lineside.hashing import UNIT
from lineside.ids import EngineId, ModelName

Target: TypeAlias = Engine
"""What a candidate stands for. Providers join this union."""

Units: TypeAlias = tuple[int, int, int]
"""Leading units that an engine holds in gpu; in gpu or cpu; in any medium. Never falls."""

BETA = 1.0
"""Weight of a request's own prefill as a delay for others."""

OUTSTANDING_S = 0.02
"""Cost of each request in flight: keeps decode batches even where nothing is queued."""

MEDIUM_WEIGHTS = (1.0, 0.8, 0.4)
"""What a cached block is worth in gpu, cpu, disk; the rest of it counts as uncached work."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision needs to know of a request."""

    model: ModelName
    prompt_tokens: int | None
    """`None`: unknown; engines are then ranked by load alone."""
    load_tokens: int
    """What the request weighs in an engine's queue: its prompt tokens, or an estimate."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine as the decision saw it.

    `dropped_by` is empty for those that were ranked; `reason` says why the engine was dropped or
    why its cache counted as empty.
    """

    target: Target
    model: ModelName
    type: str = "engine"
    overlap_tokens: int = 0
    uncached_tokens: int | None = None
    own_s: float = 0.0
    wait_s: float = 0.0
    outstanding: int = 0
    predicted_ttft_s: float | None = None
    cost: float = 0.0
    cache_state: str = ""
    reason: str = ""
    cache_age_s: float | None = None
    load_age_s: float | None = None
    dropped_by: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The ranked candidates, best first; then those that were dropped."""

    ranked: tuple[Candidate, ...]
    dropped: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate:
        """The one that gets the request; the others are its ordered fallbacks."""
        return self.ranked[0]


@dataclass(frozen=True, slots=True)
class Undecided:
    """No candidate was left, and why each was dropped."""

    refusal: NoEngineReady
    dropped: tuple[Candidate, ...]


def decide(
    facts: Facts,
    views: Sequence[EngineView],
    overlaps: Mapping[EngineId, Units],
    queue_of: Callable[[EngineId], Queue],
    predictor: Predictor,
    rng: random.Random,
) -> Decision | Undecided:
    """Rank the engines that serve a model; equal costs come in random order.

    `views` are the engines that serve the model; the caller has refused an unknown one.
    """
    ranked, dropped = [], []
    for view in views:
        if view.away:
            dropped.append(_dropped(facts, view, "away"))
        else:
            units = overlaps.get(view.engine.id, _NOTHING)
            queue = queue_of(view.engine.id)
            ranked.append(_candidate(facts, view, units, queue, predictor))
    if not ranked:
        return Undecided(NoEngineReady(facts.model), tuple(dropped))
    rng.shuffle(ranked)
    ranked.sort(key=_cost)
    return Decision(tuple(ranked), tuple(dropped))


_NOTHING: Units = (0, 0, 0)


def _cost(candidate: Candidate) -> float:
    return candidate.cost


def _dropped(facts: Facts, view: EngineView, by: str) -> Candidate:
    return Candidate(
        target=view.engine,
        model=facts.model,
        cache_state=view.cache_state,
        reason=view.away,
        cache_age_s=view.heard_age_s,
        load_age_s=view.load_age_s,
        dropped_by=by,
    )


def _candidate(
    facts: Facts, view: EngineView, units: Units, queue: Queue, predictor: Predictor
) -> Candidate:
    engine, prompt = view.engine, facts.prompt_tokens
    # Tokens in front of a picture are matched although the prompt's length is only estimated.
    cached, worth = _cached(units, view, facts.load_tokens if prompt is None else prompt)
    wait_s = queue.wait_s
    if queue.peers.queued_tokens:
        wait_s += predictor.own_s(engine, queue.peers.queued_tokens, 0)
    own_s = predictor.own_s(engine, max(0.0, facts.load_tokens - worth), cached)
    outstanding = queue.outstanding + queue.peers.outstanding
    return Candidate(
        target=engine,
        model=facts.model,
        overlap_tokens=cached,
        uncached_tokens=None if prompt is None else prompt - cached,
        own_s=own_s,
        wait_s=wait_s,
        outstanding=outstanding,
        predicted_ttft_s=None if prompt is None else wait_s + own_s,
        cost=wait_s + own_s + BETA * own_s + OUTSTANDING_S * outstanding,
        cache_state=view.cache_state,
        reason=view.reason,
        cache_age_s=view.heard_age_s,
        load_age_s=view.load_age_s,
    )


def _cached(units: Units, view: EngineView, prompt_tokens: int) -> tuple[int, float]:
    """Return the tokens that will be read from the cache, and what they are worth.

    The engine computes the last token in any case, and reuses whole blocks only.
    """
    if not units[2] or not view.cache_usable:
        return 0, 0.0
    block = view.block_size or UNIT
    cached = min(units[2] * UNIT, max(0, prompt_tokens - 1)) // block * block
    worth, below = 0.0, 0
    for depth, weight in zip(units, MEDIUM_WEIGHTS, strict=True):
        upto = min(depth * UNIT, cached)
        worth += weight * (upto - below)
        below = upto
    return cached, worth
