"""Copies are counted where no store can be an announcement of what is held already."""

import pytest

from agent.holdings import Holdings
from agent.kv_events import BlockRemoved, BlockStored
from agent.sequence import Behind, Gap, Restarted, Whole
from lineside.hashing import chain, pack, seed
from lineside.ids import EngineId, Medium

SECRET = b"secret"
TOKENS = pack(range(16))
STORED = BlockStored((1,), None, TOKENS, 16, Medium.GPU, 0, True, None, None, (), 1)
REMOVED = BlockRemoved((1,), Medium.GPU, 0)
HELD = {chain(seed(SECRET), TOKENS)[0]: Medium.GPU}


def holdings() -> Holdings:
    return Holdings(EngineId("e"), SECRET, 1)


def said(of: Holdings) -> object:
    of.flush()
    return dict(of.log.held)


def test_a_new_reader_counts_no_announcement_of_the_past_twice() -> None:
    of = holdings()
    for event in (STORED, STORED, REMOVED):
        of.apply(event)
    assert said(of) == {}


def test_a_removal_of_a_copy_that_was_not_counted_is_no_mismatch() -> None:
    of = holdings()
    for event in (STORED, STORED, REMOVED, REMOVED, REMOVED):
        of.apply(event)
    assert of.residency.unmatched_removals == 1


def test_copies_count_once_all_is_quiet() -> None:
    of = holdings()
    of.quiet()
    for event in (STORED, STORED, REMOVED):
        of.apply(event)
    assert said(of) == HELD
    of.apply(REMOVED)
    assert said(of) == {}


@pytest.mark.parametrize("then", [Whole(), Restarted()])
def test_no_announcement_counts_while_an_engine_may_be_asked_for_them(
    then: Whole | Restarted,
) -> None:
    of = holdings()
    of.quiet()
    of.mark(Gap(3, 4, lost=True, reason="r"))
    of.quiet()  # nothing is quiet yet
    of.mark(then)
    for event in (STORED, STORED, REMOVED):
        of.apply(event)
    assert said(of) == {}


@pytest.mark.parametrize("mark", [Gap(3, 4, lost=False, reason="r"), Behind("r"), Restarted()])
def test_copies_count_over_what_loses_nothing(mark: Gap | Behind | Restarted) -> None:
    of = holdings()
    of.quiet()
    of.mark(mark)
    of.mark(Whole())
    for event in (STORED, STORED, REMOVED):
        of.apply(event)
    assert said(of) == HELD


def test_what_was_counted_too_low_stays_so() -> None:
    of = holdings()
    of.apply(STORED)
    of.apply(STORED)
    of.quiet()
    of.apply(REMOVED)
    assert said(of) == {}
