"""The scheduler of one simulated engine: which request computes what in each step, and how long.

Driven by whoever owns the time: `simulate.server` in real time, a model in virtual time. It tells
how long a step takes; it never waits, reads no clock, and knows no sockets and no text. Pure.

A step has two halves, because what others see changes only at its end: `begin` schedules and says
the duration, `finish` yields tokens and KV events. Between the two, requests may come, go and be
preempted; a request that was preempted or aborted meanwhile yields nothing from that step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from simulate.blocks import PLAIN, BlockId, BlockPool, BlockStored, Chain, KvEvent, Scope

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may fill."""

    blocks: int = 32_000
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds that a step takes: a fixed part, and a part for each thing it computes."""

    base_step_s: float = 0.008
    prefill_s_per_token: float = 50e-6
    attention_s_per_token_pair: float = 1e-9
    """For each prefill token and each token of context before it."""
    decode_s_per_sequence: float = 0.15e-3
    decode_s_per_context_token: float = 3e-8

    def prefill(self, context: int, tokens: int) -> float:
        """Return the seconds for `tokens` tokens that follow `context` computed ones."""
        attention = self.attention_s_per_token_pair * (context + tokens / 2)
        return tokens * (self.prefill_s_per_token + attention)

    def decode(self, context: int) -> float:
        """Return the seconds for the next token of one sequence."""
        return self.decode_s_per_sequence + self.decode_s_per_context_token * context


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. The caller fills the first part and decides beforehand what is answered.

    The core writes the second part, from `Core.add` on.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    """Tokens to generate, at least one."""
    finish_reason: FinishReason = "length"
    scope: Scope = PLAIN
    session_id: str | None = None
    report_hits: bool = False
    """Announce hit blocks as stored, as `kv_cache_report_mode: full` asks."""

    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    """Prompt and what was generated so far."""
    computed: int = 0
    """Leading tokens whose keys and values are in blocks."""
    blocks: list[BlockId] = field(default_factory=list)
    announced: int = 0
    """Leading blocks whose content is in the pool's cache."""
    cached_tokens: int | None = None
    """Tokens found in the cache at the first admission; `None` before it."""
    preemptions: int = 0
    chain: Chain = field(init=False)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)


class Chunk(NamedTuple):
    """What a step computes for one request; `preemptions` tells whether it still counts."""

    request: Request
    tokens: int
    preemptions: int


class Step(NamedTuple):
    duration_s: float
    chunks: list[Chunk]


class Emission(NamedTuple):
    """One generated token; the request's last one if `done`."""

    request: Request
    token: int
    first: bool
    done: bool


class Outcome(NamedTuple):
    """What a step made visible."""

    events: list[KvEvent]
    emissions: list[Emission]
    computed_tokens: int


