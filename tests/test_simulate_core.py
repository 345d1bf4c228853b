"""The simulated scheduler: what a step computes, what it costs, who waits and who is preempted."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulate.content import (
    AllBlocksCleared,
    BlockHash,
    BlockOffloaded,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Lora,
    Scope,
)
from simulate.core import Core, Limits, Outcome, Request, Speeds, State, Step

SPEEDS = Speeds(
    base_step_s=1.0,
    prefill_s_per_token=0.5,
    attention_s_per_token_pair=0.0,
    decode_s_per_sequence=0.25,
    decode_s_per_context_token=0.0,
)


def core(*, blocks: int = 9, block_size: int = 4, max_num_seqs: int = 8, batch: int = 100) -> Core:
    return Core(Limits(blocks, block_size, max_num_seqs, batch), SPEEDS)


def request(prompt: int, answer: int = 1, first: int = 0) -> Request:
    return Request(prompt=list(range(first, first + prompt)), answer=[7] * answer)


def add(engine: Core, *requests: Request) -> None:
    for one in requests:
        engine.add(one)


def step(engine: Core) -> tuple[float, Outcome]:
    begun = engine.begin()
    assert begun is not None
    return begun.duration_s, engine.finish(begun)


def drain(engine: Core) -> list[Outcome]:
    outcomes = []
    while begun := engine.begin():
        outcomes.append(engine.finish(begun))
    return outcomes


def chunks(begun: Step | None) -> list[int]:
    assert begun is not None
    return [chunk.tokens for chunk in begun.chunks]


def test_an_idle_engine_has_no_step() -> None:
    assert core().begin() is None


def test_a_step_costs_its_base_its_uncached_tokens_and_its_decodes() -> None:
    engine = core()
    add(engine, request(8, 3))
    assert step(engine)[0] == 1.0 + 8 * 0.5
    add(engine, request(8, 1))
    assert step(engine)[0] == 1.0 + 0.25 + 4 * 0.5  # a decode, and 8 tokens of which 4 are cached
    assert step(engine)[0] == 1.0 + 0.25


def test_attention_and_context_cost_by_the_tokens_before() -> None:
    speeds = Speeds(
        base_step_s=0.0,
        prefill_s_per_token=0.0,
        attention_s_per_token_pair=1.0,
        decode_s_per_sequence=0.0,
        decode_s_per_context_token=1.0,
    )
    assert speeds.prefill(10, 4) == 4 * (10 + 2)
    assert speeds.decode(10) == 10.0


def test_the_first_token_comes_with_the_end_of_the_prefill() -> None:
    engine = core(batch=5)
    one = request(8, 2)
    add(engine, one)
    assert step(engine)[1].emissions == []
    (first,) = step(engine)[1].emissions
    assert (first.first, first.done, one.generated) == (True, False, 1)
    (last,) = step(engine)[1].emissions
    assert (last.first, last.done, one.state) == (False, True, State.DONE)
    assert engine.cache.pool.in_use == 0


def test_decodes_come_before_prefill_and_prefill_gets_what_is_left_of_the_step() -> None:
    engine = core(batch=6)
    add(engine, request(4, 5), request(12, 1, first=50))
    begun = engine.begin()
    assert begun is not None
    assert chunks(begun) == [4, 2]
    engine.finish(begun)
    assert chunks(engine.begin()) == [1, 5]


def test_requests_wait_for_a_free_place() -> None:
    engine = core(max_num_seqs=1)
    add(engine, request(4, 2), request(4, 1, first=50))
    step(engine)
    assert (engine.running, engine.waiting) == (1, 1)
    step(engine)
    assert (engine.running, engine.waiting) == (0, 1)


def test_the_first_that_does_not_fit_holds_up_those_behind_it() -> None:
    engine = core(blocks=5)
    add(engine, request(8, 2), request(12, 1, first=50), request(4, 1, first=90))
    assert chunks(engine.begin()) == [8]
    assert engine.waiting == 2


def test_at_least_one_token_of_a_prompt_is_computed() -> None:
    engine = core()
    add(engine, request(8))
    drain(engine)
    again = request(8)
    add(engine, again)
    ((events, _, computed),) = drain(engine)
    assert (again.cached_tokens, computed) == (4, 4)
    assert [type(event) for event in events] == [BlockStored]


def test_a_full_hit_gives_no_event() -> None:
    engine = core()
    add(engine, request(10))
    drain(engine)
    again = request(10)
    add(engine, again)
    assert [outcome.events for outcome in drain(engine)] == [[]]
    assert again.cached_tokens == 8


def test_equal_requests_of_one_step_share_blocks() -> None:
    engine = core()
    one, other = request(9), request(9)
    add(engine, one, other)
    begun = engine.begin()
    assert chunks(begun) == [9, 1]
    assert engine.cache.pool.in_use == 4


def test_decoding_announces_each_block_as_it_fills() -> None:
    engine = core()
    add(engine, request(3, 7))
    stored = [
        [(len(e.block_hashes), len(e.token_ids)) for e in o.events if isinstance(e, BlockStored)]
        for o in drain(engine)
    ]
    assert stored == [[], [(1, 4)], [], [], [], [(1, 4)], []]


def test_the_youngest_is_preempted_and_recomputed_from_what_is_left_in_the_cache() -> None:
    engine = core(blocks=5)
    old, young = request(7, 4), request(7, 4, first=50)
    add(engine, old, young)
    step(engine)
    step(engine)
    assert (old.state, young.state, engine.cache.pool.in_use) == (State.RUNNING, State.RUNNING, 4)
    step(engine)
    assert (young.state, young.preemptions, engine.waiting) == (State.WAITING, 1, 1)
    drain(engine)
    assert [old.tokens, young.tokens] == [
        [*range(7), *[7] * 4],
        [*range(50, 57), *[7] * 4],
    ]
    assert (engine.totals.preemptions, engine.totals.prefix_queries) == (1, 14)


def test_an_aborted_request_frees_its_blocks_and_says_nothing_more() -> None:
    engine = core()
    running, waiting = request(8, 3), request(8, 3, first=50)
    add(engine, running)
    begun = engine.begin()
    add(engine, waiting)
    engine.abort(running)
    engine.abort(waiting)
    assert begun is not None
    outcome = engine.finish(begun)
    assert (outcome.emissions, engine.cache.pool.in_use, engine.begin()) == ([], 0, None)
    engine.abort(running)
    assert len(outcome.events) == 1  # its blocks stay cached


def test_a_reset_is_heard_of_with_the_next_step_only() -> None:
    engine = core()
    add(engine, request(4))
    drain(engine)
    assert engine.reset()
    assert engine.begin() is None
    add(engine, request(4, first=50))
    ((events, _, _),) = drain(engine)
    assert [type(event) for event in events] == [AllBlocksCleared, BlockStored]


def test_a_reset_is_refused_while_requests_run_unless_they_may_be_preempted() -> None:
    engine = core()
    one = request(6, 3)
    add(engine, one)
    step(engine)
    begun = engine.begin()
    assert begun is not None
    assert not engine.reset()
    assert engine.reset(preempt_running=True)
    outcome = engine.finish(begun)
    assert (outcome.emissions, outcome.events) == ([], [AllBlocksCleared()])
    drain(engine)
    assert (one.tokens, one.preemptions) == ([*range(6), 7, 7, 7], 1)


def test_usage_counts_blocks_in_use_not_cached_ones() -> None:
    engine = core(blocks=9)
    add(engine, request(8, 2))
    step(engine)
    assert engine.usage == 0.25
    drain(engine)
    assert engine.usage == 0.0


SCOPES = [Scope(), Scope(cache_salt="a"), Scope(lora=Lora(1, "sql"))]
BLOCKS, SIZE = 11, 4
CPU = -1
"""Stands for a group in what the consumer counts."""


class Engine(RuleBasedStateMachine):
    """Random traffic on a tiny pool, with a consumer that counts copies from the events alone."""

    limits = Limits(BLOCKS, SIZE, 4, 13)

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(self.limits, SPEEDS)
        self.requests: list[Request] = []
        self.begun: Step | None = None
        self.counted: Counter[tuple[int, BlockHash]] = Counter()

    @rule(
        family=st.integers(0, 2),
        length=st.integers(1, 24),
        answer=st.integers(1, 16),
        scope=st.sampled_from(SCOPES),
    )
    def add(self, family: int, length: int, answer: int, scope: Scope) -> None:
        prompt = [family * 100 + place for place in range(length)]
        self.requests.append(Request(prompt=prompt, answer=[family] * answer, scope=scope))
        self.core.add(self.requests[-1])

    @precondition(lambda self: self.begun is None)
    @rule()
    def begin(self) -> None:
        self.begun = self.core.begin()

    @precondition(lambda self: self.begun is not None)
    @rule()
    def finish(self) -> None:
        assert self.begun is not None
        self._see(self.core.finish(self.begun).events)
        self.begun = None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.core.abort(data.draw(st.sampled_from(self.requests)))

    @rule(preempt=st.booleans())
    def reset(self, preempt: bool) -> None:
        free = self.core.cache.pool.in_use == 0
        assert self.core.reset(preempt_running=preempt) == (free or preempt)

    @rule()
    def restart(self) -> None:
        self.core.restart()
        self.counted.clear()

    @invariant()
    def accounts_add_up(self) -> None:
        pool = self.core.cache.pool
        in_use, cached, blank = pool.census()
        assert in_use + cached + blank == pool.total == self.limits.blocks - 1
        assert (in_use, cached + blank) == (pool.in_use, pool.free)
        assert len(pool.cpu) <= self.limits.offload_blocks

    def _see(self, events: Sequence[KvEvent]) -> None:
        full = 1 if self.limits.sliding_window else 0
        for event in events:
            match event:
                case BlockStored():
                    assert event.parent is None or self.counted[full, event.parent] > 0
                    self.counted.update((event.group, one) for one in event.block_hashes)
                case BlockOffloaded(block_hash):
                    assert not self.counted[CPU, block_hash]
                    assert self.counted[full, block_hash] > 0  # or nobody could tell its tokens
                    self.counted[CPU, block_hash] = 1
                case BlockRemoved(block_hash, group, medium):
                    place = (group if medium == "GPU" else CPU, block_hash)
                    self.counted[place] -= 1
                    assert self.counted[place] >= 0
                case AllBlocksCleared():
                    self.counted.clear()
        pool = self.core.cache.pool
        held = {
            (group, one): n for group in range(full + 1) for one, n in pool.content(group).items()
        }
        assert {place: n for place, n in self.counted.items() if n and place[0] != CPU} == held
        assert sum(n for place, n in self.counted.items() if place[0] == CPU) == len(pool.cpu)

    def teardown(self) -> None:
        while self.begun or (begun := self.core.begin()):
            self._see(self.core.finish(self.begun or begun).events)
            self.begun = None
        assert all(one.state is State.DONE for one in self.requests)
        assert self.core.cache.pool.in_use == 0


class HybridEngine(Engine):
    limits = Limits(2 * BLOCKS, SIZE, 4, 13, sliding_window=10)


class OffloadingEngine(Engine):
    limits = Limits(BLOCKS, SIZE, 4, 13, offload_blocks=6)


TestEngine, TestHybridEngine = Engine.TestCase, HybridEngine.TestCase
TestOffloadingEngine = OffloadingEngine.TestCase
for case in (TestEngine, TestHybridEngine, TestOffloadingEngine):
    case.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seats", [1, 4])
def test_equal_traffic_gives_equal_events(seats: int) -> None:
    def run() -> list[list[KvEvent]]:
        engine = core(max_num_seqs=seats)
        add(engine, *(request(6, 5, first=10 * k) for k in range(6)))
        return [outcome.events for outcome in drain(engine)]

    assert run() == run()
