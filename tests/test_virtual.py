"""The engine in virtual time against the simulator's own scheduler, and its forecasts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from simulate.core import Core, Limits, Request, Speeds
from simulate.play import FOREVER_S
from simulate.traces import BLOCK_TOKENS, TraceRequest
from simulate.virtual import ROOMY, Job, Size, VirtualEngine


@dataclass(frozen=True)
class Course:
    """What became of one request."""

    first_token: float
    finished: float
    cached_tokens: int | None


def by_core(requests: Sequence[TraceRequest], size: Size = ROOMY) -> list[Course]:
    """Let the simulator's scheduler serve requests, in virtual time."""
    limits = Limits(
        blocks=size.kv_tokens // 16,
        max_num_seqs=size.max_num_seqs,
        max_num_batched_tokens=size.max_num_batched_tokens,
    )
    core, numbers = Core(limits, Speeds()), dict[int, int]()
    firsts, ends, cached = dict[int, float](), dict[int, float](), dict[int, int | None]()
    left, now = list(enumerate(requests)), 0.0

    def arrive(until: float) -> None:
        while left and left[0][1].at_s <= until:
            number, of = left.pop(0)
            request = Request(prompt(of), [1] * of.output_tokens)
            numbers[id(request)] = number
            core.add(request)

    while len(ends) < len(requests):
        arrive(now)
        step = core.begin()
        if step is None:
            now = left[0][1].at_s
            continue
        now += step.duration_s
        for emission in core.finish(step).emissions:
            number = numbers[id(emission.request)]
            cached[number] = emission.request.cached_tokens
            if emission.first:
                firsts[number] = now
            if emission.done:
                ends[number] = now
    return [Course(firsts[n], ends[n], cached[n]) for n in range(len(requests))]


def prompt(request: TraceRequest) -> list[int]:
    tokens = [block for block in request.blocks for _ in range(BLOCK_TOKENS)]
    return tokens[: request.input_tokens]


def by_virtual(requests: Sequence[TraceRequest], size: Size = ROOMY) -> list[Course]:
    engine, jobs = VirtualEngine(size=size), []
    for number, request in enumerate(requests):
        for _ in engine.advance(request.at_s):
            pass
        jobs.append(Job(number, request))
        engine.add(jobs[-1], request.at_s)
    for _ in engine.advance(FOREVER_S):
        pass
    assert engine.outstanding == 0
    return [_course(job) for job in jobs]


def _course(job: Job) -> Course:
    assert job.first_token is not None and job.finished is not None
    return Course(job.first_token, job.finished, job.cached_tokens)


def traffic(seed: int, count: int, rate: float) -> list[TraceRequest]:
    """Return conversations that grow, over a beginning that many share."""
    rng, at, fresh = random.Random(seed), 0.0, 1
    histories: list[tuple[int, ...]] = [(0,)]
    requests = []
    for _ in range(count):
        at += rng.expovariate(rate)
        more = rng.choice([1, 2, 5, 20])
        blocks = (*rng.choice(histories), *range(fresh, fresh + more))
        fresh += more
        whole = len(blocks) * BLOCK_TOKENS
        # Only whole blocks go on: a part of one would be shared more finely by the simulator.
        tokens = whole - rng.choice([0, 1, 17, 300])
        if tokens == whole:
            histories.append(blocks)
        requests.append(TraceRequest(at, tokens, rng.choice([1, 2, 30, 200]), blocks))
    return requests


@pytest.mark.parametrize("rate", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("seed", range(3))
def test_steps_take_as_long_as_the_simulators(seed: int, rate: float) -> None:
    requests = traffic(seed, 30, rate)
    ours, theirs = by_virtual(requests), by_core(requests)
    assert [each.cached_tokens for each in ours] == [each.cached_tokens for each in theirs]
    assert [each.first_token for each in ours] == pytest.approx(
        [each.first_token for each in theirs], rel=1e-4
    )
    assert [each.finished for each in ours] == pytest.approx(
        [each.finished for each in theirs], rel=1e-4
    )


def test_no_more_run_at_once_than_there_is_room_for() -> None:
    requests = [TraceRequest(0.001 * n, 512, 10, (n,)) for n in range(6)]
    size = Size(max_num_seqs=2)
    assert by_virtual(requests, size) == [
        Course(pytest.approx(c.first_token), pytest.approx(c.finished), c.cached_tokens)
        for c in by_core(requests, size)
    ]


def test_a_prompt_waits_for_room_in_the_cache() -> None:
    first, second = TraceRequest(0.0, 1024, 100, (0, 1)), TraceRequest(0.0, 1024, 100, (2, 3))
    one, two = by_virtual([first, second], Size(kv_tokens=5 * BLOCK_TOKENS))
    assert two.first_token > one.finished


def test_the_tail_of_the_prompt_longest_unused_goes_first() -> None:
    engine = VirtualEngine(size=Size(kv_tokens=5 * BLOCK_TOKENS))
    gone: list[int] = []
    for number, blocks in enumerate([(0, 1, 2), (5,), (6, 7)]):
        engine.add(Job(number, TraceRequest(0.0, len(blocks) * 512, 1, blocks)), number * 10.0)
        for happened in engine.advance(number * 10.0 + 5):
            gone += happened.removed
    # The third prompt and its answer need three blocks; one of five was free.
    assert gone == [2, 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_forecast_comes_true_if_nothing_else_arrives(seed: int) -> None:
    requests = traffic(seed, 30, 4.0)
    size = Size(kv_tokens=80 * BLOCK_TOKENS)
    engine = VirtualEngine(size=size)
    for number, request in enumerate(requests[:-1]):
        for _ in engine.advance(request.at_s):
            pass
        engine.add(Job(number, request), request.at_s)
    last = requests[-1]
    for _ in engine.advance(last.at_s):
        pass
    promised, job = engine.soonest(last, last.at_s), Job(len(requests), last)
    forecast = engine.forecast(last, last.at_s)
    engine.add(job, last.at_s)
    for _ in engine.advance(FOREVER_S):
        pass
    assert (job.first_token, job.cached_tokens) == (
        pytest.approx(forecast.first_token),
        forecast.cached_tokens,
    )
    assert promised.first_token <= forecast.first_token + 1e-9
    assert promised.cached_tokens >= forecast.cached_tokens
