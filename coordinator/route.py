"""Request facts, engines, overlaps and load to a decision: filter, predict, rank. Pure.

What is shown is `predicted_ttft_s`; what is minimised is `cost`, which also counts what this
prefill does to those who come after it, and how much its engine was given lately. Nothing is
remembered here: the caller accounts it.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from coordinator.engines import Engine, EngineView
from coordinator.inflight import Queue
from coordinator.predict import Predictor
from coordinator.recent import SHARE
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

ASLEEP = "the engine sleeps"
"""Why an engine that could be reached gets nothing."""

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


class Held(NamedTuple):
    """What engines hold of the prompt, in leading units."""

    indexed: Mapping[EngineId, Units] = MappingProxyType({})
    """By the engines' own word."""
    claimed: Mapping[EngineId, int] = MappingProxyType({})
    """By our own decisions, in gpu, whatever the index says (yet)."""


class Candidate(NamedTuple):
    """One engine as the decision saw it. A tuple: the hot path makes one for each engine."""

    view: EngineView
    model: ModelName
    overlap_tokens: int = 0
    """What the index says will be read from the cache: compared with the engine's own report."""
    speculative_tokens: int = 0
    """What our own decisions in flight will have added by then; counts, and is not compared."""
    uncached_tokens: int | None = None
    own_s: float = 0.0
    wait_s: float = 0.0
    outstanding: int = 0
    recent_s: float = 0.0
    """What recent work adds to the cost."""
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
    def cached_tokens(self) -> int:
        """What the decision counts on."""
        return self.overlap_tokens + self.speculative_tokens

    @property
    def predicted_ttft_s(self) -> float | None:
        """What is shown, and paired with the outcome; `None` where the prompt is unknown."""
        return None if self.uncached_tokens is None else self.wait_s + self.own_s

    @property
    def reason(self) -> str:
        """Why the engine was dropped, or why its cache counted as empty."""
        view = self.view
        return ASLEEP if self.dropped_by == "asleep" else view.away or view.failing or view.reason


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


class Runner(NamedTuple):
    """An engine in the running. `block` 0: nothing can be said of its cache."""

    view: EngineView
    engine: Engine
    block: int
    credit: float
    """How far what the index says of it counts."""


@dataclass(frozen=True, slots=True)
class Field:
    """What follows from the engines' views alone, worked out once for all who see the same."""

    runners: tuple[Runner, ...]
    engines: tuple[EngineId, ...]
    """Of the runners."""
    dropped: tuple[tuple[EngineView, str], ...]
    """The others, and why."""


def field_of(views: Iterable[EngineView]) -> Field:
    """Return which engines are in the running.

    Failing engines are used where there are no others: what may fail beats what surely does.
    """
    runners: list[Runner] = []
    failing: list[Runner] = []
    dropped: list[tuple[EngineView, str]] = []
    for view in views:
        if view.away or view.asleep:
            dropped.append((view, "away" if view.away else "asleep"))
        else:
            block = (view.block_size or UNIT) if view.cache_usable else 0
            (failing if view.failing else runners).append(
                Runner(view, view.engine, block, view.credit)
            )
    if runners:
        dropped += [(runner.view, "failing") for runner in failing]
    runners = runners or failing
    engines = tuple(runner.engine.id for runner in runners)
    return Field(tuple(runners), engines, tuple(dropped))


def decide(
    facts: Facts,
    field: Field,
    held: Held,
    queues_of: Callable[[Sequence[EngineId]], Sequence[Queue]],
    recent_of: Callable[[Engine], float],
    predictor: Predictor,
    rng: random.Random,
) -> Decision | Undecided:
    """Rank the engines that serve a model; equal costs come in random order.

    `field` is of the engines that serve the model; the caller has refused an unknown one.
    `recent_of` returns the seconds of work that an engine was given lately.
    """
    dropped = tuple(Candidate(view, facts.model, dropped_by=why) for view, why in field.dropped)
    if not field.runners:
        return Undecided(NoEngineReady(facts.model), dropped)
    queues = queues_of(field.engines)
    # What was counts as far as nothing is: queues say it better while there are any.
    idle = sum(not queue[0] for queue in queues) / len(queues)
    ranked = _candidates(facts, field, held, queues, SHARE * idle, recent_of, predictor)
    chance = rng.random
    ranked.sort(key=lambda candidate: (candidate.cost, chance()))
    return Decision(tuple(ranked), dropped)


def _candidates(
    facts: Facts,
    field: Field,
    held: Held,
    queues: Sequence[Queue],
    recent_share: float,
    recent_of: Callable[[Engine], float],
    predictor: Predictor,
) -> list[Candidate]:
    """Predict each engine's work. The hot loop of a decision, so it calls little."""
    model, prompt, load = facts.model, facts.prompt_tokens, facts.load_tokens
    # Tokens before a picture are matched although the prompt's length is only estimated. The last
    # token is computed in any case.
    limit = max(0, (load if prompt is None else prompt) - 1)
    indexed, claimed, own = held.indexed.get, held.claimed.get, predictor.own_s
    candidates = []
    for runner, name, queue in zip(field.runners, field.engines, queues, strict=True):
        view, engine, block, credit = runner
        outstanding, _, wait_s, peers = queue
        overlap, ahead, worth = 0, 0, 0.0
        if block:
            if units := indexed(name):
                overlap, worth = _cached(units, block, limit)
                worth *= credit
            if claim := claimed(name):
                reach = min(claim * UNIT, limit) // block * block
                if reach > overlap:
                    ahead, worth = reach - overlap, float(reach)
        own_s = own(engine, load - worth if worth < load else 0.0, overlap + ahead)
        if peers.outstanding:
            outstanding += peers.outstanding
            wait_s += own(engine, peers.queued_tokens, 0)
        recent_s = recent_share and recent_share * recent_of(engine)
        cost = wait_s + own_s + BETA * own_s + OUTSTANDING_S * outstanding + recent_s
        left = None if prompt is None else prompt - overlap - ahead
        fields = view, model, overlap, ahead, left, own_s, wait_s, outstanding, recent_s, cost, ""
        candidates.append(Candidate._make(fields))  # half the time of a call
    return candidates


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
