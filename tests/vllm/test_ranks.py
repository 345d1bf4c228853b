"""Two data-parallel ranks behind one port: two engines, each with a cache and events of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.vllm.asks import BOUND, complete, known, prompt
from tests.vllm.product import Product, product
from tests.vllm.servers import Fleet, Server

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Iterator[Server]:
    """A server of two ranks."""
    server = fleet.launch("ranks", "--data-parallel-size", "2")
    server.wait()
    yield server
    fleet.end(server)


@pytest.fixture
async def front(server: Server, tmp_path: Path) -> AsyncIterator[Product]:
    """The product before both ranks, which it finds by itself."""
    async with product(tmp_path, {"url": server.url}) as front:
        await front.until_states("live", "live")
        yield front


async def test_each_rank_is_an_engine_and_keeps_its_prompts(front: Product, server: Server) -> None:
    ranks = {f"{server.id}/{rank}" for rank in (0, 1)}
    assert (await front.states()) == dict.fromkeys(ranks, ("live", ""))
    first = await asyncio.gather(*(front.ask(*complete(prompt(90 + n))) for n in range(8)))
    for n in range(8):
        await front.until_known(*complete(prompt(90 + n)), first[n])
    second = [await front.ask(*complete(prompt(90 + n))) for n in range(8)]
    assert {answer.engine for answer in first} == ranks
    for before, after in zip(first, second, strict=True):
        assert before.well
        assert after.well
        assert after.engine == before.engine
        assert after.reported == 192
        assert after.beyond is not None and 0 <= after.beyond < BOUND
    for n in range(8):
        held = await front.overlaps(*complete(prompt(90 + n)))
        assert held == {engine: 192 if engine == first[n].engine else 0 for engine in ranks}


async def test_one_rank_can_be_named_alone(server: Server, tmp_path: Path) -> None:
    async with product(tmp_path, {"url": server.url, "rank": 1}) as front:
        await front.until_states("live")
        for _ in range(2):
            answer = await known(front, complete(prompt(99)))
            assert answer.engine == f"{server.id}/1"
        assert (answer.predicted, answer.reported) == (192, 192)
