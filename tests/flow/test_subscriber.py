"""Events over real sockets, from a publisher that loses, drops, restarts and falls silent."""

import asyncio
import re
import socket as sockets
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from xxhash import xxh3_128_digest

from agent.kv_events import AllBlocksCleared, Batch, decode
from agent.sequence import (
    NO_REPLAY,
    OVERRUN,
    SILENT,
    Behind,
    Gap,
    Item,
    Place,
    Restarted,
    Whole,
)
from agent.subscriber import CannotSubscribe, Subscriber
from tests.captures import frames, rows
from tests.waiting import until

pytestmark = pytest.mark.flow

SILENCE_S = 0.4
AGAIN = "asking the engine again"
LIVES = iter(range(1, 1_000_000))


@dataclass
class Publisher:
    """One life of an engine's publisher: PUB and ROUTER, with faults on demand."""

    live: zmq.asyncio.Socket
    router: zmq.asyncio.Socket
    buffer_steps: int = 10_000
    with_topic: bool = True
    """Replies carry the topic frame (0.26 and later)."""
    answers: bool = True
    drops: list[set[int]] = field(default_factory=list)
    """For each request to come: replies that do not fit the send queue; -1 is the end marker."""
    asked: list[int] = field(default_factory=list)
    served: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    payloads: list[bytes] = field(default_factory=list)
    born: int = field(default_factory=lambda: next(LIVES))

    async def publish(self, *, lose: bool = False, payload: bytes | None = None) -> None:
        """Send one batch; `lose` it on the way, or send other bytes in its place."""
        seq = len(self.payloads)
        if payload is None:
            payload = msgspec.msgpack.encode([self.at(seq), [["AllBlocksCleared"]], 0])
        self.payloads.append(payload)
        if not lose:
            await self.live.send_multipart([b"kv@pod", seq.to_bytes(8, "big"), payload])

    def reset(self) -> None:
        """Begin another life on the same connections."""
        self.payloads.clear()
        self.born = next(LIVES)

    async def heard(self) -> None:
        """Wait for the subscription; what is sent before it reaches nobody."""
        assert (await self.live.recv())[:1] == b"\1"

    def at(self, seq: int) -> float:
        return self.born + seq / 1000

    async def serve_replays(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.answers:
                await self.reply(client, self.asked[-1])
            self.served.release()

    async def reply(self, client: bytes, start: int) -> None:
        dropped = self.drops.pop(0) if self.drops else set()
        oldest = max(len(self.payloads) - self.buffer_steps, start)
        replies = [(seq, self.payloads[seq]) for seq in range(oldest, len(self.payloads))]
        for seq, payload in [*replies, (-1, b"")]:
            if seq not in dropped:
                number = seq.to_bytes(8, "big", signed=True)
                topic = [b"kv@pod" if seq >= 0 else b""] if self.with_topic else []
                await self.router.send_multipart([client, b"", *topic, number, payload])

    def batch(self, seq: int) -> Batch:
        return Batch(seq, self.at(seq), 0, (AllBlocksCleared(),), 0)

    def batches(self, seqs: Iterable[int]) -> list[Batch]:
        return [self.batch(seq) for seq in seqs]


class Engine:
    """The addresses that stay the same over an engine's lives."""

    def __init__(self) -> None:
        self.events, self.replay = free_address(), free_address()

    @asynccontextmanager
    async def life(self, *, connects: bool = False, **faults: Any) -> AsyncIterator[Publisher]:
        context = zmq.asyncio.Context()  # its end frees the addresses at once
        live = context.socket(zmq.XPUB)  # like PUB, but tells of subscriptions
        router = context.socket(zmq.ROUTER)
        (live.connect if connects else live.bind)(self.events)
        router.bind(self.replay)
        publisher = Publisher(live, router, **faults)
        serving = asyncio.create_task(publisher.serve_replays())
        try:
            yield publisher
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            context.destroy(linger=0)


class Reader:
    """A subscriber that is always read, as the agent does: only then does libzmq subscribe anew."""

    def __init__(self, subscriber: Subscriber, asks: bool) -> None:
        self.subscriber, self._asks = subscriber, asks
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self.states: list[Behind | Whole] = []

    async def pump(self) -> None:
        async with aclosing(self.subscriber.items()) as items:
            async for item in items:
                if isinstance(item, Behind | Whole):
                    self.states.append(item)
                else:
                    self._items.put_nowait(item)

    async def start(self, publisher: Publisher) -> None:
        """Wait until the publisher knows of the subscription and the first replay is served."""
        async with asyncio.timeout(5):
            await publisher.heard()
            if self._asks:
                await publisher.served.acquire()

    async def whole(self) -> None:
        """Wait until the reader is where the engine is."""
        await until(lambda: self.states[-1:] == [Whole()])

    async def take(self, count: int) -> list[Item]:
        async with asyncio.timeout(5):
            return [await self._items.get() for _ in range(count)]


def free_address() -> str:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@asynccontextmanager
async def reading(engine: Engine, *, replay: bool = True, **options: Any) -> AsyncIterator[Reader]:
    address = engine.replay if replay else ""
    reader = Reader(Subscriber(engine.events, address, silence_s=SILENCE_S, **options), replay)
    pumping = asyncio.create_task(reader.pump())
    try:
        yield reader
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)


