"""Who holds a response: what is remembered, and what is said when there is nobody."""

from dataclasses import dataclass
from typing import Any, cast

from coordinator.cluster import Cluster
from coordinator.config import Timeouts
from coordinator.door_responses import ResponsesDoor
from coordinator.refusal import NoEngineReady, ResponseGone, ResponseUnknown
from coordinator.stored import Holder, Holders
from lineside.ids import TenantId
from tests.manual_clock import ManualClock

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


@dataclass
class NoEngines:
    """A service that knows no engine at all."""

    cluster: Cluster
    clock: ManualClock


def door(holders: Holders) -> ResponsesDoor:
    service: Any = NoEngines(Cluster(), ManualClock())
    return ResponsesDoor(service, cast(Any, None), holders, Timeouts())


async def test_a_response_whose_engine_is_gone() -> None:
    holders = Holders()
    holders.note("a", Holder("a:1", "m", MINE))
    assert await door(holders).subset("a") == ResponseGone()
    assert await door(holders).subset("b") == ResponseUnknown()
    assert await door(holders).subset(None) is None


async def test_a_response_of_another_tenant_is_not_looked_for() -> None:
    holders = Holders()
    holders.note("a", Holder("a:1", "m", OTHER))
    assert await door(holders).subset("a") == ResponseUnknown()


async def test_a_providers_response_needs_no_engine() -> None:
    holders = Holders()
    holders.note("a", Holder("api.example:443", "m", MINE, is_engine=False))
    assert await door(holders).subset("a") == frozenset({"api.example:443"})
    assert not isinstance(await door(holders).subset("a"), NoEngineReady)
