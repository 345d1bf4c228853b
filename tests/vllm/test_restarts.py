"""Kill -9 and restart of a real engine, the agent and the coordinator, with a client that goes on.

Whatever was killed, all is right again within 5 s of being up: what survived is known as before,
what is gone is promised no more, and no request fails that need not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.killable import Process
from tests.vllm.asks import BOUND, Request, complete, known, prompt
from tests.vllm.product import Answer, Product, product
from tests.vllm.servers import Fleet, Server
from tests.waiting import until

pytestmark = pytest.mark.vllm

ROOM = 2000
"""Blocks: nothing is evicted here, so that all that is amiss is due to the restart."""

HEALED_WITHIN_S = 5.0
WARM_S = 1.0
DOWN_S = 0.5
AFTER_S = 2.0
PAUSE_S = 0.1

START_S = 0.5
"""A coordinator that listens has asked its engines within this; before, it may answer 503."""

LENGTH = 400
LASTING: Sequence[Request] = [complete(prompt(seed, LENGTH)) for seed in range(300, 308)]


class Engine(Process):
    """A server, as a part of a cluster that can be killed."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.name, [], None, server.log)
        self._server = server

    async def start(self) -> None:
        """Run until it serves."""
        self._server.start()
        await asyncio.to_thread(self._server.wait)

    async def kill(self) -> None:
        """End all of its processes at once."""
        await asyncio.to_thread(self._server.kill)


@dataclass
class Sent:
    """One request of the client's."""

    at: float
    ended: float
    answer: Answer | None
    """`None`: the connection broke, or there was none."""

    @property
    def well(self) -> bool:
        return self.answer is not None and self.answer.well


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> Iterator[tuple[Server, Server]]:
    """Two servers with room for everything."""
    roomy = ("--num-gpu-blocks-override", str(ROOM))
    one, two = fleet.launch("first", *roomy), fleet.launch("second", *roomy)
    for server in (one, two):
        server.wait()
    yield one, two
    fleet.end(one, two)


@asynccontextmanager
async def client(front: Product) -> AsyncIterator[list[Sent]]:
    """Send one request after another, of known and of new prompts, until the block ends."""
    sent: list[Sent] = []
    over = asyncio.Event()

    async def go_on() -> None:
        for n in range(10_000):
            if over.is_set():
                return
            path, body = LASTING[n % 8] if n % 3 else complete(prompt(2000 + n, LENGTH))
            at, answer = time.monotonic(), None
            with suppress(aiohttp.ClientError, TimeoutError):
                answer = await front.ask(path, {**body, "stream": n % 2 == 0})
            sent.append(Sent(at, time.monotonic(), answer))
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go_on())
        try:
            yield sent
        finally:
            over.set()


@pytest.mark.parametrize(
    "killed", ["agent", "coordinator", "first", "agent coordinator", "coordinator first"]
)
async def test_all_is_right_again_after_a_kill(
    killed: str, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    names = killed.split()
    gone = {server.id for server in pair if server.name in names}
    for server in pair:
        await asyncio.to_thread(server.empty)
    async with product(tmp_path, *({"url": server.url} for server in pair)) as front:
        parts = {server.name: Engine(server) for server in pair}
        parts |= {"coordinator": front.coordinator, "agent": front.agent}  # type: ignore[dict-item]
        await front.until_states("live", "live")
        for request in LASTING:
            await known(front, request)
        before = await held(front)
        lives = {id: engine["generation"] for id, engine in (await front.engines()).items()}
        async with client(front) as sent:
            await asyncio.sleep(WARM_S)
            down = time.monotonic()
            await asyncio.gather(*(parts[name].kill() for name in names))
            dead = time.monotonic()  # a busy machine takes its time; until then requests are taken
            await asyncio.sleep(DOWN_S)
            await asyncio.gather(*(parts[name].start() for name in names))
            up = time.monotonic()
            await until_healed(front, before, {id: lives[id] for id in gone})
            healed = time.monotonic()
            await asyncio.sleep(AFTER_S)
        print(f"\n{killed}: {len(sent)} requests; right {healed - up:.2f} s after it was up again")
        await audit(front, pair)
    late = [each for each in sent if each.at > healed]
    assert late
    assert [each for each in late if not each.well] == []
    answers = [each.answer for each in late if each.answer is not None]
    assert [a for a in answers if a.beyond is None or not 0 <= a.beyond < BOUND] == []
    failed = [each for each in sent if not each.well]
    said = [(round(e.at - down, 3), e.answer and e.answer.status) for e in failed]
    print(f"  {len(failed)} failed after the kill, which took {dead - down:.3f} s: {said}")
    assert [each for each in failed if not excused(each, names, dead, up)] == []


async def held(front: Product) -> list[dict[str, int]]:
    """Return what each engine holds of each lasting prompt, as far as is known."""
    return [await front.overlaps(*request) for request in LASTING]


async def until_healed(front: Product, before: list[dict[str, int]], gone: dict[str, str]) -> None:
    """Wait until what survived is known as before, and of the others that they are new."""

    async def so() -> bool:
        try:
            engines, now = await front.engines(), await held(front)
        except (aiohttp.ClientError, KeyError):
            return False
        return all(
            engine["cache_state"] == "live"
            and (
                engine["generation"] != gone[id]
                if id in gone
                else all(n.get(id, 0) >= b[id] for n, b in zip(now, before, strict=True))
            )
            for id, engine in engines.items()
        )

    try:
        await until(so, HEALED_WITHIN_S)
    except TimeoutError:
        raise AssertionError(
            f"not right {HEALED_WITHIN_S} s after it was up: {await front.states()}, "
            f"{await held(front)} and not {before}"
        ) from None


async def audit(front: Product, pair: Sequence[Server]) -> None:
    """Hold what is known of each engine against its own word."""
    found = []
    for request in LASTING:
        overlaps = await front.overlaps(*request)
        for server in pair:
            said = await asyncio.to_thread(server.post, *request)
            reported = said["usage"]["prompt_tokens_details"]["cached_tokens"]
            found.append((server.name, overlaps[server.id], reported))
    assert [each for each in found if not 0 <= each[2] - each[1] < BOUND] == []
    assert any(reported for _, _, reported in found)


def excused(failed: Sent, names: Sequence[str], dead: float, up: float) -> bool:
    """Say whether nobody was there to take a request, or it was in the hands of what was killed."""
    status = failed.answer.status if failed.answer is not None else None
    if "coordinator" in names and failed.at <= up + START_S:
        return status in (None, 503) or failed.at <= dead
    engines_too = any(name not in ("coordinator", "agent") for name in names)
    return engines_too and failed.at <= dead  # it may have run, so it is not sent again


async def test_a_restart_of_an_idle_engine_is_noticed_without_a_request(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    """Nothing is sent meanwhile: neither the killed engine nor the new one says a word."""
    server, _ = pair
    request = complete(prompt(309))
    async with product(tmp_path, {"url": server.url}) as front:
        await front.until_states("live")
        await known(front, request)
        assert await front.overlaps(*request) == {server.id: 192}
        engine = Engine(server)
        await engine.kill()
        await asyncio.sleep(DOWN_S)
        await engine.start()

        async def is_forgotten() -> bool:
            return await front.overlaps(*request) == {server.id: 0}

        await until(is_forgotten, HEALED_WITHIN_S)
        await front.until_states("live")
        answer = await front.ask(*request)
        assert (answer.predicted, answer.reported) == (0, 0)