# --- order and loss -------------------------------------------------------------------------------


async def test_live_batches_come_in_order(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine) as reader:
        await reader.start(publisher)
        for _ in range(3):
            await publisher.publish()
        assert await reader.take(3) == publisher.batches(range(3))


async def test_a_subscriber_that_binds_hears_a_publisher_that_connects(engine: Engine) -> None:
    async with engine.life(connects=True) as publisher, reading(engine, bind=True) as reader:
        await reader.start(publisher)
        await publisher.publish()
        assert await reader.take(1) == [publisher.batch(0)]


async def test_other_topics_are_not_heard(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine, topic="kv@pod") as reader:
        await reader.start(publisher)
        await publisher.live.send_multipart([b"kv@other", b"\0" * 8, publisher_payload()])
        await publisher.publish()
        assert await reader.take(1) == [publisher.batch(0)]


def publisher_payload() -> bytes:
    return msgspec.msgpack.encode([0.0, [], 0])


@pytest.mark.parametrize("with_topic", [True, False])
async def test_a_late_subscriber_is_told_what_an_idle_engine_holds(
    engine: Engine, with_topic: bool
) -> None:
    async with engine.life(with_topic=with_topic) as publisher:
        for _ in range(5):
            await publisher.publish()
        async with reading(engine) as reader:
            assert await reader.take(5) == publisher.batches(range(5))
    assert publisher.asked[0] == 0


async def test_a_late_subscriber_hears_that_the_start_is_lost(engine: Engine) -> None:
    async with engine.life(buffer_steps=2) as publisher:
        for _ in range(5):
            await publisher.publish()
        async with reading(engine) as reader:
            lost = Gap(0, 3, lost=True, reason=OVERRUN)
            assert await reader.take(3) == [lost, *publisher.batches([3, 4])]


async def test_a_first_replay_that_stays_unanswered_is_asked_for_again(engine: Engine) -> None:
    async with engine.life(answers=False) as publisher, reading(engine) as reader:
        await publisher.publish(lose=True)
        await reader.start(publisher)
        publisher.answers = True
        assert await reader.take(1) == [publisher.batch(0)]
    assert publisher.asked == [0, 0]


async def test_without_a_replay_socket_a_first_batch_above_0_is_lost(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine, replay=False) as reader:
        for _ in range(2):
            await publisher.publish(lose=True)
        await reader.start(publisher)
        await publisher.publish()
        lost = Gap(0, 2, lost=True, reason="the engine has no replay socket")
        assert await reader.take(2) == [lost, publisher.batch(2)]


