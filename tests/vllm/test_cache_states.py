"""A reset, and sleep: what empties a real engine's cache without a word, or with one word late."""

import asyncio
from pathlib import Path

import pytest

from tests.vllm.asks import BOUND, complete, known, prompt
from tests.vllm.product import Product, product
from tests.vllm.servers import Server
from tests.waiting import until

pytestmark = pytest.mark.vllm


async def held_by(front: Product, seed: int) -> str:
    """Make a prompt known; return the engine that holds it."""
    await known(front, complete(prompt(seed)))
    second = await front.ask(*complete(prompt(seed)))
    assert (second.predicted, second.reported) == (192, 192)
    return second.engine


async def test_a_reset_is_known_with_the_engines_next_step(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    server, _ = pair
    async with product(tmp_path, {"url": server.url}) as front:
        await front.until_states("live")
        await held_by(front, 70)
        assert server.post("/reset_prefix_cache") == {"success": True}
        first = await known(front, complete(prompt(70)))
        assert first.reported == 0  # and nothing has said so before
        second = await front.ask(*complete(prompt(70)))
        assert (second.predicted, second.reported) == (192, 192)
        assert await front.states() == {server.id: ("live", "")}


async def test_a_reset_that_preempts_breaks_no_request(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    server, _ = pair
    async with product(tmp_path, {"url": server.url}) as front:
        await front.until_states("live")
        await held_by(front, 71)
        long = asyncio.create_task(front.ask(*complete(prompt(71), max_tokens=400, stream=True)))
        await asyncio.sleep(0.5)
        said = await asyncio.to_thread(
            server.post, "/reset_prefix_cache?reset_running_requests=true"
        )
        answer = await long
        assert said == {"success": True}
        assert answer.well
        assert answer.record["outcome"]["completion_tokens"] == 400
        await front.until_known(*complete(prompt(71)), answer)
        again = await front.ask(*complete(prompt(71)))
        assert again.reported is not None
        assert again.beyond is not None and 0 <= again.beyond < BOUND


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        pytest.param(0, 192, id="level 0 only pauses: the cache stays"),
        pytest.param(1, 0, id="level 1 drops the cache"),
    ],
)
async def test_an_engine_that_sleeps_gets_nothing_and_wakes_as_what_it_is(
    pair: tuple[Server, Server], tmp_path: Path, level: int, kept: int
) -> None:
    """The CPU build keeps the weights at every level, and refuses `--enable-sleep-mode`."""
    async with product(tmp_path, *({"url": server.url} for server in pair)) as front:
        for server in pair:
            await asyncio.to_thread(server.empty)
        await front.until_states("live", "live")
        sleeper = await held_by(front, 80 + level)
        server = next(each for each in pair if each.id == sleeper)

        async def is_asleep() -> bool:
            return bool((await front.engines())[sleeper]["asleep"])

        async def is_awake() -> bool:
            return not await is_asleep()

        server.post(f"/sleep?level={level}")
        try:
            await until(is_asleep)
            other = await front.ask(*complete(prompt(80 + level)))
            assert other.well
            assert other.engine != sleeper
        finally:
            server.post("/wake_up")
        await until(is_awake)
        request = complete(prompt(80 + level))
        assert (await front.overlaps(*request))[sleeper] == kept
        reply = await asyncio.to_thread(server.post, *request)
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == kept

        async def is_known_again() -> bool:
            overlaps = await front.overlaps(*request)
            return overlaps[sleeper] == 192

        await until(is_known_again)
