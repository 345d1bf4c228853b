"""What other routers would do, and an oracle, each in a scene that shows its rule."""

import random
from collections.abc import Callable

import pytest

from simulate.oracle import Oracle
from simulate.rivals import (
    DynamoLike,
    Formula,
    LeastLoaded,
    PrefixOnly,
    RoundRobin,
    Router,
    TextTree,
)
from simulate.traces import BLOCK_TOKENS, TraceRequest
from simulate.virtual import Job, Size, VirtualEngine


def job(number: int, *blocks: int, at: float = 0.0) -> Job:
    return Job(number, TraceRequest(at, len(blocks) * BLOCK_TOKENS, 100, blocks))


def made(kind: Callable[[int, random.Random], Router], engines: int = 3) -> Router:
    return kind(engines, random.Random(1))


def test_round_robin_takes_turns() -> None:
    router = made(RoundRobin)
    assert [router.choose(job(n, n), 0.0) for n in range(6)] == [0, 1, 2, 0, 1, 2]


def test_least_loaded_goes_where_the_fewest_are_and_counts_at_once() -> None:
    router = made(LeastLoaded)
    jobs = [job(n, n) for n in range(3)]
    places = [router.choose(each, 0.0) for each in jobs]
    assert sorted(p for p in places if p is not None) == [0, 1, 2]
    assert places[1] is not None
    router.first_token(jobs[1], places[1], 1.0)
    router.finished(jobs[1], places[1], 2.0)
    assert router.choose(job(3, 3), 2.0) == places[1]


def test_prefix_only_follows_the_cache_whatever_the_load() -> None:
    router = made(PrefixOnly)
    router.announced(2, [0, 1], [], 0.0)
    assert [router.choose(job(n, 0, 1, 10 + n), 0.0) for n in range(5)] == [2] * 5
    router.announced(1, [0, 1, 9], [], 0.0)
    router.announced(2, [], [1], 0.0)
    assert router.choose(job(9, 0, 1, 9), 0.0) == 1


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 1), (4.0, 0)])
def test_dynamo_weighs_prefills_against_blocks_in_use(scale: float, expected: int) -> None:
    """Engine 0 holds 4 of 8 blocks and uses 6 others: dearer, unless prefills count more."""
    router = DynamoLike(2, random.Random(1), scale=scale)
    router.announced(0, [0, 1, 2, 3, *range(100, 106)], [], 0.0)
    busy = job(0, *range(100, 106))
    assert router.choose(busy, 0.0) == 0
    router.first_token(busy, 0, 1.0)
    assert router.choose(job(1, *range(8)), 1.0) == expected


def test_dynamo_may_count_prompts_under_way_as_cached() -> None:
    router = DynamoLike(2, random.Random(1), scale=4.0, overlay=True)
    first = router.choose(job(0, 0, 1, 2, 3), 0.0)
    assert router.choose(job(1, 0, 1, 2, 3), 0.0) == first


def test_the_text_tree_follows_a_match_and_else_the_smallest_tree() -> None:
    router = made(TextTree, 2)
    first = router.choose(job(0, 0, 1, 2, 3), 0.0)
    assert router.choose(job(1, 0, 1, 2, 9), 0.0) == first
    assert router.choose(job(2, 20, 21), 0.0) != first
    assert router.choose(job(3, 0, 31, 32, 33), 0.0) != first  # a match of a quarter is too short


def test_the_text_tree_goes_by_load_while_that_is_uneven() -> None:
    router = made(TextTree, 2)
    first = router.choose(job(0, 0), 0.0)
    assert [router.choose(job(n, 0), 0.0) for n in range(1, 65)] == [first] * 64
    assert router.choose(job(65, 0), 0.0) != first


def test_the_formula_waits_for_a_prefix_that_is_worth_it() -> None:
    router = made(Formula, 2)
    long = list(range(16))
    router.announced(0, long, [], 0.0)
    assert router.choose(job(0, *long, 99), 0.0) == 0
    assert router.choose(job(1, *long, 98), 0.0) == 0
    assert router.choose(job(2, 50), 0.0) == 1


def engines_with(*blocks: tuple[int, ...], size: Size) -> list[VirtualEngine]:
    """Return engines that hold these blocks and idle."""
    engines = []
    for place, held in enumerate(blocks):
        engine = VirtualEngine(size=size)
        if held:
            engine.add(Job(-1 - place, TraceRequest(0.0, len(held) * BLOCK_TOKENS, 1, held)), 0.0)
            for _ in engine.advance(100.0):
                pass
        engines.append(engine)
    return engines


def test_the_oracle_takes_the_soonest_first_token() -> None:
    engines = engines_with((), (0, 1, 2), (0, 1), size=Size())
    oracle = Oracle(engines, random.Random(1))
    assert oracle.choose(job(0, 0, 1, 2, 3), 200.0) == 1


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 1), (1.0, 0)])
def test_the_oracle_with_beta_spares_those_who_come_after(beta: float, expected: int) -> None:
    """A cached prompt behind a queue, or computed anew a little sooner."""
    engines = engines_with(tuple(range(6)), (), size=Size())
    engines[0].add(job(0, *range(50, 56), at=200.0), 200.0)
    oracle = Oracle(engines, random.Random(1), beta=beta)
    assert oracle.choose(job(1, *range(6), 99, at=200.0), 200.0) == expected


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_oracle_is_exact_although_it_looks_at_few_engines(seed: int, beta: float) -> None:
    rng = random.Random(seed)
    engines = [VirtualEngine(size=Size(kv_tokens=100 * BLOCK_TOKENS)) for _ in range(4)]
    now = 0.0
    for number in range(60):
        now += rng.expovariate(6.0)
        for engine in engines:
            for _ in engine.advance(now):
                pass
        blocks = (0, rng.randrange(1, 6), *range(10 * number + 100, 10 * number + 105))
        each = job(number, *blocks[: rng.randrange(1, 8)], at=now)
        costs = []
        for engine in engines:
            forecast = engine.forecast(each.request, now)
            own_s = engine.speeds.base_step_s + engine.speeds.prefill(
                forecast.cached_tokens, each.request.input_tokens - forecast.cached_tokens
            )
            costs.append(forecast.first_token - now + beta * own_s)
        chosen = Oracle(engines, random.Random(0), beta=beta).choose(each, now)
        assert chosen is not None
        assert costs[chosen] == pytest.approx(min(costs))
        engines[rng.randrange(4)].add(each, now)