async def test_a_gap_is_replayed_from_the_first_missing_number(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine) as reader:
        await reader.start(publisher)
        for seq in range(8):
            await publisher.publish(lose=3 <= seq < 6)
        assert await reader.take(9) == [
            *publisher.batches(range(3)),
            Gap(3, 6, lost=False, reason=AGAIN),
            *publisher.batches(range(3, 8)),
        ]
        assert publisher.asked == [0, 2]


@pytest.mark.parametrize(
    ("drops", "asked"),
    [
        pytest.param([{4, 5}], [0, 0, 3], id="a hole and the end marker"),
        pytest.param([{4, 5, -1}], [0, 0, 3], id="a hole and no end marker"),
        pytest.param([{6, 7}], [0, 0, 5], id="the tail dropped, the end marker sent"),
        pytest.param([{5, 6, 7, -1}], [0, 0, 4], id="cut short without an end marker"),
        pytest.param([{2, 3}, {4}, {5}, {6}], [0, 0, 1, 3, 4, 5], id="hole after hole"),
        pytest.param([set(range(-1, 9))], [0, 0, 0], id="no answer at first"),
    ],
)
async def test_a_replay_with_holes_is_asked_for_again_from_the_first_hole(
    engine: Engine, drops: list[set[int]], asked: list[int]
) -> None:
    async with engine.life() as publisher, reading(engine) as reader:
        await reader.start(publisher)
        publisher.drops = drops
        for seq in range(9):
            await publisher.publish(lose=1 <= seq < 8)
        assert await reader.take(10) == [
            publisher.batch(0),
            Gap(1, 8, lost=False, reason=AGAIN),
            *publisher.batches(range(1, 9)),
        ]
    assert publisher.asked[: len(asked)] == asked


async def test_what_the_buffer_no_longer_has_is_lost_and_the_rest_follows(engine: Engine) -> None:
    async with engine.life(buffer_steps=3) as publisher, reading(engine) as reader:
        await reader.start(publisher)
        for seq in range(6):
            await publisher.publish(lose=1 <= seq < 5)
        assert await reader.take(6) == [
            publisher.batch(0),
            Gap(1, 5, lost=False, reason=AGAIN),
            Gap(1, 3, lost=True, reason=OVERRUN),
            *publisher.batches([3, 4, 5]),
        ]


async def test_a_number_that_the_engine_never_sent_is_lost(engine: Engine) -> None:
    async with engine.life(buffer_steps=1) as publisher, reading(engine) as reader:
        await reader.start(publisher)
        for seq in range(3):
            await publisher.publish(lose=seq == 1)
        assert await reader.take(4) == [
            publisher.batch(0),
            Gap(1, 2, lost=False, reason=AGAIN),
            Gap(1, 2, lost=True, reason=OVERRUN),
            publisher.batch(2),
        ]


async def test_a_silent_replay_socket_ends_in_a_lost_gap(engine: Engine) -> None:
    async with engine.life(answers=False) as publisher, reading(engine) as reader:
        await reader.start(publisher)
        for seq in range(4):
            await publisher.publish(lose=0 < seq < 3)
        silent = Gap(1, 3, lost=True, reason=SILENT)
        assert await reader.take(4) == [
            publisher.batch(0),
            Gap(1, 3, lost=False, reason=AGAIN),
            silent,
            publisher.batch(3),
        ]
    assert publisher.asked == [0] * 6  # three when it connected, three for the gap


async def test_a_message_that_cannot_be_read_is_a_lost_gap(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine) as reader:
        await reader.start(publisher)
        await publisher.publish()
        await publisher.publish(payload=b"\xc1")
        await publisher.live.send_multipart([b"kv@pod", b"short", b""])
        await publisher.publish()
        assert await reader.take(3) == [
            publisher.batch(0),
            Gap(1, 2, lost=True, reason="the payload is not a batch of events"),
            publisher.batch(2),
        ]
        assert reader.subscriber.undecodable == 2


