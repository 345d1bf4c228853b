"""An engine's worker and the node around it: assignments, gaps, restarts, silence, no leaks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.assignment import Assigned, AssignedEngine, Scheme
from agent.engine import QUIET_S
from agent.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, KvEvent
from agent.metrics import AgentMetrics
from agent.node import FLUSH_KEYS, FLUSH_MAX_S, FLUSH_S, Node
from agent.scrape import ScrapeFailed
from agent.sequence import Behind, Gap, Item, Place, Restarted, Whole
from agent.signals import Observed
from agent.silence import ALARM_S, LAG_S, Silence
from agent.subscriber import CannotSubscribe
from lineside.hashing import chain, pack, seed, strided
from lineside.ids import EngineId, Generation, Medium
from lineside.signals import Events, Gpu, Load, NodeGpus, Status
from tests.manual_clock import ManualClock, settle

SECRET = b"secret"
SCHEME = Scheme(unit=16, hash="xxh3_64", secret=SECRET)
A, B = EngineId("127.0.0.1:8001"), EngineId("127.0.0.1:8002")
TOKENS = list(range(128))
KEYS = dict.fromkeys(chain(seed(SECRET), pack(TOKENS)), Medium.GPU)


def engine(id: EngineId = A, **other: object) -> AssignedEngine:
    made = AssignedEngine(id, f"http://{id}", events="tcp://127.0.0.1:5557", stride=1)
    return replace(made, **other)  # type: ignore[arg-type]


def stored(medium: Medium = Medium.GPU, first: int = 1) -> BlockStored:
    """Four blocks of 32 tokens, all of `TOKENS`."""
    return BlockStored(
        keys=tuple(range(first, first + 4)),
        parent=None,
        packed=pack(TOKENS),
        block_size=32,
        medium=medium,
        group=0,
        full_attention=True,
        lora=None,
        salt=None,
        media=(),
        keyable=4,
    )


def batch(*events: KvEvent, seq: int = 0, undecodable: int = 0) -> Batch:
    return Batch(seq, 0.0, 0, events, undecodable)


@dataclass
class FakeSource:
    """An engine's publisher, fed by the test."""

    engine: AssignedEngine
    opened: bool = False
    closed: bool = False
    undecodable: int = 0
    refusal: str = ""
    replays: int = 0
    place: Place | None = None
    checks: int = 0
    read_anews: int = 0
    queue: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)

    def check(self) -> None:
        self.checks += 1

    def read_anew(self) -> None:
        self.read_anews += 1

    async def items(self) -> AsyncGenerator[Item, None]:
        self.opened = True
        try:
            if self.refusal:
                raise CannotSubscribe(self.refusal)
            while True:
                yield await self.queue.get()
        finally:
            self.closed = True


