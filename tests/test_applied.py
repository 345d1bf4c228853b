"""Sets of resources in the store, and a coordinator that follows them."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from coordinator.cluster import Cluster
from coordinator.rules import Resources, Rules
from coordinator.state import applied
from coordinator.state.applied import KEPT, NoSuchSet, Overtaken, TooLarge, Unsure
from coordinator.state.store import (
    PUT_BACK_S,
    Delete,
    Listing,
    Put,
    Store,
    StoreUnavailable,
)
from coordinator.state.stored_resources import CLOSED, StoredResources
from coordinator.state.stores.sqlite import SqliteStore
from lineside.clock import SystemClock
from lineside.ids import TenantId
from policies.facts import RequestFacts
from policies.verdict import Denied
from tests.manual_clock import ManualClock
from tests.waiting import until


def policy(name: str, text: str = "") -> tuple[str, str]:
    """Return a file with a policy, and more of it."""
    return (
        f"{name}.yaml",
        f"""\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{name: {name}}}
spec:
  rules:
    - name: all
      matches: [{{model: none}}]
      reject: {{status: 429, message: {name}}}
{text}""",
    )


async def put(store: Store, *documents: tuple[str, str]) -> int:
    made, _ = await applied.apply(store, documents, "me@here", 1.0)
    return made.number


async def test_sets_are_numbered_and_what_is_there_makes_none() -> None:
    store = SqliteStore(":memory:")
    assert [await put(store, policy("a")), await put(store, policy("b"))] == [1, 2]
    assert await put(store, policy("b")) == 2
    sets = await applied.history(store)
    assert (sets.current, list(sets.by_number)) == (2, [1, 2])
    await store.close()


async def test_of_those_who_apply_at_once_one_wins_and_the_others_are_told() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("a"))
    many: list[Awaitable[object]] = [put(store, policy(name)) for name in "bcdc"]
    many.append(applied.undo(store, 1, "me@here", 1.0))
    ends = await asyncio.gather(*many, return_exceptions=True)
    sets = await applied.history(store)
    assert (sets.current, list(sets.by_number)) == (2, [1, 2])
    won = [name for name, end in zip("bcdcu", ends, strict=True) if end == 2]
    told = [str(end) for end in ends if isinstance(end, Overtaken)]
    assert len(won) in (1, 2), "two apply the same"
    assert told == ["set 2 by me@here was applied meanwhile, and stays in force"] * (5 - len(won))
    newest = sets.newest
    assert newest is not None
    assert newest.documents == (policy(won[0]),)
    await store.close()


async def test_what_is_beyond_the_kept_sets_is_surplus_but_never_what_is_in_force() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("a"))
    first = (await store.range(applied.SETS)).entries
    for n in range(2, KEPT + 4):  # as an import may leave them
        await store.transact({}, [Put(f"{applied.SETS}{n:08}", b"of another release")])
    keys = (await store.range(applied.PREFIX)).entries
    assert applied.surplus(keys) == [f"{applied.SETS}{n:08}" for n in (2, 3, 4)]
    assert applied.surplus(first) == []
    await store.close()


async def test_undo_goes_back_further_each_time() -> None:
    store = SqliteStore(":memory:")
    with pytest.raises(NoSuchSet, match="nothing was ever applied"):
        await applied.undo(store, None, "me", 1.0)
    for name in "abc":
        await put(store, policy(name))
    made = [await applied.undo(store, None, "me", 2.0) for _ in range(2)]
    assert [(each.number, each.undoes_to) for each in made] == [(4, 2), (5, 1)]
    assert made[1].documents == (policy("a"),)
    with pytest.raises(NoSuchSet, match="no set before 1 is kept"):
        await applied.undo(store, None, "me", 2.0)
    assert await put(store, policy("d")) == 6
    back = await applied.undo(store, None, "me", 3.0)
    assert (back.number, back.undoes_to) == (7, 3)
    assert (await applied.undo(store, 2, "me", 3.0)).documents == (policy("b"),)
    with pytest.raises(NoSuchSet, match="set 99 is not kept"):
        await applied.undo(store, 99, "me", 3.0)
    await store.close()


async def test_the_latest_sets_are_kept() -> None:
    store = SqliteStore(":memory:")
    for n in range(KEPT + 5):
        await put(store, policy(f"p{n}"))
    sets = await applied.history(store)
    assert list(sets.by_number) == list(range(6, KEPT + 6))
    with pytest.raises(TooLarge, match="bytes"):
        await put(store, ("large.yaml", "#" * 1_000_000))
    assert (await applied.history(store)).current == KEPT + 5
    await store.close()


class Follower:
    """A coordinator, as much of it as follows sets."""

    def __init__(self, store: Store) -> None:
        self.rules = Rules(Cluster())
        self.resources = StoredResources(store, self.rules, lambda _: None, SystemClock())

    @property
    def policies(self) -> list[str]:
        return [each.metadata.name for each in self.rules.resources.policies]

    async def __aenter__(self) -> "Follower":
        assert await self.resources.start() == ()
        self._running = asyncio.ensure_future(self.resources.run())
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


async def test_what_is_applied_is_in_force_and_what_is_wrong_is_not() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("a"))
    async with Follower(store) as one:
        assert one.policies == ["a"]
        await put(store, policy("b"))
        await until(lambda: one.policies == ["b"])
        await put(store, policy("c", "  wrong: 1\n"))
        await until(lambda: one.resources.rejected)
        assert one.policies == ["b"]
        assert one.resources.shown()["source"] == "set 3 of the store"
        async with Follower(store) as new:  # it takes the latest that it can use
            assert (new.policies, new.resources.rejected) == (["b"], True)
        await applied.undo(store, 1, "me", 1.0)
        await until(lambda: one.policies == ["a"])
        assert not one.resources.rejected
    await store.close()


async def test_a_set_that_cannot_be_used_and_none_before_end_the_start() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("c", "  wrong: 1\n"))
    errors = await Follower(store).resources.start()
    assert [each.code for each in errors] == ["unknown-field"]
    await store.close()


async def test_a_store_that_lost_its_data_gets_back_what_is_in_force() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("a"))
    async with Follower(store) as one:
        await store.transact({}, [Delete(applied.CURRENT), Delete(f"{applied.SETS}00000001")])
        one.resources.remake()

        async def is_back() -> bool:
            newest = (await applied.history(store)).newest
            return newest is not None and newest.documents == (policy("a"),)

        await until(is_back)
        assert one.policies == ["a"]
    await store.close()


async def test_a_set_of_another_release_is_told_and_left() -> None:
    store = SqliteStore(":memory:")
    await put(store, policy("a"))
    async with Follower(store) as one:
        writes = [Put(f"{applied.SETS}00000002", b'{"new": 1}'), Put(applied.CURRENT, b"2")]
        await store.transact({}, writes)
        await until(lambda: one.resources.rejected)
        assert one.policies == ["a"]
    await store.close()


@pytest.mark.parametrize("lost", ["range", "transact"])
async def test_it_is_said_whether_a_store_that_went_away_may_have_taken_a_set(lost: str) -> None:
    class Lost(SqliteStore):
        """A store that goes away in the middle of one of its calls."""

    async def gone(self: object, *_: object) -> None:
        raise StoreUnavailable("gone")

    setattr(Lost, lost, gone)
    store = Lost(":memory:")
    with pytest.raises(StoreUnavailable, match="gone") as raised:
        await put(store, policy("a"))
    assert isinstance(raised.value, Unsure) is (lost == "transact")
    await store.close()


class Away(SqliteStore):
    """A store that cannot be read until a test says so."""

    is_away = True

    async def range(self, prefix: str) -> Listing:
        if self.is_away:
            raise StoreUnavailable("gone")
        return await super().range(prefix)


@pytest.mark.parametrize(
    ("sets", "in_force"),
    [
        pytest.param(["a"], ["a"], id="what was applied"),
        pytest.param(["a", "b: wrong"], ["a"], id="the newest that can be used"),
    ],
)
async def test_nothing_is_let_through_while_nobody_knows_what_is_forbidden(
    sets: list[str], in_force: list[str]
) -> None:
    store = Away(":memory:")
    store.is_away = False
    for each in sets:
        name, _, wrong = each.partition(": ")
        await put(store, policy(name, f"  {wrong}: 1\n" if wrong else ""))
    store.is_away = True
    async with Follower(store) as one:
        assert (one.resources.unknown, one.rules.resources) == (True, CLOSED)
        store.is_away = False
        await until(lambda: one.policies == in_force)
        assert not one.resources.unknown
        assert not one.rules.roll_back(), "nobody goes back to what was a stopgap"
    await store.close()


@pytest.mark.parametrize("begun", [0.0, 1000.0])
async def test_a_store_in_which_nothing_was_applied_opens_once_nobody_can_have_put_it_back(
    begun: float,
) -> None:
    clock, store = ManualClock(begun), Away(":memory:")
    rules = Rules(Cluster())
    resources = StoredResources(store, rules, lambda _: None, clock)
    assert await resources.start() == ()
    empty = applied.found_in({})
    await resources._take(empty)
    await clock.advance(2 * PUT_BACK_S - 0.1)
    await resources._take(empty)
    assert (resources.unknown, rules.resources) == (True, CLOSED)
    await clock.advance(0.1)
    await resources._take(empty)
    assert (resources.unknown, rules.resources) == (False, Resources())
    await store.close()


def test_the_stopgap_refuses_every_request_and_says_why() -> None:
    bench = Rules(Cluster(), CLOSED).bench()
    facts = RequestFacts(
        model="m",
        tenant=TenantId("t"),
        api="chat",
        stream=False,
        input_tokens=1,
        tags={},
        headers={},
    )
    denied = bench.bound.plan(facts, {})
    assert isinstance(denied, Denied)
    assert (denied.status, "which is away" in denied.message) == (503, True)