async def test_replayed_batches_that_come_by_themselves_too_are_passed_on_once(
    engine: Engine,
) -> None:
    async with engine.life() as publisher, reading(engine) as reader:
        for _ in range(3):
            await publisher.publish()
        assert await reader.take(3) == publisher.batches(range(3))  # replayed
        for payload_seq in range(1, 3):  # and still under way
            number = payload_seq.to_bytes(8, "big")
            await publisher.live.send_multipart([b"", number, publisher.payloads[payload_seq]])
        await publisher.publish()
        assert await reader.take(1) == [publisher.batch(3)]


# --- restarts -------------------------------------------------------------------------------------


async def test_a_lower_number_is_a_restarted_engine(engine: Engine) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            for _ in range(3):
                await first.publish()
            assert await reader.take(3) == first.batches(range(3))
        async with engine.life() as second:
            await second.heard()
            await second.publish()
            assert await reader.take(2) == [Restarted(), second.batch(0)]


async def test_a_restart_that_was_missed_in_part_is_replayed_from_its_start(engine: Engine) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            for _ in range(5):
                await first.publish()
            await reader.take(5)
        async with engine.life() as second:
            await second.heard()
            assert await reader.take(1) == [Restarted()]
            await reader.whole()
            for seq in range(3):
                await second.publish(lose=seq < 2)
            assert await reader.take(4) == [
                Gap(0, 2, lost=False, reason=AGAIN),
                *second.batches(range(3)),
            ]


async def test_a_restart_right_after_a_replay_is_not_taken_for_what_was_replayed(
    engine: Engine,
) -> None:
    async with engine.life() as first, reading(engine) as reader:
        for _ in range(5):
            await first.publish(lose=True)
        assert await reader.take(5) == first.batches(range(5))
        await reader.start(first)
        first.reset()
        await first.publish()
        assert await reader.take(2) == [Restarted(), first.batch(0)]


async def test_a_restart_that_has_passed_the_last_number_is_found(engine: Engine) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            for _ in range(3):
                await first.publish()
            assert await reader.take(3) == first.batches(range(3))
        async with engine.life() as second:
            for _ in range(8):
                await second.publish(lose=True)
            assert await reader.take(9) == [Restarted(), *second.batches(range(8))]


async def test_a_restart_whose_buffer_has_run_over_is_not_taken_for_the_same_life(
    engine: Engine,
) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            for _ in range(3):
                await first.publish()
            assert await reader.take(3) == first.batches(range(3))
        async with engine.life(buffer_steps=2) as second:
            for _ in range(5):
                await second.publish(lose=True)
            lost = Gap(3, 3, lost=True, reason=OVERRUN)
            assert await reader.take(3) == [lost, *second.batches([3, 4])]


async def test_the_restart_of_an_idle_engine_is_found(engine: Engine) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            await first.publish()
            assert await reader.take(1) == [first.batch(0)]
        async with engine.life():
            assert await reader.take(1) == [Restarted()]


async def test_a_broken_connection_of_one_life_changes_nothing(engine: Engine) -> None:
    async with reading(engine) as reader:
        async with engine.life() as first:
            await reader.start(first)
            await first.publish()
            assert await reader.take(1) == [first.batch(0)]
        async with engine.life() as same:
            same.payloads, same.born = first.payloads, first.born
            await same.heard()
            await reader.whole()
            await same.publish()
            assert await reader.take(1) == [same.batch(1)]
    assert [type(state) for state in reader.states[-4:]] == [Whole, Behind, Behind, Whole]


async def test_a_publisher_that_connects_may_restart(engine: Engine) -> None:
    async with reading(engine, bind=True) as reader:
        async with engine.life(connects=True) as first:
            await reader.start(first)
            for _ in range(3):
                await first.publish()
            assert await reader.take(3) == first.batches(range(3))
        async with engine.life(connects=True) as second:
            for _ in range(5):
                await second.publish(lose=True)
            assert await reader.take(6) == [Restarted(), *second.batches(range(5))]


