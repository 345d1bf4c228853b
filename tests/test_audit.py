"""When an unsure engine is asked to announce blocks anew, and when it is vouched for."""

import random
from dataclasses import replace

import pytest

from coordinator.engines import NOTHING, Doubt, Engine, EngineView, Word
from coordinator.holdings.audit import AGREEING, FOREIGN, RECENT, WRONG, Audit, Tally, announces
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
    status=Status(Events.UNSURE, "events were lost", block_size=32, announce=True),
    generation="g1",
    digest_live=True,
)
LIVE = UNSURE._replace(status=Status(Events.LIVE, block_size=32))
A = UNSURE.engine.id
GUESSED = LIVE._replace(engine=replace(LIVE.engine, events_guessed=True))
TOO_FEW = f"{WRONG} of the last 7 comparable requests hit more cached tokens than its events say"


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
        pytest.param(320, 320 + 95, True, id="what stride and block explain"),
        pytest.param(320, 320 - 32, True, id="the last block of a hit was computed again"),
        pytest.param(320, 320 + 96, False, id="more than stride and block explain"),
        pytest.param(320, 320 - 33, False, id="more than a block below"),
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


def contradict(of: Audit, times: int, view: EngineView = LIVE, reported: int = 320) -> None:
    for _ in range(times):
        of.compare(view, 0, reported)


def test_contradictions_are_an_alarm_and_the_agent_is_told_once() -> None:
    of = audit()
    agree(of, 2, hits=2, view=LIVE)
    contradict(of, WRONG - 1)
    assert (of.word(A), of.take_doubts()) == (NOTHING, {})
    assert of.compare(LIVE, 0, 320) is True
    assert of.word(A) == Word(TOO_FEW)
    assert of.take_doubts() == {A: Doubt("g1", TOO_FEW, overstated=False)}
    assert of.take_doubts() == {}


def test_contradictions_that_are_few_and_far_between_are_none() -> None:
    of = audit()
    for _ in range(10):
        contradict(of, WRONG - 1)
        agree(of, RECENT - WRONG + 1, view=LIVE)
    assert (of.word(A), of.take_doubts()) == (NOTHING, {})


def test_an_alarm_ends_with_a_run_of_right_predictions() -> None:
    of = audit()
    contradict(of, WRONG)
    of.take_doubts()
    doubted = UNSURE._replace(generation="g2", word=of.word(A))
    agree(of, AGREEING - 1, view=doubted)
    assert of.word(A) != NOTHING
    assert of.compare(doubted, 320, 320) is True
    assert (of.word(A), of.take_due()) == (NOTHING, {A: "g2"})


def test_an_alarm_ends_when_the_engine_began_anew() -> None:
    of = audit()
    contradict(of, WRONG)
    said = LIVE._replace(word=of.word(A))
    assert of.look([said, UNSURE._replace(generation="g2", word=of.word(A))]) == set()
    assert of.look([said._replace(generation="g2")]) == {A}
    assert of.word(A) == NOTHING


def settle(of: Audit, view: EngineView) -> None:
    """Let what could not be told at once be told, with the engine as it is by then."""
    of.look([view])
    of.look([view])


def test_what_was_evicted_since_the_decision_is_no_contradiction() -> None:
    of = audit()
    for _ in range(WRONG):
        of.compare(LIVE, 320, 0)
    settle(of, LIVE._replace(removed=5))  # five keys of 64 tokens
    assert (of.word(A), of.tallies()) == (NOTHING, {A: Tally(evicted=WRONG)})
    for _ in range(WRONG):
        of.compare(LIVE._replace(removed=5), 320, 0)
    settle(of, LIVE._replace(removed=9))
    assert of.word(A).mispredicted.endswith("hit fewer cached tokens than its events say")


def test_what_a_generation_promised_that_is_gone_is_not_judged() -> None:
    of = audit()
    for _ in range(WRONG):
        of.compare(LIVE, 320, 0)
    settle(of, LIVE._replace(generation="g2"))
    assert (of.word(A), of.tallies()) == (NOTHING, {A: Tally()})


