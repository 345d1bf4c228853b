"""One engine's flood of events keeps no other engine waiting, and does not pile up in the agent."""

import asyncio
import os
import time
from contextlib import aclosing
from multiprocessing import get_context
from multiprocessing.connection import Connection

import msgspec
import psutil
import pytest
import zmq
import zmq.asyncio

from agent.assignment import AssignedEngine
from agent.engine import Counters, Worker
from agent.sequence import Place
from agent.subscriber import Subscriber
from lineside.clock import SystemClock
from lineside.ids import EngineId
from tests.waiting import until

pytestmark = pytest.mark.flow

BLOCKS = 200_000
RUN = 64
"""Blocks in a batch. The engine's pool holds two batches: each batch evicts the one before last."""

GROWTH_BYTES = 150 * 2**20


def flood(control: Connection, blocks: int) -> None:
    """Publish as fast as it goes, and serve replays of the last batches, as an engine does."""
    context = zmq.Context()
    live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    live.sndhwm = 100_000  # as vLLM has it
    ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (live, router)]
    control.send(ports)
    live.recv()  # the subscription
    sent: list[bytes] = []
    tokens = list(range(1000, 1000 + 16 * RUN))
    for seq in range(blocks // RUN):
        run = range(seq * RUN + 1, (seq + 1) * RUN + 1)
        gone = range((seq - 2) * RUN + 1, (seq - 1) * RUN + 1) if seq > 1 else ()
        events = [
            *({"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU"} for key in gone),
            {
                "type": "BlockStored",
                "block_hashes": list(run),
                "parent_block_hash": None,
                "token_ids": [seq, *tokens[1:]],
                "block_size": 16,
                "medium": "GPU",
            },
        ]
        sent.append(msgspec.msgpack.encode([float(seq), events, 0]))
        live.send_multipart([b"", seq.to_bytes(8, "big"), sent[-1]])
        if router.poll(0):
            serve(router, sent)
    while not control.poll(0):
        if router.poll(50):
            serve(router, sent)
    context.destroy(0)


def serve(router: "zmq.Socket[bytes]", sent: list[bytes]) -> None:
    client, _, start = router.recv_multipart()
    first = max(int.from_bytes(start, "big"), len(sent) - 10_000)
    for seq in range(first, len(sent)):
        router.send_multipart([client, b"", b"", seq.to_bytes(8, "big"), sent[seq]])
    router.send_multipart([client, b"", b"", b"\xff" * 8, b""])


def worker(name: str, ports: list[int]) -> Worker:
    events, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
    assigned = AssignedEngine(EngineId(name), f"http://{name}", 0, events, replay)
    return Worker(assigned, b"secret", Counters(), SystemClock(), lambda: None)


def subscribe(assigned: AssignedEngine, place: Place | None) -> Subscriber:
    return Subscriber(assigned.events, assigned.replay, place=place)


async def test_a_flood_does_not_delay_another_engine() -> None:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=flood, args=(theirs, BLOCKS))
    process.start()
    context = zmq.asyncio.Context()
    live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    quiet_ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (live, router)]
    try:
        busy = worker("busy", await asyncio.to_thread(ours.recv))
        before = psutil.Process(os.getpid()).memory_info().rss
        peak, delays = before, []
        reading = asyncio.create_task(busy.run(subscribe))
        subscriber = Subscriber(*(f"tcp://127.0.0.1:{port}" for port in quiet_ports))
        async with asyncio.timeout(60), aclosing(subscriber.items()) as items:
            stamp = asyncio.create_task(stamps(live, router))
            async for item in items:
                if (sent_at := getattr(item, "ts", None)) is not None:
                    delays.append(time.monotonic() - sent_at)
                    busy.flush()
                peak = max(peak, psutil.Process(os.getpid()).memory_info().rss)
                if busy.status().batches >= BLOCKS // RUN:
                    break
            stamp.cancel()
        await until(lambda: busy.status().blocks == 2 * RUN)
        status = busy.status()
        assert (status.blocks, status.unmatched_removals) == (2 * RUN, 0)
        assert len(delays) > 20
        assert max(delays) < 1.0
        assert peak - before < GROWTH_BYTES
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        ours.send("stop")
        await asyncio.to_thread(process.join, 10)
        context.destroy(0)
    print(f"{len(delays)} messages, worst {max(delays):.3f} s, {(peak - before) / 2**20:.0f} MiB")


async def stamps(live: zmq.asyncio.Socket, router: zmq.asyncio.Socket) -> None:
    """Publish the time, again and again; its replays are answered by nothing."""
    await live.recv()
    client, *_ = await router.recv_multipart()
    await router.send_multipart([client, b"", b"", b"\xff" * 8, b""])
    seq = 0
    while True:
        payload = msgspec.msgpack.encode([time.monotonic(), [], 0])
        await live.send_multipart([b"", seq.to_bytes(8, "big"), payload])
        seq += 1
        await asyncio.sleep(0.01)
