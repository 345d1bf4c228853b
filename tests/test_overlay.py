"""Claims of our own decisions: what they add, when they end, and that nothing is left over."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.holdings.overlay import DUE_S, GRACE_S, STRIDE, Claim, Overlay
from lineside.ids import BlockKey, EngineId, GroupId

A, B, C = EngineId("a"), EngineId("b"), EngineId("c")
G, H = GroupId("g"), GroupId("h")


def keys(text: str) -> list[BlockKey]:
    """Return the keys of a prompt: each stands for all letters before it."""
    return [BlockKey(hash(text[: end + 1]) & 2**64 - 1) for end in range(len(text))]


def take(overlay: Overlay, engine: EngineId, text: str, group: GroupId = G) -> Claim:
    claim = overlay.take(engine, group, keys(text), deadline=100.0)
    assert claim
    return claim


def depths(overlay: Overlay, keys: Sequence[BlockKey], group: GroupId = G) -> dict[EngineId, int]:
    return {engine: units // STRIDE for engine, units in overlay.units(group, keys).items()}


def test_a_claim_counts_at_once_as_deep_as_the_prompts_agree() -> None:
    overlay = Overlay()
    take(overlay, A, "abcdef")
    take(overlay, B, "abcx")
    take(overlay, B, "ab")
    assert depths(overlay, keys("abcdefgh")) == {A: 6, B: 3}
    assert depths(overlay, keys("abcd")) == {A: 4, B: 3}
    assert depths(overlay, keys("abcxy")) == {A: 3, B: 4}
    assert depths(overlay, keys("xbc")) == {}
    assert depths(overlay, []) == {}
    assert depths(overlay, keys("abc"), H) == {}
    assert overlay.keys == 7


def test_a_dropped_claim_is_gone_at_once() -> None:
    overlay = Overlay()
    first, second = take(overlay, A, "abcdef"), take(overlay, A, "abcx")
    overlay.drop(first)
    overlay.drop(first)
    assert depths(overlay, keys("abcdef")) == {A: 3}
    overlay.drop(second)
    assert (depths(overlay, keys("abcdef")), overlay.keys, overlay.claims) == ({}, 0, 0)


def test_a_settled_claim_ends_with_the_grace_and_not_before() -> None:
    overlay = Overlay()
    claim = take(overlay, A, "abc")
    overlay.settle(claim, now=10.0)
    overlay.settle(claim, now=50.0)
    overlay.drop(claim)  # a failure after the first token: the prompt was computed
    overlay.expire(10.0 + GRACE_S - 0.01)
    assert depths(overlay, keys("abc")) == {A: 3}
    overlay.expire(10.0 + GRACE_S)
    assert (depths(overlay, keys("abc")), overlay.claims) == ({}, 0)


def test_two_requests_with_one_prompt_are_two_claims() -> None:
    overlay = Overlay()
    first, _ = take(overlay, A, "abc"), take(overlay, A, "abc")
    overlay.drop(first)
    assert depths(overlay, keys("abc")) == {A: 3}


def test_a_claim_that_nobody_ends_is_found_by_its_deadline() -> None:
    overlay = Overlay()
    take(overlay, A, "abc")
    assert overlay.expire_lost(99.0) == 0
    assert overlay.expire_lost(100.0) == 1
    assert (overlay.keys, overlay.claims) == (0, 0)


def test_there_is_a_bound_and_it_is_named() -> None:
    overlay = Overlay(limit_keys=6)
    first = take(overlay, A, "abcd")
    assert not overlay.full
    assert overlay.take(B, H, keys("xyz"), 100.0) is None
    assert (overlay.full, overlay.refused, overlay.keys) == (True, 1, 4)
    take(overlay, B, "abcdef")  # what is shared takes no room
    assert (overlay.full, depths(overlay, keys("abcdef"))) == (False, {A: 4, B: 6})
    overlay.drop(first)
    assert overlay.keys == 6


def test_a_prompt_shorter_than_a_stride_claims_nothing() -> None:
    assert Overlay().take(A, G, [], 100.0) is None


def test_a_claim_at_its_end_holds_for_prompts_that_go_on_from_there() -> None:
    overlay = Overlay()
    claim = overlay.take(A, G, keys("abcd"), 100.0, at_end=True)
    assert claim
    take(overlay, B, "abx")  # cuts the other's run in two
    assert depths(overlay, keys("abcdef")) == {A: 4, B: 2}
    assert depths(overlay, keys("abcd")) == {A: 4, B: 2}
    assert depths(overlay, keys("abcx")) == {B: 2}
    overlay.drop(claim)
    assert (depths(overlay, keys("abcdef")), overlay.keys) == ({B: 2}, 3)


def test_groups_do_not_mix() -> None:
    overlay = Overlay()
    take(overlay, A, "abc", G)
    take(overlay, B, "abd", H)
    assert depths(overlay, keys("abd")) == {A: 2}
    assert depths(overlay, keys("abd"), H) == {B: 3}


def overdue(overlay: Overlay, text: str, now: float, engine: EngineId = A) -> int:
    return overlay.overdue(G, keys(text), engine, now) // STRIDE


def test_what_was_computed_long_ago_is_overdue_though_newer_claims_hold_it() -> None:
    overlay, step = Overlay(), GRACE_S / 2
    for turn in range(5):
        now = turn * step
        overlay.expire(now)
        assert overdue(overlay, "abcdef", now) == (3 if now >= DUE_S else 0)
        overlay.settle(take(overlay, A, "abc" + "xyzuv"[turn]), now)
    assert overdue(overlay, "abcdef", 4 * step, B) == 0
    overlay.expire(4 * step + GRACE_S)
    overlay.settle(take(overlay, A, "abc"), 4 * step + GRACE_S)
    assert overdue(overlay, "abc", 4 * step + GRACE_S) == 0  # nobody asked for a while


def test_what_is_being_computed_is_not_overdue() -> None:
    overlay = Overlay()
    take(overlay, A, "abc")
    overlay.settle(take(overlay, A, "ab"), 1.0)
    assert overdue(overlay, "abc", 1.0 + DUE_S) == 2


def test_an_engine_with_hit_points_owes_nothing() -> None:
    overlay = Overlay()
    claim = overlay.take(A, G, keys("abc"), 100.0, at_end=True)
    assert claim
    overlay.settle(claim, 0.0)
    assert overdue(overlay, "abc", DUE_S) == 0


prompts = st.text("ab", min_size=1, max_size=6)
steps = st.lists(
    st.tuples(st.sampled_from(["take", "take at end", "drop", "settle", "expire"]),
              st.sampled_from([A, B, C]), prompts, st.integers(0, 9)),
    max_size=40,
)  # fmt: skip


def shared(one: str, other: str) -> int:
    return next((at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y),
                min(len(one), len(other)))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_tree_says_what_a_list_of_claims_says(
    steps: Sequence[tuple[str, EngineId, str, int]],
) -> None:
    overlay, now = Overlay(), 0.0
    live: list[tuple[Claim, str]] = []
    settled: list[tuple[Claim, str, float]] = []
    for step, engine, text, number in steps:
        match step:
            case "take" | "take at end":
                claim = overlay.take(engine, G, keys(text), 100.0, at_end=step != "take")
                assert claim
                live.append((claim, text))
            case "drop" if live:
                overlay.drop(live.pop(number % len(live))[0])
            case "settle" if live:
                claim, prompt = live.pop(number % len(live))
                overlay.settle(claim, now)
                settled.append((claim, prompt, now + GRACE_S))
            case "expire":
                now += number / 4
                overlay.expire(now)
                settled = [each for each in settled if each[2] > now]
        held = live + [(claim, prompt) for claim, prompt, _ in settled]
        expected: dict[EngineId, int] = {}
        for claim, prompt in held:
            depth = shared(prompt, text)
            if depth and not (claim.at_end and depth < len(prompt)):
                expected[claim.engine] = max(depth, expected.get(claim.engine, 0))
        assert depths(overlay, keys(text)) == expected
        computed = [shared(prompt, text) for claim, prompt, _ in settled
                    if claim.engine == engine and not claim.at_end]  # fmt: skip
        assert overdue(overlay, text, now + DUE_S, engine) == max(computed, default=0)
        assert overlay.keys == len({p[: end + 1] for _, p in held for end in range(len(p))})
        assert overlay.claims == len(held)
    for claim, _ in live:
        overlay.drop(claim)
    overlay.expire(now + GRACE_S)
    assert (overlay.keys, overlay.claims) == (0, 0)
    assert overlay._roots == {}


@pytest.mark.parametrize("length", [1, 2, 3, 511, 512])
def test_long_prompts_are_compared_to_the_key(length: int) -> None:
    overlay, prompt = Overlay(), [BlockKey(number) for number in range(1, 513)]
    overlay.take(A, G, prompt, 100.0)
    other = prompt[:length] + [BlockKey(1000 + number) for number in range(512)]
    assert depths(overlay, other) == {A: length}