def test_what_an_unsure_agent_leaves_out_is_no_contradiction() -> None:
    of = audit()
    contradict(of, 5 * WRONG, view=UNSURE)
    assert of.word(A) == NOTHING
    for _ in range(WRONG):
        of.compare(UNSURE, 320, 0)
    settle(of, UNSURE)
    how = of.word(A).mispredicted
    assert how.endswith("hit fewer cached tokens than its events say")
    assert of.take_doubts() == {A: Doubt("g1", how, overstated=True)}


def test_a_cache_that_is_not_used_is_not_compared() -> None:
    of = audit()
    contradict(of, 5 * WRONG, view=LIVE._replace(digest_live=False))
    assert (of.word(A), dict(of.tallies())) == (NOTHING, {})


def test_what_was_on_its_way_is_no_contradiction_and_no_proof() -> None:
    of = audit()
    for _ in range(5 * WRONG):
        assert of.compare(UNSURE, 0, 192, excused=192) is False
    assert (of.word(A), dict(of.tallies())) == (NOTHING, {})
    for _ in range(WRONG):
        of.compare(LIVE, 0, 320, excused=192)
    assert of.word(A) != NOTHING


def test_a_silent_agent_is_not_held_to_its_last_word() -> None:
    of = audit()
    contradict(of, 5 * WRONG, view=LIVE._replace(heard_age_s=3.0))
    assert of.word(A) == NOTHING


def test_every_comparison_is_counted() -> None:
    of = audit()
    for predicted, reported in ((320, 320), (320, 384), (0, 320), (320, 0)):
        of.compare(LIVE, predicted, reported)
    settle(of, LIVE)
    assert of.tallies() == {
        A: Tally(compared=4, too_many=1, too_few=1, tokens_too_many=320, tokens_too_few=384)
    }


def test_a_guessed_address_is_believed_at_the_first_hit_that_it_explains() -> None:
    of = audit()
    agree(of, 5, hits=0, view=GUESSED)
    assert of.word(A) == NOTHING
    agree(of, 1, view=GUESSED)
    assert of.word(A) == Word(proven=True)


def test_a_guessed_address_that_explains_nothing_is_anothers() -> None:
    of = audit()
    contradict(of, FOREIGN, view=GUESSED)
    word = of.word(A)
    assert word == Word(
        "3 of the last 3 comparable requests hit more cached tokens than its events say"
    )
    seen = GUESSED._replace(word=word)
    assert (seen.cache_state, seen.credit) == ("unproven", 0.0)
    assert seen.reason == (
        "3 of the last 3 comparable requests hit more cached tokens than its events say:"
        " vLLM's usual port may be another engine's, so name `kv` for this one"
    )
    agree(of, AGREEING - 1, view=seen)  # one accident is not enough any more
    assert of.word(A) == word
    agree(of, 1, view=seen)
    assert of.word(A) == Word(proven=True)


def test_a_guess_that_was_believed_is_doubted_and_its_agent_is_not() -> None:
    of = audit()
    agree(of, 1, view=GUESSED)
    contradict(of, WRONG, view=GUESSED._replace(word=of.word(A)))
    assert of.word(A).proven is False
    assert of.word(A).mispredicted
    assert of.take_doubts() == {}


def test_another_address_is_another_guess() -> None:
    of = audit()
    agree(of, 1, view=GUESSED)
    elsewhere = replace(GUESSED.engine, events="tcp://a:2")
    agree(of, 1, hits=0, view=GUESSED._replace(engine=elsewhere))
    assert of.word(A) == NOTHING


@pytest.mark.parametrize(
    ("view", "asks"),
    [
        pytest.param(UNSURE, True, id="unsure"),
        pytest.param(LIVE, False, id="live"),
        pytest.param(UNSURE._replace(diverged=True), False, id="our own copy is wrong"),
        pytest.param(
            UNSURE._replace(status=Status(Events.UNSURE, "asking the engine again")),
            False,
            id="behind, so that copies are counted",
        ),
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
