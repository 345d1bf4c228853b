"""What an agent reads of an engine's load, and what it makes of silence."""

import pytest

from agent.engine import QUIET_S
from agent.kv_events import AllBlocksCleared, BlockRemoved
from agent.scrape import ScrapeFailed
from agent.sequence import Gap, Whole
from agent.silence import ALARM_S, LAG_S, Silence
from lineside.ids import EngineId, Generation, Medium
from lineside.signals import Events, Load, Status
from tests.agent_bench import A, batch, engine, page, running, stored


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
