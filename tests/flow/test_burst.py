"""Bursts and sleepers through the gateway to simulated engines, whose agent is a stand-in."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.dialling import Dialling
from agent.report import Reporter
from agent.signals import Observed
from coordinator.config import EngineSpec
from lineside.clock import SystemClock
from lineside.ids import EngineId, NodeId
from lineside.signals import Load
from tests import simulated
from tests.gateways import Running, coordinator
from tests.streams import FakeHub
from tests.waiting import until

pytestmark = pytest.mark.flow

SIZE = ("--blocks", "2048", "--max-model-len", "8192", "--max-num-batched-tokens", "8192")
RNG = random.Random(3)
PREFILL_TOKENS_PER_S = 1000.0
"""Slow enough that a prompt's prefix outweighs a queue of twenty."""


@dataclass
class SleepyHub(FakeHub):
    """An agent that is told which engines sleep."""

    sleep: dict[EngineId, Observed[Load]] = field(default_factory=dict)

    def loads(self) -> dict[EngineId, Observed[Load]]:
        return self.sleep

    def put_to_sleep(self, engine: EngineId, asleep: bool) -> None:
        self.sleep[engine] = self.observed(Load(asleep=asleep))
        self.announce()


@asynccontextmanager
async def cell(engines: int, hub: FakeHub | None = None) -> AsyncIterator[Running]:
    """Run engines, a coordinator, and an agent that vouches for caches it hears nothing of."""
    async with AsyncExitStack() as stack:
        found = [stack.enter_context(simulated.engine(*SIZE)) for _ in range(engines)]
        specs = [EngineSpec(url=f"http://{each['http']}") for each in found]
        settings = {"prefill_tokens_per_s": PREFILL_TOKENS_PER_S}
        running = await stack.enter_async_context(coordinator(*specs, **settings))
        line = Dialling.plaintext().to(running.grpc)
        reporter = Reporter(line, NodeId("local"), "life", hub or FakeHub(), SystemClock())
        reporting = asyncio.create_task(reporter.run())
        try:
            await until(running.ready)
            yield running
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


async def send(running: Running, prompt: list[int]) -> dict[str, Any]:
    body = {"model": simulated.MODEL, "prompt": prompt, "max_tokens": 2, "stream": True}
    status, headers, _ = await running.post("/v1/completions", body)
    assert status == 200
    return await running.record(headers)


def text(tokens: int) -> list[int]:
    return [RNG.randrange(1000, 2000) for _ in range(tokens)]


async def metric(running: Running, name: str) -> float:
    async with running.session.get(running.admin + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_a_burst_with_one_cold_prefix_lands_together() -> None:
    async with cell(3) as running:
        prefix = text(2048)
        records = await asyncio.gather(*(send(running, prefix + text(20)) for _ in range(20)))
        assert Counter(record["decision"]["id"] for record in records).most_common(1)[0][1] == 20
        outcomes = [record["outcome"] for record in records]
        assert {outcome["predicted_cached_tokens"] for outcome in outcomes} == {0}
        assert sorted(outcome["speculative_tokens"] for outcome in outcomes) == [0] + [2048] * 19
        assert sorted(outcome["cached_tokens"] for outcome in outcomes) == [0] + [2048] * 19
        # The index knew nothing, and what was on its way explains all that the engines report.
        assert await metric(running, "lineside_cached_tokens_error_total") == 0
        assert (
            await metric(running, 'lineside_cached_tokens_total{source="confirmed"}') == 19 * 2048
        )
        assert await running.inflight() == [0, 0, 0]


async def test_unrelated_requests_at_once_are_spread() -> None:
    async with cell(3) as running:
        records = await asyncio.gather(*(send(running, text(100)) for _ in range(50)))
        sent = Counter(record["decision"]["id"] for record in records)
        assert (len(sent), max(sent.values()) / min(sent.values()) <= 2) == (3, True)


async def test_a_sleeping_engine_gets_nothing_until_it_wakes() -> None:
    hub = SleepyHub()
    async with cell(2, hub) as running:
        first, second = [EngineId(each["id"]) for each in await running.debug("/debug/engines")]

        async def shows(asleep: bool) -> bool:
            (found, _) = await running.debug("/debug/engines")
            return found["asleep"] is asleep

        hub.put_to_sleep(first, True)
        await until(lambda: shows(asleep=True))
        assert (await running.debug("/debug/engines"))[0]["reason"] == "the engine sleeps"
        assert (await running.debug("/readyz"))["degraded"] == [f"engine {first} sleeps"]
        records = [await send(running, text(100)) for _ in range(6)]
        assert {record["decision"]["id"] for record in records} == {second}
        dropped = [c for c in records[0]["candidates"] if c["id"] == first]
        assert [(c["dropped_by"], c["reason"]) for c in dropped] == [
            ("asleep", "the engine sleeps")
        ]
        hub.put_to_sleep(first, False)
        await until(lambda: shows(asleep=False))
        seen: set[str] = set()

        async def both() -> bool:
            seen.add((await send(running, text(100)))["decision"]["id"])
            return seen == {first, second}

        await until(both)