@dataclass(slots=True)
class Totals:
    """Counters since the start, as vLLM counts them."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class Core:
    """Queue, running set and block pool of one engine."""

    def __init__(self, limits: Limits, speeds: Speeds) -> None:
        self.limits = limits
        self.speeds = speeds
        self.pool = BlockPool(limits.blocks, limits.block_size)
        self.totals = Totals()
        # No bound, as in the real engine: what comes too fast waits, and shows in the metrics.
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def usage(self) -> float:
        """Share of the blocks in use by requests; cached ones count as free."""
        return self.pool.in_use / self.pool.total

    def add(self, request: Request) -> None:
        """Queue a new request.

        Prompt and answer together must fit the pool, or it waits for ever: the caller checks.
        """
        request.tokens = list(request.prompt)
        request.chain = Chain(request.scope, self.limits.block_size)
        request.chain.extend(request.tokens)
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request and free its blocks; do nothing for one that is done."""
        match request.state:
            case State.WAITING:
                self._waiting.remove(request)
            case State.RUNNING:
                self._running.remove(request)
                self.pool.release(request.blocks)
            case State.DONE:
                return
        request.state = State.DONE

    def reset(self, *, preempt_running: bool = False) -> bool:
        """Empty the prefix cache; refuse while blocks are in use and may not be taken away."""
        while preempt_running and self._running:
            self._preempt(self._running.pop())
        return self.pool.reset()

    def begin(self) -> Step | None:
        """Schedule the next step; return `None` when there is nothing to compute."""
        budget = self.limits.max_num_batched_tokens
        chunks, preempted = self._schedule_running(budget)
        budget -= sum(chunk.tokens for chunk in chunks)
        if not preempted:
            chunks += self._schedule_waiting(budget)
        if not chunks:
            return None
        return Step(self.speeds.base_step_s + sum(map(self._cost, chunks)), chunks)

    def finish(self, step: Step) -> Outcome:
        """Make a begun step visible: its tokens, finished requests and events."""
        emissions = []
        for request, tokens, preemptions in step.chunks:
            if request.state is not State.RUNNING or request.preemptions != preemptions:
                continue
            request.computed += tokens
            if request.computed == len(request.tokens):
                emissions.append(self._emit(request))
        computed = sum(chunk.tokens for chunk in step.chunks)
        return Outcome(self.pool.take_events(), emissions, computed)

    def _schedule_running(self, budget: int) -> tuple[list[Chunk], bool]:
        """Serve running requests oldest first; preempt the youngest ones when blocks run out."""
        chunks: list[Chunk] = []
        preempted = False
        while len(chunks) < len(self._running) and budget:
            request = self._running[len(chunks)]
            tokens = min(len(request.tokens) - request.computed, budget)
            while not self._allocate(request, tokens, []):
                victim = self._running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    return chunks, preempted
            chunks.append(Chunk(request, tokens, request.preemptions))
            budget -= tokens
        return chunks, preempted

    def _schedule_waiting(self, budget: int) -> list[Chunk]:
        """Admit in order of arrival; the first that does not fit holds up the rest."""
        chunks = []
        while self._waiting and budget and len(self._running) < self.limits.max_num_seqs:
            request = self._waiting[0]
            # One token at least is always computed: the last one's output is the next token.
            usable = (len(request.tokens) - 1) // self.limits.block_size
            hits = self.pool.find(request.chain.hashes[:usable])
            request.computed = len(hits) * self.limits.block_size
            tokens = min(len(request.tokens) - request.computed, budget)
            if not self._allocate(request, tokens, hits):
                request.computed = 0
                break
            self._waiting.popleft()
            self._running.append(request)
            request.state = State.RUNNING
            self._count_hits(request)
            chunks.append(Chunk(request, tokens, request.preemptions))
            budget -= tokens
        return chunks

    def _count_hits(self, request: Request) -> None:
        """Count a first admission; recomputing after a preemption is no query."""
        if request.cached_tokens is None:
            request.cached_tokens = request.computed
            self.totals.prefix_queries += len(request.prompt)
            self.totals.prefix_hits += request.computed

    def _allocate(self, request: Request, tokens: int, hits: list[BlockId]) -> bool:
        """Give a request the blocks for its next `tokens` tokens, or change nothing."""
        size = self.limits.block_size
        end = request.computed + tokens
        wanted = -(-end // size) - len(request.blocks) - len(hits)
        if wanted > self.pool.free - self.pool.idle(hits):
            return False
        if hits:
            self.pool.hold(hits)
            request.blocks += hits
            if request.report_hits:
                self.pool.announce(_stored(request, 0, len(hits), size))
            request.announced = len(hits)
        request.blocks += self.pool.allocate(wanted)
        full = end // size
        if full > request.announced:
            stored = _stored(request, request.announced, full, size)
            self.pool.store(request.blocks[request.announced : full], stored)
            request.announced = full
        return True

    def _preempt(self, request: Request) -> None:
        """Put a request that just left the running set back to the front, to be recomputed."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.computed = request.announced = 0
        request.preemptions += 1
        request.state = State.WAITING
        self.totals.preemptions += 1
        self._waiting.appendleft(request)

    def _emit(self, request: Request) -> Emission:
        """Append the next token of the answer; free the blocks with the last one."""
        generated = request.generated
        token = request.answer[generated]
        request.tokens.append(token)
        if len(request.tokens) % self.limits.block_size == 0:
            request.chain.extend(request.tokens)
        self.totals.generated_tokens += 1
        if not generated:
            self.totals.prompt_tokens += len(request.prompt)
        done = generated + 1 == len(request.answer)
        if done:
            self._running.remove(request)
            self.pool.release(request.blocks)
            request.state = State.DONE
        return Emission(request, token, not generated, done)

    def _cost(self, chunk: Chunk) -> float:
        """Return a chunk's share of the step; one token after the prompt is a decode."""
        request, tokens, _ = chunk
        if tokens == 1 and request.computed >= len(request.prompt):
            return self.speeds.decode(request.computed)
        return self.speeds.prefill(request.computed, tokens)


def _stored(request: Request, start: int, end: int, size: int) -> BlockStored:
    hashes = request.chain.hashes
    return BlockStored(
        block_hashes=hashes[start:end],
        parent=hashes[start - 1] if start else None,
        token_ids=request.tokens[start * size : end * size],
        block_size=size,
        lora=request.scope.lora,
        extra_keys=[request.scope.extra_keys(block) for block in range(start, end)],
        session_id=request.session_id,
    )
