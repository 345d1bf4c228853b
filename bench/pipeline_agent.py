"""The agent under load: 8 engines that prefill 50,000 tokens a second each, over real sockets.

    python bench/pipeline_agent.py        prints its figures as JSON

The agent is the whole process, `agent.main`. Engines are PUB sockets in a child of their own, whose
messages were made beforehand; their caches are full, so that each block stored evicts one. The
coordinator in this process reads what comes, and no more.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec
import psutil
import zmq
import zmq.asyncio
from aiohttp import web

from lineside.v1 import agents_pb2 as pb
from lineside.v1 import agents_pb2_grpc as rpc

ENGINES = 8
BLOCK, STEP_TOKENS, PREFILL_PER_S = 16, 2048, 50_000
BLOCKS = 31_250
"""Half a million tokens an engine."""

PROMPT_STEPS = 4
DECODED = 2
"""Blocks that running sequences fill in a step."""

SECONDS = 10.0
STEP_S = STEP_TOKENS / PREFILL_PER_S
PAGE = Path(__file__).parents[1] / "tests/cases/metrics/under_load.txt"


# --- the engines ----------------------------------------------------------------------------------


def steps(engine: int, count: int) -> Iterator[bytes]:
    """Yield the payloads of an engine's steps; from `BLOCKS` on each block evicts the oldest."""
    rng = random.Random(f"20262 {engine}")
    encode, held = msgspec.msgpack.Encoder().encode, deque[int]()
    parent: int | None = None
    for step in range(count):
        runs = [(parent if step % PROMPT_STEPS else None, STEP_TOKENS // BLOCK)]
        runs += [(rng.choice(held), 1) for _ in range(DECODED) if held]
        events = []
        for above, blocks in runs:
            hashes = [rng.getrandbits(64) for _ in range(blocks)]
            held += hashes
            events.append(_stored(rng, hashes, above))
        parent = events[0]["block_hashes"][-1]
        while len(held) > BLOCKS:  # an event for each, before the stores, as the engine does it
            gone = {"block_hashes": [held.popleft()], "medium": "GPU", "group_idx": 0}
            events.insert(0, {"type": "BlockRemoved", **gone})
        yield encode([time.time(), events, 0])


def _stored(rng: random.Random, hashes: list[int], parent: int | None) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [rng.randrange(150_000) for _ in range(BLOCK * len(hashes))],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


async def publish() -> None:
    """Be all engines: fill the caches when told to, then step by the clock."""
    filling = BLOCKS * BLOCK // STEP_TOKENS
    scripts = [list(steps(n, filling + round(SECONDS / STEP_S) + 25)) for n in range(ENGINES)]
    context = zmq.asyncio.Context()
    sockets = [context.socket(zmq.PUB) for _ in scripts]
    for socket in sockets:
        socket.sndhwm = 0  # nothing is dropped: what is measured is the reader
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(filling):
        for socket, script in zip(sockets, scripts, strict=True):
            await socket.send_multipart([b"kv", number.to_bytes(8, "big"), script[number]])
        await asyncio.sleep(0.005)
    print("filled", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begin = time.monotonic()
    for number in range(filling, len(scripts[0])):
        for turn, (socket, script) in enumerate(zip(sockets, scripts, strict=True)):
            due = begin + (number - filling + turn / ENGINES) * STEP_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await socket.send_multipart([b"kv", number.to_bytes(8, "big"), script[number]])
    context.destroy(linger=0)


# --- the coordinator ------------------------------------------------------------------------------


@dataclass
class Reader(rpc.AgentsServicer):
    """Assigns the engines and counts what the agent sends."""

    engines: list[pb.AssignedEngine]
    messages: int = 0
    bytes: int = 0
    blocks: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)

    async def Connect(
        self, requests: AsyncIterator[pb.AgentMessage], _: object
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        await anext(aiter(requests))
        scheme = pb.KeyScheme(unit=16, hash="xxh3_64")
        yield pb.CoordinatorMessage(
            hello=pb.CoordinatorHello(
                protocol=1, coordinator="c1", key_scheme=scheme, secret=b"secret"
            )
        )
        yield pb.CoordinatorMessage(assignment=pb.Assignment(revision=1, engines=self.engines))
        for engine in self.engines:
            yield pb.CoordinatorMessage(resume=pb.Resume(engine=engine.id))
        async for message in requests:
            self.messages += 1
            self.bytes += message.ByteSize()
            for status in message.update.statuses:
                self.blocks[status.engine] = status.blocks
                self.batches[status.engine] = status.batches


async def serve_pages() -> tuple[web.AppRunner, str]:
    """Serve every engine's /metrics; return the runner and the base URL."""
    page = PAGE.read_bytes()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page)

    app = web.Application()
    app.router.add_get("/{engine}/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def child(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def measure() -> dict[str, float]:
    """Run engines, agent and coordinator; return what the agent took."""
    publishers = await child(__file__, "publish")
    assert publishers.stdin and publishers.stdout
    ports = json.loads(await publishers.stdout.readline())
    pages, base = await serve_pages()
    assigned = [
        pb.AssignedEngine(
            id=f"10.42.0.{n}:8000",
            base_url=f"{base}/{n}",
            events=f"tcp://127.0.0.1:{port}",
            stride=4,
        )
        for n, port in enumerate(ports)
    ]
    reader = Reader(assigned)
    server = grpc.aio.server()
    rpc.add_AgentsServicer_to_server(reader, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent = await child("-m", "agent.main", "--config", "-")
    assert agent.stdin and agent.stdout
    settings = {"coordinators": [f"127.0.0.1:{port}"], "transport": "plaintext"}
    agent.stdin.write(json.dumps(settings | {"log_level": "error"}).encode())
    agent.stdin.close()
    await agent.stdout.readline()
    await asyncio.sleep(2)  # for the subscriptions to arrive
    try:
        return await _under_load(reader, publishers, psutil.Process(agent.pid))
    finally:
        agent.terminate()
        await agent.wait()
        await publishers.wait()
        await server.stop(None)
        await pages.cleanup()


async def _under_load(
    reader: Reader, publishers: asyncio.subprocess.Process, agent: psutil.Process
) -> dict[str, float]:
    assert publishers.stdin and publishers.stdout
    publishers.stdin.write(b"fill\n")
    await publishers.stdout.readline()
    filled = BLOCKS * BLOCK // STEP_TOKENS
    async with asyncio.timeout(30):
        while sum(reader.batches.values()) < ENGINES * filled:  # noqa: ASYNC110 - nobody rings
            await asyncio.sleep(0.1)
    if min(reader.blocks.values()) < BLOCKS - STEP_TOKENS:
        raise SystemExit(f"the caches are not full: {reader.blocks}: the bench is void")
    publishers.stdin.write(b"step\n")
    await asyncio.sleep(0.5)
    messages, sent, before = reader.messages, reader.bytes, agent.cpu_times()
    begin, batches = time.monotonic(), sum(reader.batches.values())
    await asyncio.sleep(SECONDS)
    after, took = agent.cpu_times(), time.monotonic() - begin
    rate = (sum(reader.batches.values()) - batches) / took
    if rate < 0.9 * ENGINES / STEP_S:
        raise SystemExit(f"{rate:.0f} of {ENGINES / STEP_S:.0f} steps a second: the bench is void")
    return {
        "share": (after.user + after.system - before.user - before.system) / took,
        "rss_mib": agent.memory_info().rss / 2**20,
        "blocks": float(sum(reader.blocks.values())),
        "steps_per_s": rate,
        "messages_per_s": (reader.messages - messages) / took,
        "bytes_per_s": (reader.bytes - sent) / took,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["publish"]:
        asyncio.run(publish())
    else:
        print(json.dumps(asyncio.run(measure())))
