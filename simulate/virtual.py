"""An engine in virtual time, for replays of whole traces: blocks of 512 tokens, steps by formula.

The same steps and speeds as `simulate.core`, which a test holds it to, without token ids: a block
is a number. Decode steps in which nothing else happens are taken together, so that an hour of many
engines takes seconds. Pure; whoever drives it owns the time.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from simulate.core import Speeds
from simulate.traces import BLOCK_TOKENS, TraceRequest

ENGINE_BLOCK = 16
"""Tokens of the engine's own blocks: what is reused ends with one."""


@dataclass(frozen=True, slots=True)
class Size:
    """What one engine has room for."""

    kv_tokens: int = 500_000
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192


USUAL, ROOMY = Speeds(), Size()


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way. `id` is its place in the trace. Written by the engine alone."""

    id: int
    request: TraceRequest
    arrived: float = 0.0
    cached_tokens: int = 0
    """Of the prompt, when it was admitted."""
    computed: int = 0
    """Tokens of the prompt that are in the cache."""
    pinned: int = 0
    """Leading blocks of the prompt that it holds."""
    first_token: float | None = None
    finished: float | None = None

    def copy(self) -> "Job":
        """Return the same, to play ahead with."""
        return Job(
            self.id, self.request, self.arrived, self.cached_tokens, self.computed, self.pinned
        )

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        assert self.first_token is not None
        return self.first_token - self.arrived

    @property
    def mean_itl_s(self) -> float:
        """Mean time between two tokens of the answer."""
        assert self.first_token is not None and self.finished is not None
        return (self.finished - self.first_token) / max(1, self.request.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Happened:
    """What an engine shows at the end of a step."""

    at: float
    first_tokens: Sequence[Job] = ()
    finished: Sequence[Job] = ()
    stored: Sequence[int] = ()
    removed: Sequence[int] = ()


@dataclass(slots=True)
class _Cache:
    """Blocks that are held: pinned ones with a count, the others in the order to go in."""

    room: int
    pins: dict[int, int] = field(default_factory=dict)
    idle: dict[int, None] = field(default_factory=dict)
    private: int = 0
    """Blocks set aside: of answers, which are never shared, and of prompts not computed yet."""

    def copy(self) -> "_Cache":
        return _Cache(self.room, self.pins.copy(), self.idle.copy(), self.private)

    def holds(self, block: int) -> bool:
        return block in self.pins or block in self.idle

    def matched(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are held."""
        for place, block in enumerate(blocks):
            if not self.holds(block):
                return place
        return len(blocks)

    def pin(self, block: int) -> None:
        self.pins[block] = self.pins.get(block, 0) + 1
        self.idle.pop(block, None)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Let go; of what nobody holds the tail of the prefix will go first."""
        for block in reversed(blocks):
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]
                self.idle[block] = None

    def shrink(self) -> list[int]:
        """Drop what there is no room for; return it."""
        dropped: list[int] = []
        excess = len(self.pins) + len(self.idle) + self.private - self.room
        if excess > 0:
            dropped = list(islice(self.idle, excess))
            for block in dropped:
                del self.idle[block]
        return dropped


class Forecast(NamedTuple):
    """What would become of a request if nothing else arrived."""

    first_token: float
    cached_tokens: int


class VirtualEngine:
    """One engine. Call `advance` up to a moment before anything is added at it."""

    def __init__(self, speeds: Speeds = USUAL, size: Size = ROOMY) -> None:
        self.speeds, self.size = speeds, size
        self.cache = _Cache(size.kv_tokens // BLOCK_TOKENS)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self._decoding: list[tuple[int, int, Job]] = []
        """A heap by the step with which each finishes."""
        self._contexts = 0
        self._steps = 0
        self._ends: float | None = None
        self._is_forecast = False
        self._chunks: list[tuple[Job, int]] = []
        """What the step under way computes of prompts."""
        self._stored: list[int] = []
        """Blocks that are new with that step. They can be used at once, and show at its end..."""
        self._removed: list[int] = []
        """...as do those that had to make room."""

    @property
    def outstanding(self) -> int:
        """Requests that are not finished."""
        return len(self.waiting) + len(self.prefilling) + len(self._decoding)

    @property
    def ends(self) -> float | None:
        """When the step under way ends; `None`: the engine idles."""
        return self._ends

    def add(self, job: Job, now: float) -> None:
        """Take a request."""
        job.arrived = now
        self.waiting.append(job)
        if self._ends is None:
            self._begin(now)

    def advance(self, until: float) -> Iterator[Happened]:
        """Yield what steps show that end by a moment, in order. Decode-only steps are joined."""
        while self._ends is not None and self._ends <= until:
            if not self._chunks and not self.waiting and not self.prefilling:
                self._join_steps(until)
                if self._ends > until:
                    return
            yield self._finish(self._ends)

    def forecast(self, request: TraceRequest, now: float) -> Forecast:
        """Play the steps ahead, evictions and admissions included, up to a request's first token.

        Exact if nothing else arrives. The engine itself stays as it is.
        """
        ahead, job = self._fork(), Job(_LAST, request)
        ahead.add(job, now)
        while job.first_token is None:
            assert ahead._ends is not None
            ahead._finish(ahead._ends)
        return Forecast(job.first_token, job.cached_tokens)

    def soonest(self, request: TraceRequest, now: float) -> Forecast:
        """Return a forecast that is never too late and promises no too few cached tokens. Cheap."""
        queue = [*self.prefilling, *self.waiting]
        begins = max(now, self._ends or now)
        if not queue:
            staying = sum(left > self._steps + 1 for left, _, _ in self._decoding)
            begins += staying * self.speeds.decode_s_per_sequence
        for place, job in enumerate(queue):
            computed = job.computed + sum(chunk for of, chunk in self._chunks if of is job)
            if place >= len(self.prefilling):
                computed = self._reusable(job.request, queue[:place])
            begins += self.speeds.prefill(computed, max(0, job.request.input_tokens - computed))
        cached = self._reusable(request, queue)
        prefill_s = self.speeds.prefill(cached, request.input_tokens - cached)
        return Forecast(begins + self.speeds.base_step_s + prefill_s, cached)

    def _reusable(self, request: TraceRequest, ahead: Sequence[Job]) -> int:
        """Return the most tokens of a prompt that can be cached once what is ahead is computed."""
        matched = self.cache.matched(request.blocks)
        for job in ahead:
            blocks = job.request.blocks
            if len(blocks) > matched < len(request.blocks):
                matched = max(matched, _common(blocks, request.blocks))
        return _cached_tokens(request, matched)

    def _fork(self) -> "VirtualEngine":
        """Return a copy to play ahead with. Jobs that only decode are shared: they stay as are."""
        fork = VirtualEngine(self.speeds, self.size)
        fork._is_forecast, fork.cache = True, self.cache.copy()
        copies = {job: job.copy() for job in (*self.prefilling, *self.waiting)}
        fork.waiting = deque(copies[job] for job in self.waiting)
        fork.prefilling = [copies[job] for job in self.prefilling]
        fork._chunks = [(copies[job], chunk) for job, chunk in self._chunks]
        fork._decoding, fork._contexts = self._decoding.copy(), self._contexts
        fork._steps, fork._ends = self._steps, self._ends
        return fork

    def _begin(self, now: float) -> None:
        """Schedule a step: decodes first, then prompts in the order of arrival."""
        budget = self.size.max_num_batched_tokens - len(self._decoding)
        self._chunks, self._stored = [], []
        for job in self.prefilling:
            budget = self._chunk(job, budget)
        while budget > 0 and self.waiting and self._admit(self.waiting[0]):
            job = self.waiting.popleft()
            self.prefilling.append(job)
            budget = self._chunk(job, budget)
        self._removed = self.cache.shrink()
        if not self._chunks and not self._decoding:
            self._ends = None
            return
        prefill_s = sum(self.speeds.prefill(job.computed, chunk) for job, chunk in self._chunks)
        self._ends = now + self._step_s() + prefill_s

    def _step_s(self) -> float:
        """Return what a step takes beside its prefills."""
        speeds, many = self.speeds, len(self._decoding)
        decode_s = many * speeds.decode_s_per_sequence
        return speeds.base_step_s + decode_s + self._contexts * speeds.decode_s_per_context_token

    def _chunk(self, job: Job, budget: int) -> int:
        left = job.request.input_tokens - job.computed
        chunk = min(left, budget)
        if chunk > 0:
            self._chunks.append((job, chunk))
            self._store(job, job.computed + chunk)
        return budget - max(0, chunk)

    def _store(self, job: Job, computed: int) -> None:
        """Keep the blocks of a prompt that so many computed tokens fill."""
        blocks, cache = job.request.blocks, self.cache
        upto = computed // BLOCK_TOKENS if computed < job.request.input_tokens else len(blocks)
        for block in blocks[job.pinned : upto]:
            if not cache.holds(block):
                self._stored.append(block)
            cache.pin(block)
            cache.private -= 1
        job.pinned = max(job.pinned, upto)

    def _admit(self, job: Job) -> bool:
        """Pin what is held of a prompt and set room aside for the rest, if there is any."""
        running = len(self.prefilling) + len(self._decoding)
        if running >= self.size.max_num_seqs:
            return False
        cache, blocks = self.cache, job.request.blocks
        matched = cache.matched(blocks)
        wanted = len(blocks) - matched + _answer_blocks(job)
        idle = sum(block in cache.idle for block in blocks[:matched])
        if running and wanted > cache.room - len(cache.pins) - cache.private - idle:
            return False
        job.cached_tokens = job.computed = _cached_tokens(job.request, matched)
        for block in blocks[:matched]:
            cache.pin(block)
        job.pinned = matched
        cache.private += wanted
        return True

    def _join_steps(self, until: float) -> None:
        """Take all steps but the last one together that only decode, up to the next finish."""
        speeds, many = self.speeds, len(self._decoding)
        ahead = self._decoding[0][0] - self._steps - 1  # steps before the one that finishes one
        growth = many * speeds.decode_s_per_context_token
        while ahead > 0 and self._ends is not None and self._ends <= until:
            step_s = self._step_s()
            # Steps get longer by `growth` each; taking the next ones for alike errs by less than
            # a thousandth, for context grows by one token a step.
            joined = max(1, min(ahead, 16, int((until - self._ends) / step_s)))
            self._steps += joined
            self._contexts += joined * many
            begun = self._ends + (joined - 1) * (step_s + growth * joined / 2)
            ahead -= joined
            self._ends = begun + self._step_s()

    def _finish(self, at: float) -> Happened:
        """Let the step's work count, and begin the next one."""
        self._steps += 1
        self._contexts += len(self._decoding)
        finished = self._finished(at)
        stored, removed, firsts = self._stored, self._removed, []
        for job, chunk in self._chunks:
            job.computed += chunk
            if job.computed >= job.request.input_tokens:
                firsts.append(job)
        for job in firsts:
            self.prefilling.remove(job)
            job.first_token = at
            if job.request.output_tokens > 1:
                left = self._steps + job.request.output_tokens - 1
                heapq.heappush(self._decoding, (left, job.id, job))
                self._contexts += job.request.input_tokens
            else:
                self._release(job, at)
                finished.append(job)
        self._begin(at)
        return Happened(at, firsts, finished, stored, removed)

    def _finished(self, at: float) -> list[Job]:
        finished = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            job = heapq.heappop(self._decoding)[2]
            self._contexts -= job.request.input_tokens + job.request.output_tokens - 1
            self._release(job, at)
            finished.append(job)
        return finished

    def _release(self, job: Job, at: float) -> None:
        if not self._is_forecast:
            job.finished = at
        self.cache.private -= _answer_blocks(job)
        self.cache.unpin(job.request.blocks)


def _answer_blocks(job: Job) -> int:
    return -(-job.request.output_tokens // BLOCK_TOKENS)


def _cached_tokens(request: TraceRequest, matched: int) -> int:
    """Return what is reused of so many blocks: the last token is computed in any case."""
    tokens = min(matched * BLOCK_TOKENS, request.input_tokens - 1)
    return tokens // ENGINE_BLOCK * ENGINE_BLOCK


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading blocks are the same."""
    for place, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return place
    return min(len(some), len(others))


_LAST = 1 << 60
"""After all others with which a request finishes in the same step."""
