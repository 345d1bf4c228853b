"""The node around its engines' workers: assignments, GPUs, metrics, no leaks."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.assignment import AssignedEngine, Scheme
from agent.kv_events import BlockRemoved
from agent.metrics import AgentMetrics
from agent.sequence import Gap, Item, Place
from agent.signals import Observed
from lineside.hashing import strided
from lineside.ids import Medium
from lineside.signals import Gpu, NodeGpus
from tests.agent_bench import KEYS, SCHEME, A, B, FakeSource, batch, engine, page, running, stored
from tests.manual_clock import settle

# --- assignments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "scheme"),
    [
        pytest.param({"events": "tcp://127.0.0.1:6000"}, SCHEME, id="event endpoint"),
        pytest.param({"replay": "tcp://127.0.0.1:6001"}, SCHEME, id="replay endpoint"),
        pytest.param({"events_bind": True}, SCHEME, id="direction"),
        pytest.param({}, Scheme(16, "xxh3_64", b"another"), id="secret"),
    ],
)
async def test_another_way_to_read_restarts_that_engine_alone(
    change: dict[str, object], scheme: Scheme
) -> None:
    async with running() as bench:
        await bench.assign(engine(A), engine(B))
        before = {id: bench.generation(id) for id in (A, B)}
        await bench.assign(engine(A, **change), engine(B), scheme=scheme)
        restarted = {id for id in (A, B) if bench.generation(id) != before[id]}
        assert restarted == ({A, B} if scheme is not SCHEME else {A})
        assert [s.engine.id for s in bench.sources if s.opened and not s.closed] == (
            [B, A] if scheme is SCHEME else [A, B]
        )


async def test_the_same_word_again_changes_nothing() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        await bench.assign(engine(version="0.33.0"), revision=2)
        assert (bench.generation(), len(bench.sources)) == (before, 1)
        assert bench.held() == KEYS


async def test_another_stride_is_reported_by_the_worker_at_work() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()), Gap(3, 5, lost=True, reason="overrun"), batch(stored()))
        reason = bench.status().reason
        for stride in (8, 3, 2, 1):
            before = bench.generation()
            await bench.assign(engine(stride=stride))
            assert list(bench.held()) == strided(list(KEYS), stride)
            assert bench.generation() != before
            log = bench.node.log(A)
            assert log and log.stride == stride
            assert bench.status().reason == reason
        assert len(bench.sources) == 1
        assert bench.status().batches == 2
        await bench.feed(batch(BlockRemoved((4,), Medium.GPU, 0)))
        assert list(bench.held()) == list(KEYS)[:6]


async def test_counters_outlive_a_restarted_worker_and_end_with_the_engine() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        await bench.assign(engine(topic="kv@"))
        assert bench.status().batches == 1
        await bench.assign()
        await bench.assign(engine())
        assert bench.status().batches == 0


async def test_the_highest_revision_counts_and_the_coarsest_stride() -> None:
    async with running() as bench:
        await bench.assign(engine(A, stride=2), revision=5, coordinator="c1")
        await bench.assign(engine(A, stride=4), engine(B), revision=4, coordinator="c2")
        assert list(bench.node.engines) == [A]
        assert bench.node.engines[A].worker.engine.stride == 4
        bench.node.release("c1")
        assert list(bench.node.engines) == [A, B]


async def test_a_coordinator_that_lost_its_store_is_followed() -> None:
    async with running() as bench:
        await bench.assign(engine(A), revision=9)
        bench.node.release("c1")
        assert list(bench.node.engines) == [A]
        await bench.assign(engine(B), revision=1)
        assert list(bench.node.engines) == [B]


async def test_the_word_of_one_that_is_gone_yields_to_any_other() -> None:
    async with running() as bench:
        await bench.assign(engine(A), revision=9, coordinator="c1")
        bench.node.release("c1")
        await bench.assign(engine(B), revision=1, coordinator="c2")
        assert list(bench.node.engines) == [B]


async def test_many_assignments_leave_no_task_and_no_socket_behind() -> None:
    async with running() as bench:
        await bench.assign(engine(A))
        usual = len(asyncio.all_tasks())
        for turn in range(50):
            await bench.assign(engine(A, topic=f"{turn % 3}"), engine(B), revision=turn)
            if turn % 4:
                await bench.assign(engine(B), revision=turn)
        await bench.assign(engine(A), revision=99)
        await settle()
        assert len(asyncio.all_tasks()) == usual
        assert [s.closed for s in bench.sources if s.opened].count(False) == 1
        assert list(bench.node.engines) == [A]
        assert list(bench.node.servers) == [f"http://{A}"]
        assert bench.node._ending == set()


async def test_a_new_worker_opens_only_when_the_old_one_has_closed() -> None:
    async with running() as bench:
        order: list[str] = []

        class Slow(FakeSource):
            def __init__(self, engine: AssignedEngine, place: Place | None) -> None:
                super().__init__(engine)

            async def items(self) -> AsyncGenerator[Item, None]:
                order.append(f"open {self.engine.topic}")
                try:
                    yield await self.queue.get()
                finally:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    order.append(f"close {self.engine.topic}")

        bench.node._subscribe = Slow
        for topic in "123":
            await bench.assign(engine(topic=topic))
        assert order == ["open 1", "close 1", "open 2", "close 2", "open 3"]


# --- GPUs and metrics ---------------------------------------------------------------------------


async def test_gpus_are_kept_with_their_time() -> None:
    async with running() as bench:
        gpu = Gpu("GPU-0", 0, "H200", utilization=0.5)
        bench.node._took_gpus(NodeGpus((gpu,)))
        assert bench.node.gpus() == Observed(NodeGpus((gpu,)), 1000.0, 1_700_001_000.0)


async def test_metrics_show_the_node_and_end_with_the_engine() -> None:
    async with running() as bench:
        registry = CollectorRegistry()
        AgentMetrics(
            registry, bench.node, lambda: {"c:1": True}, lambda: [("certificate", 5.0)], bench.clock
        )
        await bench.assign(engine())
        await bench.feed(batch(stored(), BlockRemoved((9,), Medium.GPU, 0)))
        bench.saw(page(running=1))
        await bench.clock.advance(1.5)
        gpu = Gpu("GPU-0", 0, "H200", 0.25, 1, 4, None, 41.0)
        bench.node._took_gpus(NodeGpus((gpu,)))
        for line in (
            f'lineside_agent_events_state{{engine="{A}",state="live"}} 1.0',
            f'lineside_agent_events_state{{engine="{A}",state="unsure"}} 0.0',
            f'lineside_agent_blocks_held{{engine="{A}"}} 4.0',
            f'lineside_agent_keys_reported{{engine="{A}"}} 8.0',
            f'lineside_agent_silent_tokens{{engine="{A}"}} 0.0',
            f'lineside_agent_event_batches_total{{engine="{A}"}} 1.0',
            f'lineside_agent_event_gaps_total{{engine="{A}"}} 0.0',
            f'lineside_agent_undecodable_events_total{{engine="{A}"}} 0.0',
            f'lineside_agent_unmatched_removals_total{{engine="{A}"}} 1.0',
            f'lineside_agent_scrape_age_seconds{{engine="{A}"}} 1.5',
            f'lineside_agent_scrape_missing_series{{engine="{A}"}} 6.0',
            f'lineside_agent_scrape_failures_total{{reason="size",server="http://{A}"}} 0.0',
            'lineside_agent_stream_up{coordinator="c:1"} 1.0',
            "lineside_agent_loop_lag_seconds 0.0",
            "lineside_gpu_available 1.0",
            'lineside_gpu_utilization_ratio{gpu="0",model="H200",uuid="GPU-0"} 0.25',
        ):
            assert line in generate_latest(registry).decode().splitlines()
        await bench.assign()
        assert A not in generate_latest(registry).decode()
