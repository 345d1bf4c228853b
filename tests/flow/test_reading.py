"""What the agent says of simulated engines that misbehave, against what their replay tells."""

import asyncio
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq

from agent import scrape
from agent.assignment import AssignedEngine
from agent.checkpoint import Checkpoints, Key, Saved
from agent.engine import Counters, Worker
from agent.kv_events import decode, is_replay_end, replay_request
from agent.residency import Residency
from agent.sequence import Place
from agent.silence import ALARM_S, LAG_S
from agent.subscriber import Subscriber
from lineside.clock import SystemClock
from lineside.ids import BlockKey, EngineId, Medium
from lineside.signals import Events, Load
from tests.captures import ids
from tests.simulated import LIMIT_S, complete, engine, launch, next_frames, opened, post
from tests.waiting import until

pytestmark = pytest.mark.flow

SECRET = b"secret"
STRIDE = 2
Held = dict[BlockKey, Medium]


def session(listening: dict[str, Any]) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    return aiohttp.ClientSession(f"http://{listening['http']}", timeout=timeout)


def subscribe(assigned: AssignedEngine, place: Place | None) -> Subscriber:
    return Subscriber(
        assigned.events,
        assigned.replay,
        bind=assigned.events_bind,
        place=place,
        silence_s=0.5,
        quiet_s=0.3,
    )


class Reader:
    """A worker, flushed by the test in the node's place."""

    def __init__(self, listening: dict[str, Any], sockets: dict[str, str], rank: int, bind: bool):
        self.assigned = AssignedEngine(
            EngineId(f"{listening['http']}/{rank}"),
            f"http://{listening['http']}",
            rank,
            sockets["events"],
            sockets["replay"],
            events_bind=bind,
            stride=STRIDE,
        )
        self.counters = Counters()
        self.worker = Worker(self.assigned, SECRET, self.counters, SystemClock(), lambda: None)

    def held(self) -> Held:
        self.worker.flush()
        return dict(self.worker.log.held)

    @property
    def state(self) -> tuple[Events, str]:
        status = self.worker.status()
        return status.events, status.reason

    async def agrees(self, seconds: float = 5.0) -> Held:
        """Wait until what is said is what the engine's replay tells, and is called live."""
        async with asyncio.timeout(seconds):
            while True:
                truth = await told(self.assigned.replay)
                if self.held() == truth and self.state == (Events.LIVE, ""):
                    return truth
                await asyncio.sleep(0.02)

    async def load(self) -> Load:
        async with aiohttp.ClientSession() as client:
            page = await scrape.fetch(client, self.assigned.base_url)
        assert isinstance(page, bytes)
        return scrape.parse(page, [self.assigned.rank], "0.32.0")[self.assigned.rank]


async def told(replay: str) -> Held:
    """Return what an engine holds by its own replay from the start."""
    residency = Residency(SECRET, STRIDE)
    with opened(zmq.DEALER, replay) as socket:
        await socket.send_multipart(replay_request(0))
        while not is_replay_end(frames := await next_frames(socket)):
            for event in decode(frames).events:
                residency.apply(event)
    return dict(residency.held())


@asynccontextmanager
async def reading(
    listening: dict[str, Any],
    rank: int = 0,
    *,
    bind: bool = False,
    remembered: Saved | str = "none",
) -> AsyncIterator[Reader]:
    sockets = listening["ranks"][rank] if "ranks" in listening else listening

    async def remember(_: Key) -> Saved | str:
        return remembered

    reader = Reader(listening, sockets, rank, bind)
    task = asyncio.create_task(reader.worker.run(subscribe, remember))
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def serve(client: aiohttp.ClientSession, *seeds: int, length: int = 200) -> None:
    for seed in seeds:
        await complete(client, ids(seed, length))


