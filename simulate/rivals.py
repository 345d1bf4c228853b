"""Strategies to compare with: what other routers do, and simple rules. Pure.

They know what a router can know: what they sent and what came of it at once, caches as the engines'
events tell. Each is as its source describes it, with that source's usual numbers, and draws ties.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulate.traces import BLOCK_TOKENS
from simulate.virtual import USUAL, Job


@dataclass(slots=True)
class _Line:
    """One engine, as a router sees it."""

    open: dict[Job, float] = field(default_factory=dict)
    """What it was sent and has not finished, with what its prefill counts for."""
    queued: dict[Job, None] = field(default_factory=dict)
    """Of those the ones without a first token, in order."""
    prefill: float = 0.0
    """What all of these count for."""
    head_since: float = 0.0
    held: set[int] = field(default_factory=set)
    """Blocks, by the engine's events."""
    claimed: dict[int, int] = field(default_factory=dict)
    """Blocks that the prompts under way will leave, counted."""

    def matched(self, blocks: Sequence[int], claims: bool = False) -> int:
        """Return how many leading blocks are held, or will be."""
        for place, block in enumerate(blocks):
            if block not in self.held and not (claims and block in self.claimed):
                return place
        return len(blocks)


class Router:
    """Accounts what is sent; a strategy says where. Ties are drawn."""

    def __init__(self, engines: int, rng: random.Random) -> None:
        self.lines = [_Line() for _ in range(engines)]
        self.rng = rng

    def pick(self, job: Job, now: float) -> int:
        """Return the engine that gets a request."""
        raise NotImplementedError

    def load(self, job: Job, line: _Line) -> float:
        """Return what a request's prefill counts for on the engine that gets it."""
        return 0.0

    def least(self, worth: Callable[[_Line], float]) -> int:
        """Return the engine with the least of something."""
        worths = [worth(line) for line in self.lines]
        best = min(worths)
        return self.rng.choice([place for place, each in enumerate(worths) if each == best])

    def choose(self, job: Job, now: float) -> int | None:
        chosen = self.pick(job, now)
        line = self.lines[chosen]
        if not line.queued:
            line.head_since = now
        line.open[job] = load = self.load(job, line)
        line.prefill += load
        line.queued[job] = None
        for block in job.request.blocks:
            line.claimed[block] = line.claimed.get(block, 0) + 1
        return chosen

    def first_token(self, job: Job, engine: int, at: float) -> None:
        line = self.lines[engine]
        if next(iter(line.queued)) is job:
            line.head_since = at
        del line.queued[job]
        line.prefill = line.prefill - line.open[job] if line.queued else 0.0

    def finished(self, job: Job, engine: int, at: float) -> None:
        line = self.lines[engine]
        del line.open[job]
        for block in job.request.blocks:
            line.claimed[block] -= 1
            if not line.claimed[block]:
                del line.claimed[block]

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        self.lines[engine].held.update(stored)
        self.lines[engine].held.difference_update(removed)


class Random(Router):
    """Any engine."""

    def pick(self, job: Job, now: float) -> int:
        return self.rng.randrange(len(self.lines))


class RoundRobin(Router):
    """One after the other."""

    def pick(self, job: Job, now: float) -> int:
        return job.id % len(self.lines)


class LeastLoaded(Router):
    """The fewest requests in flight, counted at once."""

    def pick(self, job: Job, now: float) -> int:
        return self.least(lambda line: len(line.open))


class PrefixOnly(Router):
    """The longest cached prefix, whatever the load."""

    def pick(self, job: Job, now: float) -> int:
        return self.least(lambda line: -line.matched(job.request.blocks))


class DynamoLike(Router):
    """The least `scale * (prefill in flight + own) + blocks in use`, in blocks, as in Dynamo.

    `overlay`: prompts under way count as cached already.
    """

    def __init__(
        self, engines: int, rng: random.Random, scale: float = 1.0, overlay: bool = False
    ) -> None:
        super().__init__(engines, rng)
        self._scale, self._overlay = scale, overlay

    def pick(self, job: Job, now: float) -> int:
        return self.least(lambda line: self._cost(job, line))

    def load(self, job: Job, line: _Line) -> float:
        matched = line.matched(job.request.blocks, self._overlay)
        return max(0, job.request.input_tokens - matched * BLOCK_TOKENS) / BLOCK_TOKENS

    def _cost(self, job: Job, line: _Line) -> float:
        prefill = line.prefill + self.load(job, line)
        new = sum(block not in line.claimed for block in job.request.blocks)
        return self._scale * prefill + len(line.claimed) + new


class TextTree(Router):
    """SGLang's rule: by load while that is uneven, else by the tree of what was sent where.

    The tree is of blocks rather than of characters, and nothing is ever evicted from it.
    """

    LEAST_SHARE, ABSOLUTE, RELATIVE = 0.3, 64, 1.5

    def __init__(self, engines: int, rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._sent: list[set[int]] = [set() for _ in range(engines)]

    def pick(self, job: Job, now: float) -> int:
        many = [len(line.open) for line in self.lines]
        if max(many) - min(many) > self.ABSOLUTE and max(many) > self.RELATIVE * min(many):
            chosen = self.least(lambda line: len(line.open))
        else:
            chosen = self._by_tree(job)
        self._sent[chosen].update(job.request.blocks)
        return chosen

    def _by_tree(self, job: Job) -> int:
        blocks, places = job.request.blocks, range(len(self.lines))
        matched = [_leading(blocks, sent) for sent in self._sent]
        best = max(matched)
        if best / len(blocks) > self.LEAST_SHARE:
            return self.rng.choice([place for place in places if matched[place] == best])
        smallest = min(map(len, self._sent))
        return self.rng.choice([p for p in places if len(self._sent[p]) == smallest])


class Formula(Router):
    """The product's cost by the engines' true speeds: what learning and estimates are held to.

    It also measures a group's capacity, as a rule that stays sound far above it.
    """

    BETA, OUTSTANDING_S, HEAD_CREDIT = 1.0, 0.005, 0.95

    def __init__(self, engines: int, rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._now = 0.0

    def pick(self, job: Job, now: float) -> int:
        self._now = now
        return self.least(lambda line: self._cost(job, line))

    def load(self, job: Job, line: _Line) -> float:
        cached = line.matched(job.request.blocks, claims=True) * BLOCK_TOKENS
        uncached = max(1, job.request.input_tokens - cached)
        return USUAL.base_step_s + USUAL.prefill(cached, uncached)

    def _cost(self, job: Job, line: _Line) -> float:
        own, wait = self.load(job, line), line.prefill
        if line.queued:
            head = self.HEAD_CREDIT * line.open[next(iter(line.queued))]
            wait -= min(head, self._now - line.head_since)
        return wait + (1 + self.BETA) * own + self.OUTSTANDING_S * len(line.open)


def _leading(blocks: Sequence[int], held: set[int]) -> int:
    for place, block in enumerate(blocks):
        if block not in held:
            return place
    return len(blocks)