class Bench:
    """A node on a manual clock, whose engines' sources the test feeds."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.clock = ManualClock()
        self.sources: list[FakeSource] = []
        self.refusal = ""
        self.gpus = NodeGpus(unavailable="no GPU on this node")
        self.node = Node(
            tasks,
            self.clock,
            cast(aiohttp.ClientSession, NoServer()),
            self.subscribe,
            lambda: self.gpus,
        )
        self.changed = self.node.subscribe()

    def subscribe(self, engine: AssignedEngine, place: Place | None = None) -> FakeSource:
        self.sources.append(FakeSource(engine, refusal=self.refusal, place=place))
        return self.sources[-1]

    async def assign(
        self,
        *engines: AssignedEngine,
        revision: int = 1,
        coordinator: str = "c1",
        scheme: Scheme = SCHEME,
    ) -> None:
        self.node.adopt(scheme, Assigned(coordinator, revision, engines))
        await settle()

    async def feed(self, *items: Item) -> None:
        """Give items to the newest source and let the window close."""
        for item in items:
            self.sources[-1].queue.put_nowait(item)
        await self.clock.advance(FLUSH_MAX_S + FLUSH_S)

    def status(self, engine: EngineId = A) -> Status:
        return self.node.statuses()[engine].value

    def held(self, engine: EngineId = A) -> dict[int, Medium]:
        log = self.node.log(engine)
        assert log
        return cast(dict[int, Medium], log.held)

    def generation(self, engine: EngineId = A) -> str:
        log = self.node.log(engine)
        assert log
        return log.generation

    def saw(self, page: str, engine: EngineId = A) -> bool:
        return self.node._took_page(f"http://{engine}", page.encode(), self.clock.now)


class NoServer:
    """A session whose every request fails."""

    def get(self, url: str, **_: object) -> object:
        raise aiohttp.ClientConnectionError


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    class Done(Exception):
        pass

    try:
        async with asyncio.TaskGroup() as tasks:
            yield Bench(tasks)
            raise Done
    except* Done:
        pass


# --- one engine ---------------------------------------------------------------------------------


async def test_an_idle_engine_is_live_once_its_replay_socket_has_answered() -> None:
    async with running() as bench:
        await bench.assign(engine())
        assert bench.status().events is Events.CONNECTING
        bench.sources[0].queue.put_nowait(Whole())
        await settle()
        assert bench.status() == Status(Events.LIVE)


async def test_events_become_a_digest_after_one_window() -> None:
    async with running() as bench:
        await bench.assign(engine())
        assert bench.status() == Status(
            Events.CONNECTING, "no word from the engine's event publisher yet"
        )
        bench.sources[0].queue.put_nowait(batch(stored()))
        await settle()
        bench.changed.clear()
        assert bench.held() == {}
        await bench.clock.advance(FLUSH_S)
        assert bench.held() == KEYS
        assert bench.changed.is_set()
        assert bench.status() == Status(Events.LIVE, block_size=32, blocks=4, batches=1)


async def test_changes_of_one_window_are_one_delta() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()), batch(BlockRemoved((4,), Medium.GPU, 0)))
        log = bench.node.log(A)
        assert log and log.digest_seq == 1
        assert len(log.held) == 6


async def test_a_window_is_long_after_another_unless_much_changes() -> None:
    async with running() as bench:
        await bench.assign(engine(stride=1))
        await bench.feed(batch(stored()))
        log = bench.node.log(A)
        assert log and log.digest_seq == 1
        seqs = []
        for first in (100, 200):
            bench.sources[0].queue.put_nowait(batch(prompt(first)))
            await bench.clock.advance(FLUSH_S)
            seqs.append(log.digest_seq)
        assert seqs == [2, 2]  # the first comes after a pause, the next right behind it
        await bench.clock.advance(FLUSH_MAX_S)
        assert log.digest_seq == 3
        many = [prompt(1000 * number) for number in range(1, FLUSH_KEYS // 8 + 1)]
        bench.sources[0].queue.put_nowait(batch(*many))
        await bench.clock.advance(FLUSH_S)
        assert log.digest_seq == 4


async def test_keys_are_reported_at_the_assigned_stride() -> None:
    async with running() as bench:
        await bench.assign(engine(stride=4))
        await bench.feed(batch(stored()))
        assert list(bench.held()) == strided(chain(seed(SECRET), pack(TOKENS)), 4)


async def test_a_restart_empties_the_engine_and_starts_a_generation() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        await bench.feed(Restarted())
        assert bench.held() == {}
        assert bench.generation() != before
        assert bench.status().events is Events.LIVE


async def test_a_healed_gap_is_counted_and_changes_nothing() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        await bench.feed(Behind("catching up"), Whole())
        await bench.feed(Gap(1, 3, lost=False, reason="asking"), batch(seq=1))
        assert (bench.status().events, bench.status().reason) == (Events.UNSURE, "asking")
        await bench.feed(Whole())
        assert bench.held() == KEYS
        assert bench.generation() == before
        assert bench.status() == Status(Events.LIVE, block_size=32, blocks=4, batches=2, gaps=1)


async def test_a_lost_gap_empties_the_engine_and_says_so_until_a_clear() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        await bench.feed(
            Gap(1, 5, lost=False, reason="asking"),
            Gap(2, 5, lost=True, reason="the buffer ended"),
            Whole(),
        )
        assert bench.held() == {}
        assert bench.generation() != before
        unsure = Status(
            Events.UNSURE,
            "events were lost: the buffer ended",
            block_size=32,
            batches=1,
            gaps=1,
            announce=True,
        )
        assert bench.status() == unsure
        await bench.feed(batch(AllBlocksCleared(), seq=5))
        assert bench.status() == Status(Events.LIVE, block_size=32, batches=2, gaps=1)


async def test_after_a_loss_known_parents_give_their_children_keys() -> None:
    """And an announcement made anew counts once, so that one removal ends it."""
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        await bench.feed(Gap(1, 2, lost=True, reason="the buffer ended"), Whole())
        tail = replace_run(parent=2, keys=(3, 4), tokens=TOKENS[64:])
        await bench.feed(batch(tail, seq=2))
        assert bench.held() == {}
        head = replace_run(parent=None, keys=(1, 2), tokens=TOKENS[:64])
        await bench.feed(batch(head, head, tail, seq=3))
        assert bench.held() == KEYS
        assert bench.status().blocks == 4
        await bench.feed(batch(BlockRemoved((1,), Medium.GPU, 0), seq=4))
        assert bench.held() == {}


def replace_run(parent: int | None, keys: tuple[int, ...], tokens: list[int]) -> BlockStored:
    return BlockStored(
        keys, parent, pack(tokens), 32, Medium.GPU, 0, True, None, None, (), len(keys)
    )


async def test_doubt_ends_when_a_coordinator_vouches_for_this_generation() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()), Gap(1, 2, lost=True, reason="the buffer ended"), Whole())
        bench.node.vouched(A, Generation("another"))
        bench.node.vouched(B, Generation(bench.generation()))
        assert bench.status().events is Events.UNSURE
        bench.node.vouched(A, Generation(bench.generation()))
        assert bench.status().events is Events.LIVE


async def test_what_the_engine_has_yet_to_send_is_a_doubt() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(Behind("catching up"), batch(stored()))
        assert (bench.status().events, bench.status().reason) == (Events.CONNECTING, "catching up")
        await bench.feed(Whole())
        assert bench.status().events is Events.LIVE
        await bench.feed(Behind("the connection is lost"))
        assert bench.status().events is Events.UNSURE
        assert bench.held() == KEYS


async def test_another_start_of_the_process_makes_the_reader_ask() -> None:
    async with running() as bench:
        await bench.assign(engine())
        for start in (100.0, 100.0, None, 200.0, 200.0):
            started = f"process_start_time_seconds {start}\n" if start else ""
            bench.saw(page() + started)
        assert bench.sources[0].checks == 1


async def test_a_slower_medium_starts_a_generation() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        offloaded = replace_event(stored(), medium=Medium.CPU)
        await bench.feed(batch(offloaded, BlockRemoved((1,), Medium.GPU, 0)))
        log = bench.node.log(A)
        assert log and log.media == 2
        assert bench.generation() != before
        assert set(bench.held().values()) == {Medium.CPU}


def prompt(number: int) -> BlockStored:
    """Return another prompt's blocks: eight keys of its own."""
    return msgspec.structs.replace(stored(first=number), packed=pack([number] * len(TOKENS)))


