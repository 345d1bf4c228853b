"""Which engine gets a request: overlap, load, ties, and what is never chosen."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engines import ASLEEP_FOR_S, EngineView
from coordinator.load.inflight import PeerSum, Queue
from coordinator.load.predict import FixedRate
from coordinator.measurement import Units
from coordinator.route import Decision
from lineside.signals import Events, Load, Status
from policies.verdict import Chosen, Empty
from tests import scene
from tests.scene import view

RATE = FixedRate(prefill_tokens_per_s=1000.0, step_s=0.0)


def decided(
    views: list[EngineView],
    prompt: int | None = 1000,
    overlaps: Mapping[str, Units] | None = None,
    queues: Mapping[str, Queue] | None = None,
    ahead: Mapping[str, int] | None = None,
    recent: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Decision:
    decision = scene.decided(
        views,
        RATE,
        prompt,
        overlaps,
        queues,
        ahead,
        lambda engine: (recent or {}).get(engine.id, 0.0),
        seed,
    )
    assert isinstance(decision.verdict, Chosen)
    return decision


def order(decision: Decision) -> list[str]:
    return [candidate.target.id for candidate in decision.ranked]


def test_the_deepest_overlap_wins_among_idle_engines() -> None:
    overlaps = {"a": (10, 10, 10), "b": (30, 30, 30)}
    decision = decided([view("a"), view("b"), view("c")], overlaps=overlaps)
    assert order(decision) == ["b", "a", "c"]
    chosen = decision.chosen
    assert (chosen.overlap_tokens, chosen.uncached_tokens) == (480, 520)
    assert chosen.predicted_ttft_s == pytest.approx(0.52)
    assert chosen.cost == pytest.approx(2 * 0.52)


def test_a_long_queue_outweighs_an_overlap() -> None:
    queues = {"a": Queue(outstanding=4, queued_tokens=2000, wait_s=2.0)}
    decision = decided([view("a"), view("b")], overlaps={"a": (30, 30, 30)}, queues=queues)
    assert order(decision) == ["b", "a"]
    held = decision.ranked[1]
    assert held.predicted_ttft_s == pytest.approx(2.52)
    assert held.cost == pytest.approx(2.0 + 2 * 0.52 + 4 * 0.02)


def test_what_others_have_in_flight_counts() -> None:
    queues = {"a": Queue(peers=PeerSum(2, queued_tokens=500, queued=1, wait_s=0.5))}
    decision = decided([view("a"), view("b")], queues=queues)
    assert order(decision) == ["b", "a"]
    assert decision.ranked[1].predicted_ttft_s == pytest.approx(1.5)
    assert decision.ranked[1].outstanding == 2
    assert (decision.ranked[1].queued, decision.ranked[1].running) == (1, 1)


@pytest.mark.parametrize(
    ("prompt", "units", "block", "cached"),
    [
        pytest.param(1000, 100, 16, 992, id="more than the prompt: whole blocks of prompt - 1"),
        pytest.param(992, 62, 16, 976, id="all of a prompt that ends with a block"),
        pytest.param(1000, 10, 32, 160, id="whole blocks stay"),
        pytest.param(1000, 11, 32, 160, id="a half block is computed"),
        pytest.param(1, 1, 16, 0, id="the only token is computed"),
        pytest.param(0, 1, 16, 0, id="an empty prompt"),
    ],
)
def test_cached_tokens_are_whole_blocks_before_the_last_token(
    prompt: int, units: int, block: int, cached: int
) -> None:
    overlaps = {"a": (units, units, units)}
    chosen = decided([view("a", block_size=block)], prompt, overlaps).chosen
    assert (chosen.overlap_tokens, chosen.uncached_tokens) == (cached, prompt - cached)


def test_a_slower_medium_is_worth_less_but_is_cached() -> None:
    overlaps = {"a": (10, 20, 40), "b": (20, 20, 20)}
    decision = decided([view("a"), view("b")], overlaps=overlaps)
    a = next(candidate for candidate in decision.ranked if candidate.target.id == "a")
    assert a.overlap_tokens == 640
    assert a.own_s == pytest.approx((1000 - (160 * 1.0 + 160 * 0.8 + 320 * 0.4)) / 1000)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        pytest.param({"heard_age_s": None}, "connecting", id="no agent yet"),
        pytest.param({"heard_age_s": 11.0}, "lost", id="a silent agent"),
        pytest.param({"digest_live": False}, "filling", id="half a snapshot"),
        pytest.param(
            {"status": Status(Events.UNUSABLE, "hybrid attention is not matched yet")},
            "unusable",
            id="a cache that cannot be matched",
        ),
    ],
)
def test_an_unusable_cache_counts_as_empty_and_says_why(
    changes: dict[str, Any], state: str
) -> None:
    chosen = decided([view("a", **changes)], overlaps={"a": (30, 30, 30)}).chosen
    assert (chosen.overlap_tokens, chosen.view.cache_state) == (0, state)
    assert chosen.reason


def test_unknown_tokens_go_by_load_alone() -> None:
    queues = {"a": Queue(outstanding=1)}
    decision = decided([view("a"), view("b")], prompt=None, queues=queues)
    assert order(decision) == ["b", "a"]
    assert decision.chosen.uncached_tokens is None
    assert decision.chosen.predicted_ttft_s is None


def test_an_engine_that_is_away_is_no_candidate() -> None:
    decision = decided([view("a", away="cannot connect"), view("b")])
    assert order(decision) == ["b"]
    (dropped,) = decision.dropped
    assert (dropped.target.id, dropped.dropped_by, dropped.reason) == (
        "a",
        "away",
        "cannot connect",
    )


def test_a_failing_engine_is_no_candidate_while_another_serves() -> None:
    decision = decided([view("a", failing="it failed"), view("b")])
    assert order(decision) == ["b"]
    (dropped,) = decision.dropped
    assert (dropped.target.id, dropped.dropped_by, dropped.reason) == ("a", "failing", "it failed")


def test_failing_engines_are_used_when_all_fail() -> None:
    views = [view("a", failing="it failed"), view("b", failing="it failed"), view("c", away="gone")]
    decision = decided(views)
    assert sorted(order(decision)) == ["a", "b"]
    assert [candidate.own_s for candidate in decision.ranked] == [1.0, 1.0]  # measured
    assert [candidate.dropped_by for candidate in decision.dropped] == ["away"]


def test_an_engine_that_sleeps_is_no_candidate_until_the_report_is_old() -> None:
    asleep = view("a", load=Load(asleep=True), load_age_s=1.0)
    decision = decided([asleep, view("b")])
    assert order(decision) == ["b"]
    (dropped,) = decision.dropped
    assert (dropped.dropped_by, dropped.reason) == ("asleep", "the engine sleeps")
    unheard = asleep._replace(load_age_s=ASLEEP_FOR_S + 1)
    assert sorted(order(decided([unheard, view("b")]))) == ["a", "b"]
    awake = asleep._replace(load=Load(asleep=False))
    assert sorted(order(decided([awake, view("b")]))) == ["a", "b"]


def test_what_is_on_its_way_counts_and_is_kept_apart() -> None:
    decision = decided([view("a"), view("b")], overlaps={"a": (10, 10, 10)}, ahead={"a": 40})
    a, b = decision.ranked
    assert (a.target.id, a.overlap_tokens, a.speculative_tokens, a.uncached_tokens) == (
        "a",
        160,
        480,
        360,
    )
    assert (a.own_s, b.own_s) == (pytest.approx(0.36), pytest.approx(1.0))


def test_what_is_on_its_way_adds_nothing_to_a_deeper_overlap() -> None:
    chosen = decided([view("a")], overlaps={"a": (40, 40, 40)}, ahead={"a": 10}).chosen
    assert (chosen.overlap_tokens, chosen.speculative_tokens) == (640, 0)


def test_nothing_is_on_its_way_to_a_cache_that_cannot_be_followed() -> None:
    chosen = decided([view("a", heard_age_s=11.0)], ahead={"a": 40}).chosen
    assert (chosen.overlap_tokens, chosen.speculative_tokens) == (0, 0)


def test_recent_work_counts_as_far_as_engines_idle() -> None:
    views, overlaps = [view("a"), view("b")], {"a": (4, 4, 4)}  # worth 2 * 64 ms
    assert order(decided(views, overlaps=overlaps, recent={"a": 1.2})) == ["a", "b"]
    decision = decided(views, overlaps=overlaps, recent={"a": 1.4})
    assert order(decision) == ["b", "a"]
    assert decision.ranked[1].recent_s == pytest.approx(0.14)
    queues = {"a": Queue(outstanding=1), "b": Queue(outstanding=1)}
    busy = decided(views, overlaps=overlaps, recent={"a": 99.0}, queues=queues)
    assert order(busy) == ["a", "b"]


def test_when_all_are_away_there_is_no_decision() -> None:
    decision = scene.decided([view("a", away="cannot connect")], RATE, prompt=1)
    assert isinstance(decision.verdict, Empty)
    assert decision.is_short
    assert [candidate.dropped_by for candidate in decision.dropped] == ["away"]


def test_ties_are_spread() -> None:
    views = [view("a"), view("b"), view("c")]
    chosen = Counter(order(decided(views, seed=seed))[0] for seed in range(300))
    assert min(chosen[name] for name in "abc") > 60


UNITS = st.lists(st.integers(0, 80), min_size=3, max_size=3).map(lambda units: tuple(sorted(units)))


@given(st.lists(UNITS, min_size=1, max_size=5), st.integers(0, 2000), st.integers(0, 99))
def test_the_choice_is_a_candidate_of_least_cost(
    units: list[Units], prompt: int, seed: int
) -> None:
    views = [view(str(number)) for number in range(len(units))]
    overlaps = {str(number): each for number, each in enumerate(units)}
    decision = decided(views, prompt, overlaps, seed=seed)
    assert sorted(order(decision)) == sorted(overlaps)
    assert decision.chosen.cost == min(candidate.cost for candidate in decision.ranked)
    for candidate in decision.ranked:
        assert 0 <= candidate.overlap_tokens <= max(0, prompt - 1)
        assert candidate.own_s >= 0
