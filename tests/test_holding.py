"""Who holds a response: what is remembered, and what is said when there is nobody."""

import asyncio
from typing import Any, cast

import pytest

from coordinator.cluster import Cluster
from coordinator.doors.holding import LOOKS, Holding
from coordinator.doors.stored import Holder, Holders
from coordinator.refusal import ResponseGone, ResponseUnknown
from lineside.ids import TenantId
from tests.manual_clock import ManualClock
from tests.test_service import engine

MINE, OTHER = TenantId("default"), TenantId("other")


def test_the_response_that_was_used_longest_ago_is_forgotten() -> None:
    holders = Holders(kept=2)
    for response in ("a", "b"):
        holders.note(response, Holder(f"{response}:1", "m", MINE))
    assert holders.find("a", MINE) == Holder("a:1", "m", MINE)
    holders.note("c", Holder("c:1", "m", MINE))
    assert [holders.knows(response) for response in "abc"] == [True, False, True]
    holders.forget("a")
    assert (holders.find("a", MINE), len(holders)) == (None, 1)


def test_nobody_finds_a_response_of_another_tenant() -> None:
    holders = Holders()
    holders.note("a", Holder("a:1", "m", OTHER))
    assert (holders.find("a", MINE), holders.knows("a")) == (None, True)


def test_an_id_that_is_no_id_is_not_kept() -> None:
    holders = Holders()
    for response in ("", "x" * 300):
        holders.note(response, Holder("a:1", "m", MINE))
    assert len(holders) == 0


def holding(**held: Holder) -> Holding:
    """Return what is known where there are no engines at all."""
    made = Holding(Cluster(), ManualClock(), cast(Any, None))
    for response, holder in held.items():
        made.holders.note(response, holder)
    return made


async def test_a_response_whose_engine_is_gone() -> None:
    of = holding(a=Holder("a:1", "m", MINE))
    assert await of.subset("a", MINE) == ResponseGone()
    assert await of.subset("b", MINE) == ResponseUnknown()


async def test_what_goes_on_from_nothing_may_go_where_it_could_before() -> None:
    assert await holding().subset(None, MINE) is None
    assert await holding().subset(None, MINE, frozenset({"a"})) == frozenset({"a"})


async def test_a_response_of_another_tenant_is_not_looked_for() -> None:
    of = holding(a=Holder("a:1", "m", OTHER))
    assert await of.subset("a", MINE) == ResponseUnknown()


@pytest.mark.parametrize(
    ("subset", "left"),
    [
        pytest.param(None, {"api.example:443"}, id="any"),
        pytest.param({"api.example:443", "b:1"}, {"api.example:443"}, id="among others"),
        pytest.param({"api.example"}, {"api.example:443"}, id="its host is"),
        pytest.param({"b:1"}, set(), id="others only"),
    ],
)
async def test_a_holder_outside_of_what_a_gateway_may_use_is_not_chosen(
    subset: set[str] | None, left: set[str]
) -> None:
    of = holding(a=Holder("api.example:443", "m", MINE, is_engine=False))
    asked = None if subset is None else frozenset(subset)
    assert await of.subset("a", MINE, asked) == frozenset(left)


class Silent:
    """Engines that never answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, *_: Any) -> Any:
        self.asked += 1
        await asyncio.Event().wait()


async def test_few_responses_are_looked_for_at_once() -> None:
    cluster = Cluster()
    cluster.assign([engine("a:1"), engine("b:1")])
    silent = Silent()
    of = Holding(cluster, ManualClock(), cast(Any, silent))
    looking = [asyncio.create_task(of.subset(f"r{number}", MINE)) for number in range(50)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert silent.asked == 2 * LOOKS
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)
