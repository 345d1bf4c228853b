"""One engine's snapshot of a million keys, from an agent's reporter to the coordinator's index.

    python bench/pipeline_snapshot.py        prints its figures as JSON

The reporter runs in a child of its own. Both loops note how much too late short sleeps end, which
is for how long they could do nothing else.
"""

import asyncio
import gc
import json
import random
import sys
import time
from contextlib import suppress

import uvloop

from agent.assignment import Assigned, Scheme
from agent.dialling import Dialling
from agent.digest_log import DigestLog
from agent.peers import Peers as AgentPeers
from agent.report import Reporter
from agent.signals import Observed
from bench.pipeline_ingest import Lag, engines, node_id, served
from coordinator.holdings.caches import Caches
from lineside.clock import SystemClock
from lineside.ids import BlockKey, EngineId, Generation, Medium
from lineside.signals import Load, NodeGpus, Status

KEYS = 1_000_000


class Hub:
    """An agent with one engine that holds `KEYS` keys and is otherwise silent."""

    def __init__(self, engine: EngineId) -> None:
        rng = random.Random(20263)
        self._log = DigestLog(engine, 4)
        self._log.restart(1, {BlockKey(rng.getrandbits(64)): Medium.GPU for _ in range(KEYS)})
        self.peers = AgentPeers()
        self._scheme: Scheme | None = None

    def adopt(self, scheme: Scheme, assigned: Assigned) -> None:
        self._scheme = scheme

    def scheme(self) -> Scheme | None:
        return self._scheme

    def release(self, coordinator: str) -> None:
        pass

    def vouched(self, engine: EngineId, generation: Generation) -> None:
        pass

    def doubted(
        self, engine: EngineId, generation: Generation, reason: str, *, overstated: bool
    ) -> None:
        pass

    def log(self, engine: EngineId) -> DigestLog | None:
        return self._log if engine == self._log.engine else None

    def statuses(self) -> dict[EngineId, Observed[Status]]:
        return {}

    def loads(self) -> dict[EngineId, Observed[Load]]:
        return {}

    def gpus(self) -> Observed[NodeGpus] | None:
        return None

    def subscribe(self) -> asyncio.Event:
        return asyncio.Event()


async def report(address: str) -> None:
    """Be the agent, until standard input ends; print the longest stall of the loop."""
    hub, lag = Hub(engines()[0].id), Lag()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    watching = asyncio.create_task(lag.watch())
    reporter = Reporter(Dialling.plaintext().to(address), node_id(0), "life", hub, SystemClock())
    reporting = asyncio.create_task(reporter.run())
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(max(lag.late_s)), flush=True)
    for task in (watching, reporting):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def measure() -> dict[str, float]:
    """Run the coordinator's write path; return how the snapshot came."""
    engine, caches, lag = engines()[0], Caches(), Lag()
    async with served([engine], caches) as address:
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert agent.stdin and agent.stdout
        await agent.stdout.readline()
        gc.collect()
        gc.freeze()
        watching = asyncio.create_task(lag.watch())
        agent.stdin.write(b"go\n")
        begin, cpu = time.monotonic(), time.process_time()
        feed = caches.feed(engine.id)
        assert feed
        while not feed.current:  # noqa: ASYNC110 - nobody rings
            await asyncio.sleep(0.005)
        took, cpu = time.monotonic() - begin, time.process_time() - cpu
        watching.cancel()
        agent.stdin.write(b"done\n")
        agents_stall = float(await agent.stdout.readline())
        await agent.wait()
    return {
        "seconds": took,
        "cpu_s": cpu,
        "stall_ms": 1e3 * max(lag.late_s),
        "agent_stall_ms": 1e3 * agents_stall,
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if address := sys.argv[1:]:
            runner.run(report(address[0]))
        else:
            print(json.dumps(runner.run(measure())))
