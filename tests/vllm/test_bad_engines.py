"""Real engines that are not as the others: each ends in the right state, with the right words.

What no real engine does (an odd block size, replies lost on purpose) is in
tests/flow/test_odd_engines.py.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.killable import free_ports
from tests.vllm.asks import complete, known, prompt
from tests.vllm.model import BLOCK, NAME
from tests.vllm.product import Product, product
from tests.vllm.servers import BLOCKS, EVENTS, Fleet, Server

pytestmark = pytest.mark.vllm

WIDE = 64
LIVE = ("live", "")
NO_EVENTS = ("none", "the engine publishes no KV events")

FLOOD, FLOODED = 3000, 480
"""Prompts of so many tokens each: one batch a prompt where one runs at a time."""

KNOWN = 10
"""Of the last of them, the blocks of which are surely still there."""


@pytest.fixture(scope="module")
def servers(fleet: Fleet) -> Iterator[dict[str, Server]]:
    """One of each kind; each has a name that only it answers to."""
    ports = free_ports(2)
    connecting = {
        **EVENTS,
        "endpoint": f"tcp://127.0.0.1:{ports[0]}",  # no `*`: vLLM's publisher connects to it
        "replay_endpoint": f"tcp://127.0.0.1:{ports[1]}",
    }
    options: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "off": ((), {"events": None}),
        "wide": (("--block-size", str(WIDE)), {}),
        "bytes": (
            ("--prefix-caching-hash-algo", "sha256_cbor", "--max-num-seqs", "1"),
            {"environment": {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0", "PYTHONHASHSEED": "0"}},
        ),
        "connecting": ((), {"events": connecting}),
    }
    launched: dict[str, Server] = {}
    for names in (("off", "wide"), ("bytes", "connecting")):  # two cores start two at a time
        for name in names:
            words, others = options[name]
            own = ("--served-model-name", NAME, f"only-{name}")
            launched[name] = fleet.launch(name, *own, *words, **others)
        for name in names:
            launched[name].wait()
    yield launched
    fleet.end(*launched.values())


async def test_each_is_called_what_it_is_and_matched_as_far_as_it_can_be(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    async with product(tmp_path, *({"url": server.url} for server in servers.values())) as front:
        await front.until_states("none", "live", "live", "live")
        for name in servers:
            await found(front, name, None if name == "off" else 192)
        assert await front.states() == {
            server.id: NO_EVENTS if name == "off" else LIVE for name, server in servers.items()
        }
        sizes = {id: engine["block_size"] for id, engine in (await front.engines()).items()}
        assert sizes == {
            server.id: WIDE if name == "wide" else BLOCK for name, server in servers.items()
        }
        ready = await front.debug("/readyz")
        assert ready["ready"] is True


async def found(front: Product, name: str, expected: int | None) -> None:
    """Send a prompt to one engine twice; compare what was promised of the second."""
    request = complete(prompt(200), model=f"only-{name}")
    if expected is None:
        assert (await front.ask(*request)).well
    else:
        await known(front, request)
    again = await front.ask(*request)
    assert (again.predicted, again.reported) == (expected, 192), name


async def test_a_publisher_that_connects_to_another_reader_is_unusable(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    server = servers["connecting"]
    endpoint = server.get("/kv_event_sources")["0"]["endpoint"]
    with zmq.Context() as context, context.socket(zmq.SUB) as other:
        other.linger = 0
        other.bind(endpoint)
        async with product(tmp_path, {"url": server.url}) as front:
            await front.until_states("unusable")
            state, reason = (await front.states())[server.id]
            print(f"\nanother reader listens there: {state}, {reason}")
            answer = await front.ask(*complete(prompt(201)))
            assert answer.well
            assert answer.predicted is None
    assert reason == f"cannot bind `{endpoint}`: Address already in use"


async def test_a_replay_of_thousands_is_read_whole(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    """vLLM drops what its replay socket's queue of 1,000 does not hold, and says nothing."""
    server = servers["bytes"]
    seeds = range(10_000, 10_000 + FLOOD)
    for start in range(0, FLOOD, 250):
        several = [prompt(seed, FLOODED) for seed in seeds[start : start + 250]]
        body = complete(several)[1] | {"max_tokens": 1}
        await asyncio.to_thread(server.post, "/v1/completions", body)
    began = time.monotonic()
    async with product(tmp_path, {"url": server.url}) as front:
        await front.until_states("live", within_s=30)
        took_s = time.monotonic() - began
        engine = (await front.engines())[server.id]
        print(f"\n{engine['blocks']} blocks known {took_s:.1f} s after the start")
        assert engine["gaps"] == engine["unmatched_removals"] == 0
        assert engine["blocks"] <= BLOCKS - 1
        assert await front.states() == {server.id: LIVE}
        held = [await front.overlaps(*complete(prompt(s, FLOODED))) for s in seeds[-KNOWN:]]
        assert held == [{server.id: 448}] * KNOWN
        gone = random.Random(1).sample(seeds[: FLOOD // 2], KNOWN)
        held = [await front.overlaps(*complete(prompt(s, FLOODED))) for s in gone]
        assert held == [{server.id: 0}] * KNOWN
