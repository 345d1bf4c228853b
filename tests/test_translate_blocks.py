"""What waits behind an open call is bounded: an answer cannot cost more than a little time."""

import pytest

from coordinator.translate.blocks import HELD_CALLS, HELD_EVENTS, InBlocks
from coordinator.translate.events import Argued, Called, Closed, Event, Unreadable


def calls(number: int) -> list[Event]:
    """Return calls that are begun one after another and have no arguments yet."""
    return [Called(key, f"id-{key}", "tool") for key in range(number)]


def test_as_many_calls_as_a_client_has_tools_are_put_in_order() -> None:
    blocks = InBlocks()
    parts: list[Event] = [Argued(key, "{}") for key in range(HELD_CALLS)]
    out = [made for event in (*calls(HELD_CALLS), *parts) for made in blocks.put(event)]
    out += blocks.end()
    assert [event.call for event in out if isinstance(event, Closed)] == list(range(HELD_CALLS))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(calls(HELD_CALLS + 2), id="calls"),
        pytest.param([*calls(2), *([Argued(1, "x")] * HELD_EVENTS)], id="events"),
    ],
)
def test_more_is_no_answer(events: list[Event]) -> None:
    blocks = InBlocks()
    with pytest.raises(Unreadable):
        for event in events:
            list(blocks.put(event))
