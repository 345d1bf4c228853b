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

from simulate.cache import NO_HITS, Held, Hits, PrefixCache
from simulate.content import PLAIN, KvEvent, Scope

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may fill."""

    blocks: int = 32_000
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    sliding_window: int = 0
    """Tokens that half of the layers look back on; 0: all layers look back on everything."""
    offload_blocks: int = 0
    """Blocks that CPU memory has room for."""
    prefix_caching: bool = True
    """Use again what is in blocks; an engine that does not announces nothing either."""


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
    cached_tokens: int | None = None
    """Tokens found in the cache at the first admission; `None` before it."""
    preemptions: int = 0
    held: Held = field(init=False)

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
    offload_queries: int = 0
    """Tokens that were not on the GPU and might have been on the CPU."""
    offload_hits: int = 0


class Core:
    """Queue, running set and block pool of one engine."""

    def __init__(self, limits: Limits, speeds: Speeds) -> None:
        self.limits = limits
        self.speeds = speeds
        self.cache = PrefixCache(
            limits.blocks,
            limits.block_size,
            window=limits.sliding_window,
            cpu_blocks=limits.offload_blocks,
        )
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
        return self.cache.pool.in_use / self.cache.pool.total

    def add(self, request: Request) -> None:
        """Queue a new request.

        Prompt and answer together must fit the pool, or it waits for ever: the caller checks.
        """
        request.tokens = list(request.prompt)
        request.held = self.cache.open(
            request.tokens, request.scope, request.session_id, report_hits=request.report_hits
        )
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request and free its blocks; do nothing for one that is done."""
        match request.state:
            case State.WAITING:
                self._waiting.remove(request)
            case State.RUNNING:
                self._running.remove(request)
                self.cache.release(request.held)
            case State.DONE:
                return
        request.state = State.DONE

    def reset(self, *, preempt_running: bool = False) -> bool:
        """Empty the prefix cache; refuse while blocks are in use and may not be taken away."""
        while preempt_running and self._running:
            self._preempt(self._running.pop())
        return self.cache.pool.reset()

    def restart(self) -> None:
        """Empty the cache as the end of the process would: no event tells of it.

        Running requests begin again, as if their clients had asked once more.
        """
        self.reset(preempt_running=True)
        self.cache.take_events()

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
        return Outcome(self.cache.take_events(), emissions, computed)

    def _schedule_running(self, budget: int) -> tuple[list[Chunk], bool]:
        """Serve running requests oldest first; preempt the youngest ones when blocks run out."""
        chunks: list[Chunk] = []
        preempted = False
        while len(chunks) < len(self._running) and budget:
            request = self._running[len(chunks)]
            tokens = min(len(request.tokens) - request.computed, budget)
            while not self._allocate(request, tokens):
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
            hits = NO_HITS
            if self.limits.prefix_caching:
                hits = self.cache.find(request.held, len(request.tokens))
            request.computed = (hits.depth + hits.loaded) * self.limits.block_size
            tokens = min(len(request.tokens) - request.computed, budget)
            if not self._allocate(request, tokens, hits):
                request.computed = 0
                break
            self._waiting.popleft()
            self._running.append(request)
            request.state = State.RUNNING
            self._count_hits(request, hits)
            chunks.append(Chunk(request, tokens, request.preemptions))
            budget -= tokens
        return chunks

    def _count_hits(self, request: Request, hits: Hits) -> None:
        """Count a first admission; recomputing after a preemption is no query."""
        if request.cached_tokens is not None:
            return
        size = self.limits.block_size
        request.cached_tokens = request.computed
        if not self.limits.prefix_caching:
            return
        self.totals.prefix_queries += len(request.prompt)
        self.totals.prefix_hits += hits.depth * size
        if self.limits.offload_blocks:
            self.totals.offload_queries += len(request.prompt) - hits.depth * size
            self.totals.offload_hits += hits.loaded * size

    def _allocate(self, request: Request, tokens: int, hits: Hits = NO_HITS) -> bool:
        """Give a request the blocks for its next `tokens` tokens, or none."""
        end = request.computed + tokens
        return self.cache.grow(request.held, request.tokens, request.computed, end, hits)

    def _preempt(self, request: Request) -> None:
        """Put a request that just left the running set back to the front, to be recomputed."""
        self.cache.release(request.held)
        request.computed = 0
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
            request.held.chain.extend(request.tokens)
        self.totals.generated_tokens += 1
        if not generated:
            self.totals.prompt_tokens += len(request.prompt)
        done = generated + 1 == len(request.answer)
        if done:
            self._running.remove(request)
            self.cache.release(request.held)
            request.state = State.DONE
        return Emission(request, token, not generated, done)

    def _cost(self, chunk: Chunk) -> float:
        """Return a chunk's share of the step; one token after the prompt is a decode."""
        request, tokens, _ = chunk
        if tokens == 1 and request.computed >= len(request.prompt):
            return self.speeds.decode(request.computed)
        return self.speeds.prefill(request.computed, tokens)
