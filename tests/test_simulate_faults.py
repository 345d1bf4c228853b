"""Faults of the simulated engine: which is set, for whom, and when it ends."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from simulate.faults import (
    AnyFault,
    CountedFault,
    DropBatches,
    Fault,
    Faults,
    Freeze,
    Hang,
    LoseReplies,
    Slow,
    name,
)
from tests.manual_clock import ManualClock


def parsed(text: str) -> Fault:
    return msgspec.json.decode(text, type=AnyFault)


def test_a_fault_is_one_object_named_by_its_kind() -> None:
    assert parsed('{"fault": "drop_batches", "count": 2, "rank": 1}') == DropBatches(
        count=2, rank=1
    )
    assert parsed('{"fault": "hang"}') == Hang(where="all")


@pytest.mark.parametrize(
    "text",
    [
        '{"fault": "drop_batches", "cuont": 2}',
        '{"fault": "no_such"}',
        '{"fault": "freeze", "count": 1}',
        '{"fault": "slow"}',
        '{"fault": "slow", "factor": 0}',
        '{"fault": "refuse_connections"}',
        '{"fault": "hang", "where": "somewhere"}',
        '{"for_s": 1}',
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        parsed(text)


def test_a_fault_ends_by_time_by_count_or_by_being_cleared() -> None:
    clock = ManualClock()
    faults = Faults(clock)
    faults.set(Freeze(for_s=2.0))
    faults.set(DropBatches(count=2))
    faults.set(Slow(factor=3.0))
    assert faults.describe() == [
        {"fault": "freeze", "for_s": 2.0, "left_s": 2.0},
        {"fault": "drop_batches", "count": 2, "left": 2},
        {"fault": "slow", "factor": 3.0},
    ]
    assert [faults.strike(DropBatches, 0) is None for _ in range(3)] == [False, False, True]
    clock.now += 2.0
    assert faults.active(Freeze, 0) is None
    assert faults.describe() == [{"fault": "slow", "factor": 3.0}]
    faults.clear("slow")
    assert (faults.describe(), faults.struck) == ([], {"drop_batches": 2})


def test_a_fault_strikes_its_rank_or_place_alone() -> None:
    faults = Faults(ManualClock())
    faults.set(Freeze(rank=1))
    faults.set(Hang(where="metrics"))
    assert [faults.active(Freeze, rank) is None for rank in (0, 1)] == [True, False]
    assert [faults.active(Hang, at) is None for at in ("metrics", "health")] == [False, True]
    faults.set(Hang())
    assert faults.active(Hang, "health") == Hang()
    faults.clear()
    assert faults.describe() == []


def test_a_new_fault_replaces_the_one_of_its_kind_and_rank() -> None:
    faults = Faults(ManualClock())
    for fault in (Slow(factor=2.0), Slow(factor=3.0), Slow(factor=4.0, rank=1)):
        faults.set(fault)
    assert [told["factor"] for told in faults.describe()] == [3.0, 4.0]


@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        pytest.param(LoseReplies(after=3), [3, 4, 5], id="all that follow"),
        pytest.param(LoseReplies(after=1, replies=2), [1, 2], id="a hole"),
    ],
)
def test_replies_are_lost_after_some_or_in_the_middle(fault: LoseReplies, lost: list[int]) -> None:
    assert [place for place in range(6) if fault.loses(place)] == lost


def test_the_page_lists_every_fault_and_how_it_can_end() -> None:
    page = (Path(__file__).parents[1] / "docs" / "simulated-engine.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| (n?) ?\|", page, re.MULTILINE))
    assert listed == {
        name(kind): "n" if issubclass(kind, CountedFault) else "" for kind in get_args(AnyFault)
    }
