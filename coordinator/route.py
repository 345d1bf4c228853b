"""Request facts, engines, overlaps and load to a decision: filter, predict, rank. Pure.

What is shown is `predicted_ttft_s`; what is minimised is `cost`, which also counts what this
prefill does to those who come after it. Nothing is remembered here: the caller accounts it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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


class Candidate(NamedTuple):
    """One engine as the decision saw it. A tuple: the hot path makes one for each engine."""

    view: EngineView
    model: ModelName
    overlap_tokens: int = 0
    uncached_tokens: int | None = None
    own_s: float = 0.0
    wait_s: float = 0.0
    outstanding: int = 0
    cost: float = 0.0
    dropped_by: str = ""
    """Empty for those that were ranked."""

    @property
    def target(self) -> Target:
        """Where the request would go."""
        return self.view.engine

    @property
    def type(self) -> str:
        """The kind of target."""
        return "engine"

    @property
    def predicted_ttft_s(self) -> float | None:
        """What is shown, and paired with the outcome; `None` where the prompt is unknown."""
        return None if self.uncached_tokens is None else self.wait_s + self.own_s

    @property
    def reason(self) -> str:
        """Why the engine was dropped, or why its cache counted as empty."""
        return self.view.away or self.view.reason


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
            dropped.append(Candidate(view, facts.model, dropped_by="away"))
        else:
            engine = view.engine.id
            units = overlaps.get(engine)
            ranked.append(_candidate(facts, view, units, queue_of(engine), predictor))
    if not ranked:
        return Undecided(NoEngineReady(facts.model), tuple(dropped))
    chance = rng.random
    ranked.sort(key=lambda candidate: (candidate.cost, chance()))
    return Decision(tuple(ranked), tuple(dropped))


def _candidate(
    facts: Facts, view: EngineView, units: Units | None, queue: Queue, predictor: Predictor
) -> Candidate:
    engine, prompt = view.engine, facts.prompt_tokens
    cached, worth = 0, 0.0
    if units is not None and view.cache_usable:
        # Tokens before a picture are matched although the prompt's length is only estimated.
        limit = facts.load_tokens if prompt is None else prompt
        cached, worth = _cached(units, view.block_size or UNIT, limit)
    own_s = predictor.own_s(engine, max(0.0, facts.load_tokens - worth), cached)
    wait_s, outstanding = queue.wait_s, queue.outstanding
    if queue.peers.outstanding:
        outstanding += queue.peers.outstanding
        wait_s += predictor.own_s(engine, queue.peers.queued_tokens, 0)
    return Candidate(
        view,
        facts.model,
        cached,
        None if prompt is None else prompt - cached,
        own_s,
        wait_s,
        outstanding,
        wait_s + own_s + BETA * own_s + OUTSTANDING_S * outstanding,
    )


def _cached(units: Units, block: int, prompt_tokens: int) -> tuple[int, float]:
    """Return the tokens that will be read from the cache, and what they are worth.

    The engine computes the last token in any case, and reuses whole blocks only.
    """
    cached = min(units[2] * UNIT, max(0, prompt_tokens - 1)) // block * block
    if units[0] * UNIT >= cached:
        return cached, float(cached)
    worth, below = 0.0, 0
    for depth, weight in zip(units, MEDIUM_WEIGHTS, strict=True):
        upto = min(depth * UNIT, cached)
        worth += weight * (upto - below)
        below = upto
    return cached, worth
