"""Faults of the simulated engine's events and replay, each seen on the wire."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from simulate.publisher import END_MARKER
from tests.captures import ids
from tests.simulated import LIMIT_S, TOPIC, Events, complete, engine, next_frames, opened, post

pytestmark = pytest.mark.flow

PATH = "/sim/faults"


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Any]]:
    with engine("--faults") as listening:
        yield listening


@pytest.fixture
async def client(shared: dict[str, Any]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(f"http://{shared['http']}", timeout=timeout) as session:
        yield session
        async with session.delete(PATH) as response:
            assert response.status == 200


@pytest.fixture
async def events(shared: dict[str, Any], client: aiohttp.ClientSession) -> AsyncIterator[Events]:
    with opened(zmq.SUB, shared["events"]) as live:
        subscriber = Events(live, client)
        await subscriber.begin()
        yield subscriber


@contextmanager
def reader(shared: dict[str, Any]) -> Iterator[zmq.asyncio.Socket]:
    with opened(zmq.DEALER, shared["replay"]) as socket:
        yield socket


async def replay(shared: dict[str, Any], start: int, quiet_ms: int = 200) -> list[list[bytes]]:
    """Return a replay's replies as they come, until nothing does for a while."""
    with reader(shared) as socket:
        await socket.send_multipart([b"", start.to_bytes(8, "big")])
        replies = []
        while await socket.poll(quiet_ms):
            replies.append(await next_frames(socket))
    return replies


def replayed(replies: list[list[bytes]]) -> list[int]:
    """Return the numbers of a replay's replies, with -1 for the end marker."""
    return [
        -1 if frames[2] == END_MARKER else int.from_bytes(frames[2], "big") for frames in replies
    ]


async def test_dropped_batches_are_counted_and_replayed(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    await post(client, PATH, fault="drop_batches", count=2)
    await events.cause(3)
    due = events.last + 1
    assert await events.numbers() == [due + 2]
    assert replayed(await replay(shared, due)) == [due, due + 1, due + 2, -1]


async def test_duplicated_batches_come_twice(client: aiohttp.ClientSession, events: Events) -> None:
    await post(client, PATH, fault="duplicate_batches", count=1)
    await events.cause(2)
    due = events.last + 1
    assert await events.numbers() == [due, due, due + 1]


async def test_a_reordered_batch_comes_after_the_next_one(
    client: aiohttp.ClientSession, events: Events
) -> None:
    await post(client, PATH, fault="reorder_batches", count=1)
    await events.cause(3)
    due = events.last + 1
    assert await events.numbers() == [due + 1, due, due + 2]


async def test_delayed_batches_come_late_in_order_and_are_replayed_at_once(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    await post(client, PATH, fault="delay_batches", delay_s=0.5, count=1)
    before = time.monotonic()
    await events.cause(2)
    due = events.last + 1
    assert replayed(await replay(shared, due, quiet_ms=50)) == [due, due + 1, -1]
    late = await events.messages(quiet_ms=600)
    assert [int.from_bytes(frames[1], "big") for frames in late] == [due, due + 1]
    assert time.monotonic() - before > 0.5


async def test_muted_events_leave_no_trace_in_numbers_or_replay(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    await post(client, PATH, fault="mute_events", count=2)
    await events.cause(3)
    due = events.last + 1
    assert await events.numbers() == [due]
    assert replayed(await replay(shared, due)) == [due, -1]


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        pytest.param({"after": 1, "replies": 1}, [0, 2, 3, None], id="a hole and the end marker"),
        pytest.param({"after": 2}, [0, 1, None], id="cut short, with the end marker"),
        pytest.param({"after": 2, "end_marker": False}, [0, 1], id="cut short, with nothing"),
    ],
)
async def test_a_replay_loses_replies_silently(
    shared: dict[str, Any],
    client: aiohttp.ClientSession,
    events: Events,
    how: dict[str, Any],
    kept: list[int | None],
) -> None:
    await events.cause(4)
    await post(client, PATH, fault="lose_replies", count=1, **how)
    due = events.last + 1
    expected = [-1 if place is None else due + place for place in kept]
    assert replayed(await replay(shared, due)) == expected
    assert replayed(await replay(shared, due)) == [due, due + 1, due + 2, due + 3, -1]


async def test_an_ignored_replay_gets_no_answer_and_the_next_one_does(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    await post(client, PATH, fault="ignore_replays", count=1)
    assert await replay(shared, events.last) == []
    assert replayed(await replay(shared, events.last)) == [events.last, -1]


async def test_an_old_replay_has_no_topic_frame(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    (new, new_end) = await replay(shared, events.last)
    await post(client, PATH, fault="old_replay_layout")
    (old, old_end) = await replay(shared, events.last)
    assert (new[1], new_end) == (TOPIC.encode(), [b"", b"", END_MARKER, b""])
    assert (old, old_end) == ([new[0], *new[2:]], [b"", END_MARKER, b""])


async def test_a_shrunk_replay_buffer_keeps_the_last_batches(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    await events.cause(4)
    due = events.last + 1
    await post(client, PATH, fault="shrink_replay_buffer", steps=2)
    assert replayed(await replay(shared, 0)) == [due + 2, due + 3, -1]
    async with client.delete(f"{PATH}?fault=shrink_replay_buffer") as response:
        assert (await response.json())["active"] == []
    await events.cause()
    assert replayed(await replay(shared, 0)) == [due + 2, due + 3, due + 4, -1]


async def test_a_reset_sequence_begins_at_zero_with_an_empty_cache_and_says_nothing(
    shared: dict[str, Any], client: aiohttp.ClientSession, events: Events
) -> None:
    prompt = list(ids(900, 100))
    await complete(client, prompt)
    before = (await events.messages())[-1]
    state = await post(client, PATH, fault="reset_sequence")
    assert state["active"] == []
    answer = await complete(client, prompt)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    (after,) = await events.messages()
    assert int.from_bytes(after[1], "big") == 0 < int.from_bytes(before[1], "big")
    was, now = (msgspec.msgpack.decode(frames[2]) for frames in (before, after))
    assert now[1] == was[1][-1:]  # the same blocks again, and no clear event before them
    assert now[0] > was[0]
    assert replayed(await replay(shared, 0)) == [0, -1]


async def test_a_fault_ends_by_itself_after_its_time(
    client: aiohttp.ClientSession, events: Events
) -> None:
    state = await post(client, PATH, fault="drop_batches", for_s=0.3)
    (active,) = state["active"]
    assert 0 < active.pop("left_s") <= 0.3
    assert active == {"fault": "drop_batches", "for_s": 0.3}
    await events.cause()
    assert await events.messages(quiet_ms=350) == []
    await events.cause()
    assert await events.numbers() == [events.last + 2]
