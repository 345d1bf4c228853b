"""The simulated engine's events and replay on real sockets: numbers, order, restarts, losses."""

import asyncio

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from lineside.clock import SystemClock
from simulate.content import BlockHash, BlockStored
from simulate.events import BatchEncoder
from simulate.faults import Faults
from simulate.publisher import END_MARKER, Addresses, Publisher
from tests.captures import ids
from tests.simulated import TOPIC, complete, engine, next_frames, opened, post

pytestmark = pytest.mark.flow


async def test_events_arrive_numbered_and_replay_equals_them() -> None:
    with engine() as listening, opened(zmq.SUB, listening["events"]) as live:
        live.subscribe("")
        async with aiohttp.ClientSession(f"http://{listening['http']}") as client:
            async with client.get("/kv_event_sources") as response:
                source = (await response.json())["0"]
            addresses = (source["endpoint"], source["replay_endpoint"])
            assert addresses == (listening["events"], listening["replay"])
            while True:  # the subscription takes effect some time after it was asked for
                await complete(client, ids(70, 100))
                await post(client, "/reset_prefix_cache")
                if await live.poll(50):
                    break
            for seed in (71, 72, 71):
                await complete(client, ids(seed, 100))
        received = [await next_frames(live)]
        while await live.poll(200):
            received.append(await next_frames(live))
        numbers = [int.from_bytes(frames[1], "big") for frames in received]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {frames[0] for frames in received} == {TOPIC.encode()}
        kinds = [[e["type"] for e in msgspec.msgpack.decode(f[2])[1]] for f in received[-2:]]
        assert kinds == [["AllBlocksCleared", "BlockStored"], ["BlockStored"]]
        await check_replay(listening["replay"], received)


async def check_replay(address: str, received: list[list[bytes]]) -> None:
    end = [b"", b"", END_MARKER, b""]
    with opened(zmq.DEALER, address) as reader:
        await reader.send_multipart([b"", received[0][1]])
        replies = [await next_frames(reader)]
        while replies[-1] != end:
            replies.append(await next_frames(reader))
        assert replies[:-1] == [[b"", *frames] for frames in received]
        await reader.send_multipart([b"", (10_000).to_bytes(8, "big")])
        assert await next_frames(reader) == end
        await reader.send_multipart([received[0][1]])
        assert await reader.poll(200) == 0


async def test_numbers_start_again_with_the_process() -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as live:
        live.linger = 0
        live.subscribe("")
        port, numbers = "0", []
        for _ in range(2):
            with engine("--kv-port", port) as listening:
                live.connect(listening["events"])
                numbers.append(await heard(listening["http"], live))
                port = listening["events"].rpartition(":")[2]
    assert numbers[0][-1] > numbers[1][0]


async def heard(http: str, live: zmq.asyncio.Socket) -> list[int]:
    """Cause events until one arrives, and twenty more; return the numbers that arrived."""
    async with aiohttp.ClientSession(f"http://{http}") as client:
        while not await live.poll(50):
            await post(client, "/reset_prefix_cache")
            await complete(client, ids(80, 100))
        for seed in range(20):
            await complete(client, ids(100 + seed, 40))
    numbers = []
    while await live.poll(200):
        numbers.append(int.from_bytes((await next_frames(live))[1], "big"))
    return numbers


async def test_a_stalled_reader_of_a_long_replay_loses_messages_silently() -> None:
    publisher = Publisher(
        Addresses(host="127.0.0.1"),
        topic="",
        buffer_steps=4000,
        encoder=BatchEncoder(),
        faults=Faults(SystemClock()),
        clock=SystemClock(),
    )
    tokens = [1] * 4096
    event = BlockStored([BlockHash(bytes(32))], None, tokens, 4096, None, [None], None)
    for _ in range(4001):
        publisher.publish(1.0, [event])
    serving = asyncio.create_task(publisher.serve())
    with opened(zmq.DEALER, publisher.replay_endpoint, rcvhwm=10, rcvbuf=8192) as reader:
        await reader.send_multipart([b"", bytes(8)])
        await asyncio.sleep(1.0)  # the reader stalls, while the engine sends all it has
        numbers = []
        while await reader.poll(300):
            numbers.append((await next_frames(reader))[2])
    serving.cancel()
    publisher.close()
    assert numbers[0] == (1).to_bytes(8, "big")  # 0 fell out of the buffer
    assert 1000 < len(numbers) < 4000
    assert END_MARKER not in numbers