def replace_event(event: BlockStored, medium: Medium) -> BlockStored:
    return stored(medium, first=int(event.keys[0]))


async def test_an_unusable_cache_says_why_and_reports_nothing() -> None:
    async with running() as bench:
        await bench.assign(engine())
        odd = BlockStored((1,), None, pack(range(10)), 10, Medium.GPU, 0, True, None, None, (), 1)
        await bench.feed(batch(odd))
        assert bench.held() == {}
        status = bench.status()
        assert status.events is Events.UNUSABLE
        assert status.reason == "block size 10 is not a multiple of 16"


async def test_what_cannot_be_read_is_counted() -> None:
    async with running() as bench:
        await bench.assign(engine())
        bench.sources[0].undecodable = 2
        await bench.feed(batch(BlockRemoved((9,), Medium.GPU, 0), undecodable=3))
        assert bench.status().undecodable == 5
        assert bench.status().unmatched_removals == 1


async def test_an_engine_without_events_says_so() -> None:
    async with running() as bench:
        await bench.assign(engine(events=""))
        assert bench.sources == []
        assert bench.status() == Status(Events.NONE, "the engine publishes no KV events")


async def test_an_endpoint_that_cannot_be_opened_is_tried_again() -> None:
    async with running() as bench:
        bench.refusal = "cannot bind `tcp://127.0.0.1:5557`: Address already in use"
        await bench.assign(engine())
        assert bench.status() == Status(Events.UNUSABLE, bench.refusal)
        bench.refusal = ""
        await bench.clock.advance(5.0)
        assert bench.status().events is Events.CONNECTING
        assert [source.closed for source in bench.sources] == [True, False]