@contextmanager
def lives(*arguments: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Give a function that kills the engine, if there is one, and starts it on its ports."""
    process: Any = None
    ports: list[str] = []

    def end() -> None:
        if process is not None:
            process.kill()
            assert process.wait(LIMIT_S) == -signal.SIGKILL
            process.stdout.close()

    def begin() -> dict[str, Any]:
        nonlocal process, ports
        end()
        process, listening = launch(*arguments, *ports)
        http, events, replay = (
            listening[name].rpartition(":")[2] for name in ("http", "events", "replay")
        )
        ports = ["--port", http, "--kv-port", events, "--replay-port", replay]
        return listening

    try:
        yield begin
    finally:
        end()


# --- faults ---------------------------------------------------------------------------------------


async def test_lost_doubled_and_late_batches_end_in_the_truth() -> None:
    rng = random.Random(3)
    kinds = ("drop_batches", "duplicate_batches", "reorder_batches", "lose_replies")
    with engine("--faults") as listening:
        async with session(listening) as client, reading(listening) as reader:
            await serve(client, 1)
            await reader.agrees()
            for _ in range(6):
                fault: dict[str, Any] = {"fault": rng.choice(kinds), "count": rng.randint(1, 3)}
                if fault["fault"] == "lose_replies":
                    fault |= {"after": rng.randint(0, 2), "replies": 2}
                await post(client, "/sim/faults", **fault)
                await serve(client, *(rng.randrange(12) for _ in range(5)))
            async with client.delete("/sim/faults"):
                pass
            await serve(client, 50)
            assert await reader.agrees()
    assert reader.counters.gaps > 0
    assert reader.worker.status().unmatched_removals == 0


async def test_a_killed_engine_is_read_anew_though_its_numbers_have_passed() -> None:
    with lives() as begin:
        listening = begin()
        async with reading(listening) as reader:
            async with session(listening) as client:
                await serve(client, 1, 2)
                first = await reader.agrees()
            async with session(begin()) as client:
                await serve(client, 3, 4, 5, 6, 7)
                second = await reader.agrees()
            begin()
            await until(lambda: reader.held() == {})
            await until(lambda: reader.counters.restarts == 2)
    assert first.keys().isdisjoint(second)


async def test_numbers_that_begin_anew_on_an_open_connection_are_a_new_life() -> None:
    with engine("--faults") as listening:
        async with session(listening) as client, reading(listening) as reader:
            await serve(client, 1, 2)
            await reader.agrees()
            await post(client, "/sim/faults", fault="reset_sequence")
            await until(lambda: reader.held() == {})
            await serve(client, 3)
            assert await reader.agrees()


async def test_a_tiny_replay_buffer_loses_and_a_clear_makes_whole() -> None:
    with engine("--faults") as listening:
        async with session(listening) as client, reading(listening) as reader:
            await serve(client, 1)
            await reader.agrees()
            await post(client, "/sim/faults", fault="shrink_replay_buffer", steps=5)
            await post(client, "/sim/faults", fault="drop_batches", count=20)
            await serve(client, *range(10, 30), length=64)
            await serve(client, 31)
            await until(lambda: reader.state[0] is Events.UNSURE and "lost" in reader.state[1])
            await post(client, "/reset_prefix_cache")
            await serve(client, 32)
            await until(lambda: reader.state[0] is Events.LIVE)
            await serve(client, 33)
            await until(lambda: len(reader.held()) == 2 * (192 // 16 // STRIDE))


async def test_blocks_announced_anew_heal_a_loss() -> None:
    """As the coordinator asks for it, on engines from 0.26."""
    with engine("--faults") as listening:
        async with session(listening) as client:
            await serve(client, 1, 2)
            await post(client, "/sim/faults", fault="shrink_replay_buffer", steps=1)
            async with reading(listening) as reader:
                await until(lambda: "lost" in reader.state[1])
                before = reader.held()
                for _ in range(2):
                    full = {"kv_cache_report_mode": "full"}
                    await complete(client, ids(1, 200), vllm_xargs=full)
                await until(lambda: len(reader.held()) == 2 * (192 // 16 // STRIDE))
                assert before.keys() < reader.held().keys()
                assert reader.worker.status().blocks == 12
                reader.worker.healed(reader.worker.log.generation)
                assert reader.state == (Events.LIVE, "")


# --- shapes ---------------------------------------------------------------------------------------


async def test_each_rank_is_read_for_itself() -> None:
    with engine("--data-parallel-size", "2") as listening:
        async with (
            session(listening) as client,
            reading(listening, 0) as one,
            reading(listening, 1) as other,
        ):
            for rank, seeds in ((0, (1, 2)), (1, (3,))):
                for seed in seeds:
                    body = {"prompt": list(ids(seed, 200)), "max_tokens": 1}
                    header = {"X-data-parallel-rank": str(rank)}
                    async with client.post("/v1/completions", json=body, headers=header) as answer:
                        assert answer.status == 200
            first, second = await one.agrees(), await other.agrees()
    assert (len(first), len(second)) == (12, 6)
    assert first.keys().isdisjoint(second)


async def test_a_publisher_that_connects_is_listened_to() -> None:
    with opened_port() as port, engine("--kv-connect", f"tcp://127.0.0.1:{port}") as listening:
        async with session(listening) as client, reading(listening, bind=True) as reader:
            await serve(client, 1)
            assert await reader.agrees()
            await serve(client, 2)
            assert await reader.agrees()


@contextmanager
def opened_port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


# --- silence, reset, sleep ------------------------------------------------------------------------


async def test_prompts_without_events_are_an_alarm() -> None:
    with engine("--faults") as listening:
        async with session(listening) as client, reading(listening) as reader:
            await serve(client, 1)
            await reader.agrees()
            at = SystemClock().monotonic() + LAG_S + 1
            reader.worker.saw(await reader.load(), at)
            await post(client, "/sim/faults", fault="mute_events")
            await serve(client, 2, 3)
            load = await reader.load()
            reader.worker.saw(load, at + 1)
            assert reader.state[0] is Events.LIVE
            reader.worker.saw(load, at + 1 + ALARM_S)
            assert reader.state == (
                Events.UNSURE,
                "no events, though 400 uncached prompt tokens were computed",
            )


async def test_a_reset_shows_with_the_next_step_and_sleep_at_once() -> None:
    with engine() as listening:
        async with session(listening) as client, reading(listening) as reader:
            await serve(client, 1)
            before = await reader.agrees()
            await post(client, "/reset_prefix_cache")
            await asyncio.sleep(0.1)
            assert reader.held() == before  # nothing on the wire and no series tells
            await serve(client, 2)
            after = await reader.agrees()
            assert before.keys().isdisjoint(after)
            async with client.post("/sleep?level=1") as answer:
                assert answer.status == 200
            reader.worker.saw(await reader.load(), SystemClock().monotonic())
            assert reader.held() == {}
            async with client.post("/wake_up") as answer:
                assert answer.status == 200
            await serve(client, 3)
            assert await reader.agrees()


async def test_another_stride_needs_nothing_that_the_engine_has_forgotten() -> None:
    with engine("--faults") as listening:
        async with session(listening) as client, reading(listening) as reader:
            await post(client, "/sim/faults", fault="shrink_replay_buffer", steps=5)
            sent = 0
            for stride in (STRIDE, 4, 1, 4):
                reader.worker.follow(replace(reader.assigned, stride=stride))
                assert len(reader.held()) == sent * 4 // stride
                for _ in range(5):  # in all fewer than the engine has room for
                    sent += 1
                    await serve(client, sent, length=64)  # of four units
                    await until(lambda held=sent * 4 // stride: len(reader.held()) == held)  # type: ignore[misc]
            assert reader.state == (Events.LIVE, "")
            assert reader.counters.gaps == 0


# --- the agent's own restart ----------------------------------------------------------------------


async def test_a_restarted_agent_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with engine("--faults") as listening:
        async with session(listening) as client:
            await post(client, "/sim/faults", fault="shrink_replay_buffer", steps=5)
            async with reading(listening) as reader:
                await until(lambda: reader.worker.status().events is not Events.UNUSABLE)
                for seed in range(1, 10):
                    await serve(client, seed, length=64)
                    await until(lambda at=seed: len(reader.held()) == at * 2)  # type: ignore[misc]
                captured = await reader.worker.captured()
                assert captured is not None
                checkpoints.save(reader.worker.key, captured)
                held, key = reader.held(), reader.worker.key
            await serve(client, 20, 21, length=64)
            async with reading(listening, remembered=checkpoints.load(key)) as again:
                await until(lambda: again.state == (Events.LIVE, ""))
                assert held.keys() < again.held().keys()
                assert len(again.held()) == 22
            async with reading(listening) as forgetful:
                await until(lambda: "lost" in forgetful.state[1])
                assert len(forgetful.held()) < 22
            await post(client, "/sim/faults", fault="reset_sequence")
            async with reading(listening, remembered=checkpoints.load(key)) as late:
                await until(lambda: late.counters.restarts == 1)
                assert late.held() == {}
