"""When an unsure engine is asked to announce blocks anew, and when it is vouched for."""

import random
from dataclasses import replace

import pytest

from coordinator.audit import AGREEING, Audit, announces
from coordinator.engines import Engine, EngineView
from lineside.ids import EngineId, GroupId, NodeId
from lineside.signals import Events, Status

UNSURE = EngineView(
    Engine(
        id=EngineId("a"),
        base_url="http://a",
        endpoint="a",
        group=GroupId("g"),
        models=(),
        node=NodeId("n"),
        events="tcp://a:1",
        stride=4,
        version="0.32.0",
    ),
    linked=True,
    heard_age_s=0.1,
    status=Status(Events.UNSURE, "events were lost", block_size=32),
    generation="g1",
    digest_live=True,
)
LIVE = UNSURE._replace(status=Status(Events.LIVE, block_size=32))
A = UNSURE.engine.id


def audit(share: float = 1.0) -> Audit:
    return Audit(share, random.Random(1))


def agree(of: Audit, times: int, *, hits: int = 1, view: EngineView = UNSURE) -> None:
    for at in range(times):
        cached = 320 if at < hits else 0
        of.compare(view, cached, cached)


def test_a_run_of_right_predictions_with_a_hit_vouches_once() -> None:
    of = audit()
    agree(of, AGREEING - 1)
    assert of.take_due() == {}
    agree(of, 1, hits=0)
    assert of.take_due() == {A: "g1"}
    assert of.take_due() == {}
    agree(of, AGREEING)
    assert of.take_due() == {A: "g1"}  # it stayed unsure


def test_misses_alone_prove_nothing() -> None:
    of = audit()
    agree(of, 5 * AGREEING, hits=0)
    assert of.take_due() == {}
    agree(of, 1)
    assert of.take_due() == {A: "g1"}


@pytest.mark.parametrize(
    ("predicted", "reported", "agrees"),
    [
        pytest.param(320, 320 + 96, True, id="within stride and block above"),
        pytest.param(320, 320 - 96, True, id="within stride and block below"),
        pytest.param(320, 320 + 97, False, id="more than that above"),
        pytest.param(320, 320 - 97, False, id="more than that below"),
    ],
)
def test_a_wrong_prediction_starts_the_run_anew(
    predicted: int, reported: int, agrees: bool
) -> None:
    of = audit()
    agree(of, AGREEING - 1)
    of.compare(UNSURE, predicted, reported)
    assert bool(of.take_due()) is agrees
    agree(of, AGREEING - 1)
    assert of.take_due() == {}


def test_another_generation_starts_the_run_anew() -> None:
    of = audit()
    agree(of, AGREEING - 1)
    agree(of, 1, view=UNSURE._replace(generation="g2"))
    assert of.take_due() == {}


def test_an_engine_that_is_sure_needs_no_word() -> None:
    of = audit()
    agree(of, AGREEING - 1)
    agree(of, 5 * AGREEING, view=LIVE)
    agree(of, 1)
    assert of.take_due() == {}


def test_engines_that_are_gone_are_forgotten() -> None:
    of = audit()
    agree(of, AGREEING - 1)
    of.keep({EngineId("another")})
    agree(of, 1)
    assert of.take_due() == {}


@pytest.mark.parametrize(
    ("view", "asks"),
    [
        pytest.param(UNSURE, True, id="unsure"),
        pytest.param(LIVE, False, id="live"),
        pytest.param(UNSURE._replace(diverged=True), False, id="our own copy is wrong"),
        pytest.param(
            UNSURE._replace(engine=replace(UNSURE.engine, version="0.25.1")), False, id="too old"
        ),
    ],
)
def test_only_unsure_engines_that_know_it_are_asked(view: EngineView, asks: bool) -> None:
    assert audit().asks(view) is asks
    assert audit(share=0.0).asks(view) is False


def test_a_share_of_requests_asks() -> None:
    of = audit(share=0.2)
    assert 150 < sum(of.asks(UNSURE) for _ in range(1000)) < 250


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.26.0", True), ("v1.0", True), ("0.25.9", False), ("", False), ("main", False)],
)
def test_releases_from_0_26_announce_on_demand(version: str, known: bool) -> None:
    assert announces(version) is known