async def test_a_long_burst_lets_others_run() -> None:
    async with running() as bench:
        await bench.assign(engine())
        bench.clock.tick = 0.001
        for seq in range(50):
            bench.sources[0].queue.put_nowait(batch(*[stored()] * 200, seq=seq))
        turns = 0
        while bench.status().batches < 50:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 50


# --- loads --------------------------------------------------------------------------------------

PAGE = """vllm:num_requests_running{{engine="0"}} {running}
vllm:prompt_tokens_total{{engine="0"}} {prompt}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:time_to_first_token_seconds_count{{engine="0"}} {prefills}
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",sleep_state="weights_offloaded"}} {asleep}
"""


def page(**values: int) -> str:
    names = ("running", "prompt", "hits", "prefills", "asleep")
    return PAGE.format(**{**dict.fromkeys(names, 0), "awake": 1, **values})


async def test_a_load_is_kept_with_the_time_the_page_was_asked_for() -> None:
    async with running() as bench:
        await bench.assign(engine())
        assert bench.node.loads() == {}
        assert bench.saw(page(running=2, prompt=7)) is True
        await bench.clock.advance(1.0)
        observed = bench.node.loads()[A]
        assert (observed.value.running, observed.value.prompt_tokens) == (2, 7)
        assert (observed.at, observed.unix) == (1000.0, 1_700_001_000.0)
        assert bench.saw(page(running=0)) is False


async def test_a_failed_scrape_keeps_the_last_load_and_names_the_failure() -> None:
    async with running() as bench:
        await bench.assign(engine())
        bench.saw(page(running=2))
        failed = ScrapeFailed("timeout", "/metrics did not answer in time")
        assert bench.node._took_page(f"http://{A}", failed, bench.clock.now) is False
        server = bench.node.servers[f"http://{A}"]
        assert (server.failing, server.failures["timeout"]) == (failed.detail, 1)
        assert bench.node.loads()[A].value.running == 2
        bench.saw(page())
        assert server.failing == ""


async def test_two_ranks_share_one_scrape() -> None:
    async with running() as bench:
        other = EngineId(f"{A}/1")
        await bench.assign(
            engine(), engine(other, base_url=f"http://{A}", rank=1, events="tcp://127.0.0.1:5558")
        )
        assert list(bench.node.servers) == [f"http://{A}"]
        one_more = 'vllm:num_requests_running{engine="1"} 5\n'
        bench.saw(page(running=2) + one_more)
        assert {id: load.value.running for id, load in bench.node.loads().items()} == {
            A: 2,
            other: 5,
        }


@pytest.mark.parametrize(("trusted_s", "left"), [(QUIET_S - 1, 0), (QUIET_S + 1, 8)])
async def test_copies_are_counted_once_an_engine_has_long_been_trusted(
    trusted_s: float, left: int
) -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(Whole(), Gap(0, 1, lost=True, reason="r"), Whole())
        assert bench.status().announce is True
        bench.saw(page())
        bench.node.vouched(A, Generation(bench.generation()))
        assert bench.status().announce is False
        await bench.clock.advance(trusted_s)
        bench.saw(page())
        removed = BlockRemoved((1, 2, 3, 4), Medium.GPU, 0)
        await bench.feed(batch(stored()), batch(stored()), batch(removed))
        assert len(bench.held()) == left


async def test_an_engine_that_falls_asleep_holds_nothing() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        bench.saw(page(awake=0, asleep=1))
        assert bench.held() == {}
        emptied = bench.generation()
        assert emptied != before
        bench.saw(page(awake=0, asleep=1))
        assert bench.generation() == emptied


async def test_an_engine_that_is_only_paused_keeps_what_it_holds() -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before, held = bench.generation(), bench.held()
        bench.saw(page(awake=0))
        assert bench.node.loads()[A].value.asleep is True
        assert (bench.generation(), bench.held()) == (before, held)


