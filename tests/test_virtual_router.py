"""The coordinator's core as a strategy of a replay."""

import random

import pytest

from cli.replay import prediction
from cli.strategies import WITHOUT
from cli.virtual_router import ManyModels, Paired, VirtualRouter, packed_prompt
from coordinator.load.inflight import InFlight, Loads
from coordinator.rules import Resources
from lineside import hashing
from lineside.ids import EngineId
from policies.load import load
from simulate.play import play
from simulate.traces import BLOCK_TOKENS, TraceRequest
from simulate.virtual import Job, VirtualEngine


def request(at: float, *blocks: int, answer: int = 20) -> TraceRequest:
    return TraceRequest(at, len(blocks) * BLOCK_TOKENS, answer, blocks)


def resources(*documents: str) -> Resources:
    loaded = load([(f"{number}.yaml", text.encode()) for number, text in enumerate(documents)])
    assert not loaded.findings
    return Resources.of([each.resource for each in loaded.resources])


def policy(rule: str) -> str:
    return (
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\n"
        f"metadata: {{ name: p, namespace: n }}\nspec: {{ rules: [ {{ name: r, {rule} }} ] }}\n"
    )


def test_prompts_have_the_same_tokens_where_they_have_the_same_blocks() -> None:
    one, other = packed_prompt([0, 1, 2]), packed_prompt([0, 1, 3])
    assert len(one) == 3 * BLOCK_TOKENS * 4
    shared = 2 * BLOCK_TOKENS // hashing.UNIT
    seed = hashing.seed(b"s")
    same = [
        a == b for a, b in zip(hashing.chain(seed, one), hashing.chain(seed, other), strict=True)
    ]
    assert same == [True] * shared + [False] * (len(same) - shared)


def test_a_prompt_goes_where_its_history_is() -> None:
    engines, router = [VirtualEngine() for _ in range(4)], VirtualRouter(4, random.Random(1))
    turns = [request(10.0 * n, *range(100), *range(1000, 1001 + n)) for n in range(5)]
    played = play(turns, engines, router)
    assert len(set(played.engines)) == 1
    assert [job.cached_tokens > 0 for job in played.jobs] == [False, True, True, True, True]


def test_what_an_engine_evicted_is_not_counted_on() -> None:
    router = VirtualRouter(2, random.Random(1))
    job = Job(0, request(0.0, *range(20)))
    first = router.choose(job, 0.0)
    assert first is not None
    router.first_token(job, first, 1.0)
    router.finished(job, first, 2.0)
    router.announced(first, list(range(20)), [], 2.1)
    again = Job(1, request(10.0, *range(20)))
    assert router.choose(again, 10.0) == first
    router.first_token(again, first, 10.1)
    router.finished(again, first, 10.2)
    router.announced(first, [], list(range(20)), 20.0)
    last = Job(2, request(30.0, *range(20)))
    assert router.choose(last, 30.0) != first  # the other one was given less lately


def test_predictions_are_paired_with_what_came_of_them() -> None:
    router = VirtualRouter(1, random.Random(1))
    play([request(float(n), n) for n in range(3)], [VirtualEngine()], router)
    assert [each.predicted_s for each in router.paired] == pytest.approx([0.034] * 3, rel=0.05)
    assert [each.ttft_s for each in router.paired] == pytest.approx([0.0337] * 3, rel=0.01)
    assert all(each.low_s < each.predicted_s < each.high_s for each in router.paired)


def test_the_first_500_predictions_are_not_judged() -> None:
    wrong, right = Paired(1.0, 9.0, 0.9, 1.1), Paired(1.0, 1.25, 0.9, 1.1)
    assert prediction([wrong] * 500) is None
    assert prediction([wrong] * 500 + [right] * 3 + [Paired(1.0, 1.0, 0.9, 1.1)]) == {
        "requests": 4,
        "median_relative_error": pytest.approx(0.2),
        "within_band": 0.25,
    }


def test_a_prediction_without_a_band_claims_nothing() -> None:
    found = prediction([Paired(1.0, 1.25, 1.0, 1.0)] * 501)
    assert found == {
        "requests": 1,
        "median_relative_error": pytest.approx(0.2),
        "within_band": None,
    }


def test_policies_count_who_is_refused() -> None:
    reject = policy("reject: { status: 403, message: refused }")
    router = VirtualRouter(2, random.Random(1), resources=resources(reject), model="m")
    assert router.choose(Job(0, request(0.0, 1)), 0.0) is None
    assert (router.refused, router.elsewhere) == (1, 0)


def test_policies_count_who_goes_to_a_provider() -> None:
    provider = (
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\n"
        "metadata: { name: far, namespace: n }\n"
        "spec: { type: OpenAI, models: [ { name: m } ] }\n"
    )
    far = policy("route: { select: [ { type: Provider } ] }")
    router = VirtualRouter(2, random.Random(1), resources=resources(provider, far), model="m")
    assert router.choose(Job(0, request(0.0, 1)), 0.0) is None
    assert (router.refused, router.elsewhere) == (0, 1)


def test_resources_of_several_models_are_refused() -> None:
    provider = (
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\n"
        "metadata: { name: far, namespace: n }\n"
        "spec: { type: OpenAI, models: [ { name: other } ] }\n"
    )
    with pytest.raises(ManyModels):
        VirtualRouter(2, random.Random(1), resources=resources(provider), model="m")


@pytest.mark.parametrize("name", WITHOUT)
def test_each_term_can_be_left_out(name: str) -> None:
    engines = [VirtualEngine() for _ in range(2)]
    requests = [request(0.01 * n, 0, n // 2, n) for n in range(1, 20)]
    router = WITHOUT[name].make(engines, random.Random(1))
    played = play(requests, engines, router)
    assert all(job.finished is not None for job in played.jobs)


@pytest.mark.parametrize(
    ("inflight", "wait_s"), [(InFlight(), 0.5), (InFlight(head_credit=0.0), 1.0)]
)
def test_progress_may_count_for_nothing(inflight: InFlight, wait_s: float) -> None:
    engine = EngineId("e")
    lease = inflight.take(engine, 1000, 1.0, 0.0, 100.0)
    assert inflight.loads([engine], 0.5) == Loads([1], [1], [wait_s])
    inflight.first_token(lease, 1.0)
    assert inflight.loads([engine], 1.0) == Loads([1], [0], [0.0])
    inflight.release(lease, 2.0)
    assert inflight.loads([engine], 2.0) == Loads([0], [0], [0.0])
