"""Two classes of engines in one group, one half as fast as the other, in virtual time."""

import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from cli.virtual_router import VirtualRouter
from simulate.arrivals import WORKLOADS, Shape, traced
from simulate.core import Speeds
from simulate.play import Played, Strategy, play
from simulate.rivals import LeastLoaded, PrefixOnly
from simulate.virtual import USUAL, VirtualEngine

HALF = Speeds(
    base_step_s=2 * USUAL.base_step_s,
    prefill_s_per_token=2 * USUAL.prefill_s_per_token,
    attention_s_per_token_pair=2 * USUAL.attention_s_per_token_pair,
    decode_s_per_sequence=2 * USUAL.decode_s_per_sequence,
    decode_s_per_context_token=2 * USUAL.decode_s_per_context_token,
)
VERSIONS = ["fast", "slow"] * 4
SHAPE = Shape(engines=8, rate_per_s=30.0, seconds=20.0, answer_tokens=100)


def told_apart() -> VirtualRouter:
    return VirtualRouter(8, random.Random(1), versions=VERSIONS)


def taken_for_alike() -> VirtualRouter:
    return VirtualRouter(8, random.Random(1))


def least_loaded() -> LeastLoaded:
    return LeastLoaded(8, random.Random(1))


def prefix_only() -> PrefixOnly:
    return PrefixOnly(8, random.Random(1))


def run(workload: str, strategy: Strategy) -> Played:
    engines = [VirtualEngine(USUAL if name == "fast" else HALF) for name in VERSIONS]
    return play(traced(WORKLOADS[workload](SHAPE)), engines, strategy)


@cache
def played(workload: str, make: Callable[[], Strategy]) -> Played:
    return run(workload, make())


def mean_s(workload: str, make: Callable[[], Strategy]) -> float:
    return statistics.fmean(job.ttft_s for job, _ in played(workload, make).counted())


def share_of_fast(workload: str, make: Callable[[], Strategy]) -> float:
    """Return the share of prompt tokens that were computed on the faster engines."""
    computed = [0, 0]
    for job, engine in played(workload, make).counted():
        computed[engine % 2] += job.request.input_tokens - job.cached_tokens
    return computed[0] / sum(computed)


@pytest.mark.parametrize("workload", ["agentic", "shared-prefix", "unrelated"])
@pytest.mark.parametrize("other", [least_loaded, prefix_only, taken_for_alike])
def test_first_tokens_come_sooner_than_by(other: Callable[[], Strategy], workload: str) -> None:
    assert mean_s(workload, told_apart) < mean_s(workload, other)


@pytest.mark.parametrize("workload", ["agentic", "unrelated"])
def test_the_faster_cards_get_their_share(workload: str) -> None:
    """Twice as fast is two thirds of the work where all are busy, and more where some idle."""
    assert 0.62 < share_of_fast(workload, told_apart) < 0.95
    assert share_of_fast(workload, least_loaded) < share_of_fast(workload, told_apart)


def test_each_class_is_predicted_by_its_own_model() -> None:
    assert off(told_apart()) < 0.05
    assert off(taken_for_alike()) > 0.15


def off(router: VirtualRouter) -> float:
    """Return how far off predictions are, in the median, once something was learned."""
    run("unrelated", router)
    late: Sequence[float] = [
        abs(each.predicted_s - each.ttft_s) / each.ttft_s
        for each in router.paired[len(router.paired) // 2 :]
    ]
    return statistics.median(late)