async def test_an_engine_that_computes_and_says_nothing_is_an_alarm() -> None:
    async with running() as bench:
        await bench.assign(engine())
        bench.saw(page())
        for _ in range(5):
            await bench.clock.advance(1.0)
            bench.saw(page(prompt=500, hits=100, prefills=2))
        assert bench.status() == Status(
            Events.UNSURE,
            "no events, though 400 uncached prompt tokens were computed",
            announce=True,
        )
        await bench.feed(batch(stored()))
        assert bench.status().events is Events.UNSURE  # what came in between got no number
        await bench.feed(batch(AllBlocksCleared()))
        assert bench.status().events is Events.LIVE


@pytest.mark.parametrize("overstated", [False, True])
async def test_an_engine_that_its_coordinator_doubts_is_emptied_and_unsure(
    overstated: bool,
) -> None:
    async with running() as bench:
        await bench.assign(engine())
        await bench.feed(batch(stored()))
        before = bench.generation()
        bench.node.doubted(A, Generation("another"), "wrong", overstated=False)
        assert (bench.generation(), bench.status().events) == (before, Events.LIVE)
        bench.node.doubted(A, before, "3 requests did", overstated=overstated)
        assert bench.held() == {}
        assert bench.generation() != before
        reason = "requests contradicted its events: 3 requests did"
        assert (bench.status().events, bench.status().reason) == (Events.UNSURE, reason)
        assert bench.sources[0].read_anews == (not overstated)
        bench.node.vouched(A, bench.generation())
        assert bench.status().events is Events.LIVE


@pytest.mark.parametrize(
    ("heard_s", "load", "tokens"),
    [
        pytest.param(
            None, Load(prompt_tokens=400, prefix_cache_hits=0, prefills=1), 400, id="cold"
        ),
        pytest.param(
            None, Load(prompt_tokens=400, prefix_cache_hits=0), 400, id="no request count"
        ),
        pytest.param(
            None, Load(prompt_tokens=400, prefix_cache_hits=380, prefills=1), 0, id="all but cached"
        ),
        pytest.param(
            None, Load(prompt_tokens=400, prefix_cache_hits=0, prefills=40), 0, id="short prompts"
        ),
        pytest.param(None, Load(prompt_tokens=400), 0, id="a counter is missing"),
        pytest.param(
            1.0, Load(prompt_tokens=400, prefix_cache_hits=0, prefills=1), 0, id="heard just before"
        ),
    ],
)
def test_silence_is_an_alarm_only_when_blocks_were_filled(
    heard_s: float | None, load: Load, tokens: int
) -> None:
    silence = Silence()
    silence.saw(Load(prompt_tokens=0, prefix_cache_hits=0, prefills=0), 32, 0.0)
    if heard_s is not None:
        silence.heard(heard_s)
    for step in range(8):
        silence.saw(load, 32, 1.5 + step * 0.5)
    assert silence.tokens == tokens


def test_an_alarm_waits_and_a_restart_ends_it() -> None:
    silence = Silence()
    silence.heard(0.0)
    silence.saw(Load(prompt_tokens=0, prefix_cache_hits=0, prefills=0), 32, LAG_S)
    busy = Load(prompt_tokens=400, prefix_cache_hits=0, prefills=1)
    silence.saw(busy, 32, LAG_S + 1)
    silence.saw(busy, 32, LAG_S + 1 + ALARM_S - 0.1)
    assert silence.tokens == 0
    silence.saw(busy, 32, LAG_S + 1 + ALARM_S)
    assert silence.tokens == 400
    silence.saw(Load(prompt_tokens=9, prefix_cache_hits=0, prefills=1), 32, LAG_S + 9)
    assert silence.tokens == 0


def test_what_was_computed_before_the_last_events_is_announced_though_no_counter_was_seen() -> None:
    silence = Silence()
    silence.saw(Load(prompt_tokens=0, prefix_cache_hits=0, prefills=0), 32, 0.0)
    silence.heard(30.0)  # and no page was had for a minute
    for at in (60.0, 60.0 + ALARM_S):
        silence.saw(Load(prompt_tokens=400, prefix_cache_hits=0, prefills=1), 32, at)
    assert silence.tokens == 0
    for at in (70.0, 70.0 + ALARM_S):
        silence.saw(Load(prompt_tokens=900, prefix_cache_hits=0, prefills=2), 32, at)
    assert silence.tokens == 500


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
