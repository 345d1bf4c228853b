"""One engine's worker: events to digests, gaps, restarts, and what is said of doubts."""

import asyncio

import msgspec

from agent.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from agent.node import FLUSH_KEYS, FLUSH_MAX_S, FLUSH_S
from agent.sequence import Behind, Gap, Restarted, Whole
from lineside.hashing import chain, pack, seed, strided
from lineside.ids import Generation, Medium
from lineside.signals import Events, Status
from tests.agent_bench import KEYS, SECRET, TOKENS, A, B, batch, engine, page, running, stored
from tests.manual_clock import settle


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