async def test_without_a_replay_socket_a_new_connection_may_be_a_new_life(engine: Engine) -> None:
    async with reading(engine, replay=False) as reader:
        async with engine.life() as first:
            await reader.start(first)
            await first.publish()
            assert await reader.take(1) == [first.batch(0)]
        async with engine.life() as second:
            await second.heard()
            assert await reader.take(1) == [Gap(1, 1, lost=True, reason=NO_REPLAY)]


async def test_the_last_batch_before_a_pause_is_missed(engine: Engine) -> None:
    async with engine.life() as publisher, reading(engine, quiet_s=0.2) as reader:
        await reader.start(publisher)
        await publisher.publish()
        await publisher.publish(lose=True)
        assert await reader.take(2) == publisher.batches([0, 1])


async def test_a_reader_goes_on_where_an_earlier_one_was(engine: Engine) -> None:
    async with engine.life() as publisher:
        for _ in range(5):
            await publisher.publish(lose=True)
        place = Place(2, xxh3_128_digest(publisher.payloads[2]))
        async with reading(engine, place=place) as reader:
            assert await reader.take(2) == publisher.batches([3, 4])
            assert publisher.asked[0] == 2
            assert reader.subscriber.place == Place(4, xxh3_128_digest(publisher.payloads[4]))
        async with reading(engine, place=Place(2, b"of another life")) as reader:
            assert await reader.take(6) == [Restarted(), *publisher.batches(range(5))]


async def test_the_captured_restarts_are_seen(engine: Engine) -> None:
    captured = [frames(row) for row in rows("restart")]
    async with engine.life() as publisher, reading(engine, replay=False) as reader:
        await reader.start(publisher)
        for message in captured:
            await publisher.live.send_multipart(message)
        first, second, third = ([decode(m) for m in captured[i : i + 2]] for i in (0, 2, 4))
        assert await reader.take(8) == [
            *first,
            Restarted(),
            *second,
            Restarted(),
            *third,
        ]


# --- endings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(
            {"events": "nowhere"}, "cannot connect to `nowhere`: Invalid argument", id="no address"
        ),
        pytest.param(
            {"events": "nowhere", "bind": True},
            "cannot bind `nowhere`: Invalid argument",
            id="to bind",
        ),
        pytest.param(
            {"events": "tcp://127.0.0.1:9", "replay": "tcp://"},
            "cannot connect to `tcp://`: Invalid argument",
            id="no replay address",
        ),
    ],
)
async def test_an_endpoint_that_cannot_be_used_says_so(options: dict[str, Any], text: str) -> None:
    with pytest.raises(CannotSubscribe, match=rf"^{re.escape(text)}\Z"):
        async with aclosing(Subscriber(**options).items()) as items:
            await anext(items)


async def test_another_machine_s_address_is_connected_to_whatever_was_said() -> None:
    async with aclosing(Subscriber("tcp://192.0.2.1:5557", bind=True).items()) as items:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.1)


async def test_closing_the_items_frees_a_bound_address(engine: Engine) -> None:
    for _ in range(2):
        async with aclosing(Subscriber(engine.events, bind=True).items()) as items:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(items), 0.02)


async def test_a_long_replay_is_read_whole_while_the_reader_is_slow(engine: Engine) -> None:
    """A real ROUTER with its default send limit of 1,000 drops; asking again makes it whole."""
    async with engine.life() as publisher:
        for _ in range(6_000):
            await publisher.publish(lose=True)
        taken: list[Item] = []
        async with (
            asyncio.timeout(5),
            aclosing(Subscriber(engine.events, engine.replay).items()) as items,
        ):
            while len(taken) < 6_000:
                if isinstance(item := await anext(items), Batch):
                    taken.append(item)
                if len(taken) % 100 == 0:
                    await asyncio.sleep(0.001)
        assert taken == publisher.batches(range(6_000))
