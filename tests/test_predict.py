"""What is learned of prefills: the right numbers through noise, no difference where none is."""

import math
import random
from collections.abc import Callable

import pytest

from coordinator.engines import Engine, ServedModel
from coordinator.load.fit import Params
from coordinator.load.predict import CLASSES, SPLIT_AFTER, Learned
from lineside.ids import EngineId, GroupId, ModelName, NodeId

TRUE = Params(0.004, 8e-5, 2e-9, 0.008)
"""A slower card than the prior says, with attention that counts."""


def engine(name: str, group: str = "g") -> Engine:
    models = (ServedModel(ModelName("m")),)
    return Engine(EngineId(name), f"http://{name}", name, GroupId(group), models, NodeId("n"))


A, B, C = engine("a"), engine("b"), engine("c")


def learned(
    count: int, seed: int = 1, slow: float = 1.0, spoil: Callable[[float], float] = float
) -> Learned:
    """Return what `count` noisy prefills of each of three engines teach; `c` is `slow` times so."""
    model, rng = Learned(20_000.0, 0.008), random.Random(seed)
    for _ in range(count):
        for each, factor in ((A, 1.0), (B, 1.0), (C, slow)):
            uncached, overlap = 16 + rng.expovariate(1 / 4000), rng.choice([0, 0, 4000, 16_000])
            seconds = factor * TRUE.own_s(uncached, overlap) * rng.lognormvariate(0, 0.1)
            model.learn(each, uncached, overlap, spoil(seconds))
    return model


@pytest.mark.parametrize("uncached", [100, 2000, 10_000])
@pytest.mark.parametrize("overlap", [0, 8000])
def test_a_few_hundred_prefills_teach_the_times(uncached: int, overlap: int) -> None:
    predicted = learned(150).params(A).own_s(uncached, overlap)
    assert predicted == pytest.approx(TRUE.own_s(uncached, overlap), rel=0.08)


def test_outliers_move_little() -> None:
    rng = random.Random(7)
    model = learned(150, spoil=lambda seconds: seconds * (20 if rng.random() < 0.03 else 1))
    assert model.params(A).own_s(4000, 0) == pytest.approx(TRUE.own_s(4000, 0), rel=0.15)


def test_before_anything_is_seen_the_configured_rate_counts() -> None:
    assert Learned(20_000.0, 0.008).params(A).own_s(4000, 0) == pytest.approx(0.208)


def test_engines_that_are_alike_are_predicted_alike() -> None:
    model = learned(2 * SPLIT_AFTER, slow=1.05)
    assert model.params(A) == model.params(B) == model.params(C)


def test_an_engine_that_is_far_from_its_class_is_one_of_its_own() -> None:
    model = learned(4 * SPLIT_AFTER, slow=2.0)
    assert model.params(A) == model.params(B)
    ratio = model.params(C).own_s(4000, 0) / model.params(A).own_s(4000, 0)
    assert ratio == pytest.approx(2.0, rel=0.15)
    model.keep({A.id: None, B.id: None})
    assert model.params(C) == model.params(A)


def test_another_model_is_another_class() -> None:
    other = engine("a", group="other")
    assert learned(50).params(other) == Learned(20_000.0, 0.008).params(other)


def test_of_too_many_classes_the_first_is_forgotten_whole() -> None:
    model, fresh = Learned(20_000.0, 0.008), Learned(20_000.0, 0.008)
    every = [engine("a", group=f"g{number}") for number in range(CLASSES + 1)]
    for each in every:
        model.learn(each, 4000, 0, 5.0)
        model.observe(each, 1.0, 5.0)
    assert len(model.shown()) == CLASSES
    first = every[0]
    assert (model.params(first), model.band(first)) == (fresh.params(first), fresh.band(first))


def test_what_was_learned_survives_a_restart_and_nonsense_does_not_come_in() -> None:
    model, again = learned(50), Learned(20_000.0, 0.008)
    nonsense: list[dict[str, object]] = [
        {"sums": [math.nan] * 9, "error": 1, "count": 1},
        {"sums": [1e308] * 9, "error": 1, "count": 1},
        {"sums": [10**400] * 9, "error": 1, "count": 1},
        {"sums": [1.0] * 9, "error": 1, "count": -4},
        {"sums": [1.0] * 8, "error": 1, "count": 1},
    ]
    saved = model.saved() | {"odd": 1} | {str(n): each for n, each in enumerate(nonsense)}
    again.restore(saved)
    assert again.params(A) == model.params(A)
    assert again.shown().keys() == model.shown().keys()


def test_no_parameter_is_ever_negative() -> None:
    model, rng = Learned(20_000.0, 0.008), random.Random(3)
    for _ in range(300):
        model.learn(A, rng.uniform(0, 30_000), rng.uniform(0, 30_000), rng.choice([0.0, 1e-4, 5.0]))
        assert min(model.params(A)) >= 0


def test_the_band_holds_eight_of_ten() -> None:
    model, rng = Learned(20_000.0, 0.008), random.Random(5)
    ratios = [rng.lognormvariate(0.2, 0.4) for _ in range(3000)]
    held = 0
    for at, ratio in enumerate(ratios):
        low, high = model.band(A)
        held += at >= 1000 and low <= ratio <= high
        model.observe(A, 0.5, 0.5 * ratio)
    assert 0.75 <= held / 2000 <= 0.85
