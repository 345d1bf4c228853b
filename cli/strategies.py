"""The strategies that a replay compares, by name: the product, its rivals, oracles, and the product
with one of its terms left out.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cli.virtual_router import (
    NO_RESOURCES,
    PRIOR_STEP_S,
    PRIOR_TOKENS_PER_S,
    USUAL,
    Parts,
    VirtualRouter,
)
from coordinator.engines import Engine
from coordinator.holdings.overlay import Overlay
from coordinator.load.inflight import InFlight
from coordinator.load.predict import FixedRate
from coordinator.load.pressure import Beta, Pressure
from coordinator.load.recent import RecentWork
from coordinator.rules import Resources
from lineside.ids import ModelName
from simulate import rivals
from simulate.oracle import Oracle
from simulate.play import Strategy
from simulate.virtual import VirtualEngine

Make = Callable[[Sequence[VirtualEngine], random.Random], Strategy]
"""Makes a strategy for engines, with its own randomness."""


class Named(NamedTuple):
    """A strategy, and what it is in a few words."""

    make: Make
    what: str


def lineside(
    parts: Parts = USUAL, resources: Resources = NO_RESOURCES, model: str = "replayed"
) -> Make:
    """Return the product, made of these parts, under these policies."""
    return lambda engines, rng: VirtualRouter(len(engines), rng, parts, resources, model)


def _rival(kind: Callable[[int, random.Random], Strategy]) -> Make:
    return lambda engines, rng: kind(len(engines), rng)


STRATEGIES: Mapping[str, Named] = {
    "lineside": Named(lineside(), "the product"),
    "oracle": Named(Oracle, "true caches and queues: the soonest first token"),
    "oracle_beta1": Named(
        partial(Oracle, beta=1.0, outstanding_s=0.005),
        "the same, its own prefill counted twice, 5 ms for each request in flight",
    ),
    "random": Named(_rival(rivals.Random), "any engine"),
    "round_robin": Named(_rival(rivals.RoundRobin), "one after the other"),
    "least_loaded": Named(_rival(rivals.LeastLoaded), "the fewest requests in flight"),
    "prefix_only": Named(_rival(rivals.PrefixOnly), "the longest cached prefix"),
    "dynamo_like": Named(_rival(rivals.DynamoLike), "Dynamo's cost, scale 1"),
    "dynamo_like_4": Named(
        _rival(partial(rivals.DynamoLike, scale=4.0, overlay=True)),
        "the same, scale 4, prompts under way count as cached",
    ),
    "text_tree": Named(_rival(rivals.TextTree), "SGLang's rule: 0.3, 64, 1.5"),
}


class NoBeta(Pressure):
    """Lets a prefill cost those that come after it nothing."""

    def beta(self, model: ModelName, wait_s: Sequence[float], now: float) -> Beta:
        return lambda own_s: 0.0


class NoRecent(RecentWork):
    """Remembers nothing."""

    def note(self, engine: Engine, own_s: float) -> None:
        """Forget it at once."""


WITHOUT: Mapping[str, Named] = {
    "no_overlay": Named(
        lineside(Parts(overlay=lambda: Overlay(limit_keys=0))), "own decisions not as cached"
    ),
    "no_progress": Named(
        lineside(Parts(inflight=partial(InFlight, head_credit=0.0))),
        "no credit for a prefill's progress",
    ),
    "no_beta": Named(lineside(Parts(pressure=NoBeta)), "nothing for those who come after"),
    "no_outstanding": Named(lineside(Parts(outstanding_s=0.0)), "nothing for requests in flight"),
    "no_recent": Named(lineside(Parts(recent=NoRecent)), "nothing for recent work"),
    "no_learning": Named(
        lineside(Parts(predictor=lambda: FixedRate(PRIOR_TOKENS_PER_S, PRIOR_STEP_S))),
        "speeds as configured, for good",
    ),
}
"""The product with one term left out."""

ALL: Mapping[str, Named] = {**STRATEGIES, **WITHOUT}
