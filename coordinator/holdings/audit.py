"""Whether what engines' digests say proves right, request by request. Pure.

Written by the service, which asks for a `Word` whenever one changed. Each answer that reports its
cached tokens is held against the prediction. Three things follow from it:

- An engine that was contradicted again and again is *mispredicted*: it counts as unsure, and its
  agent is told once for each generation (`take_doubts`), which then lets go of what it holds.
- An engine that is unsure, of its agent's own accord or ours, is healed. A share of the requests to
  it ask it to announce the blocks they hit anew, so that a prompt in use becomes known again; and
  once a run of requests has reported what was predicted, the agent is told (`take_due`).
- Events from a guessed address are believed when a request has shown that they are the engine's.
"""

import random
import re
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.engines import NOTHING, Doubt, EngineView, Word
from coordinator.records import Record
from lineside.hashing import UNIT
from lineside.ids import EngineId
from lineside.signals import Events

AGREEING = 10
"""Requests in a row, at least one of them with a hit, that prove what is said right."""

RECENT = 20
WRONG = 5
"""So many contradictions among so many of the latest requests are an alarm. Single ones are not: a
block may be evicted between a decision and its execution."""

FOREIGN = 3
"""So many contradictions, and no agreement, tell that a guessed address is another engine's."""

UNSETTLED = 256
"""Requests that wait for the next look; more of them in a second tell nothing new."""

ANNOUNCES_SINCE = (0, 26)
"""The first release of vLLM that knows `kv_cache_report_mode`."""


@dataclass(slots=True)
class Tally:
    """One engine's comparisons since the coordinator's start."""

    compared: int = 0
    too_many: int = 0
    """Requests for which the digest promised more than the engine had."""
    too_few: int = 0
    """Those for which it promised less, beyond what stride and block explain."""
    tokens_too_many: int = 0
    tokens_too_few: int = 0
    evicted: int = 0
    """Requests that hit less than predicted, which evictions after their decision explain."""
    unreported: int = 0
    """Answers in a row that could be compared but for the engine's silence on cached tokens."""


@dataclass(slots=True)
class _Run:
    """Requests in a row that agreed, on one generation of an engine's digest."""

    generation: str
    length: int = 0
    hits: int = 0


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine."""

    tally: Tally = field(default_factory=Tally)
    word: Word = NOTHING
    source: str = ""
    """Where the events were read from that the word is about."""
    run: _Run = field(default_factory=lambda: _Run(""))
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The latest errors on the run's generation: tokens too many, or below zero too few."""
    doubted: str = ""
    """The generation that the alarm was raised on."""


class _Unsettled(NamedTuple):
    """A request that hit less than predicted. Blocks of it may have been evicted by then."""

    view: EngineView
    predicted: int
    reported: int


class Audit:
    """`share`: of requests to unsure engines, those that ask for announcements."""

    def __init__(self, share: float, rng: random.Random) -> None:
        self._share = share
        self._rng = rng
        self._engines: dict[EngineId, _Engine] = {}
        self._due: dict[EngineId, str] = {}
        self._doubts: dict[EngineId, Doubt] = {}
        self._unsettled: list[_Unsettled] = []
        self._settling: list[_Unsettled] = []

    def asks(self, view: EngineView) -> bool:
        """Return whether a request to this engine is to ask for the blocks that it hits.

        Only while its agent counts copies so that an announcement adds none.
        """
        status = view.status
        can = status is not None and status.announce and view.cache_usable and not view.diverged
        return can and announces(view.engine.version) and self._rng.random() < self._share

    def ended(self, record: Record) -> bool:
        """Take a request that was answered; return whether the word on its engine changed."""
        predicted, reported = record.predicted_cached_tokens, record.outcome.cached_tokens
        view = record.served_by.view if record.served_by else None
        if view is None or predicted is None:
            return False
        if reported is None:
            self._of(view).tally.unreported += record.outcome.prompt_tokens is not None
            return False
        return self.compare(view, predicted, reported, record.excused_tokens)

    def compare(self, view: EngineView, predicted: int, reported: int, excused: int = 0) -> bool:
        """Take what a request's engine reported as cached, and what was predicted when it was sent.

        `view`: the engine as it was then. `excused`: what requests before this one were about to
        compute; with it, a request can contradict the digest and cannot confirm it. Return whether
        the word on the engine changed.
        """
        if not view.cache_usable or view.cache_state == "stale":
            return False
        error = _error(view, predicted, reported, excused)
        if excused and not error:
            return False
        if error <= 0:
            return self._note(view, predicted, reported, error)
        run = self._of(view).run
        run.length = run.hits = 0
        if len(self._unsettled) < UNSETTLED:
            self._unsettled.append(_Unsettled(view, predicted, reported))
        return False

    def _note(self, view: EngineView, predicted: int, reported: int, error: int) -> bool:
        """Count a comparison, and see what follows from it and those before."""
        of, before = self._of(view), self.word(view.engine.id)
        _count(of.tally, predicted, reported, error)
        if of.run.generation != view.generation:
            of.run = _Run(view.generation)
            of.recent.clear()
        hit = not error and bool(predicted and reported)
        of.run.length = 0 if error else of.run.length + 1
        of.run.hits = 0 if error else of.run.hits + hit
        of.recent.append(error)
        if view.cache_state == "unproven":
            self._prove(of, hit)
        else:
            self._judge(of, view, error)
        return of.word != before

    def _prove(self, of: _Engine, hit: bool) -> None:
        """Believe a guessed address once it explains a hit; after contradictions, many of them."""
        wrong = sum(map(bool, of.recent))
        clean = not wrong and not of.word.mispredicted
        if hit and (clean or of.run.length >= AGREEING):
            of.word = Word(proven=True)
            of.recent.clear()
        elif wrong >= FOREIGN and not of.word.mispredicted:
            of.word = Word(_described(of.recent))

    def _judge(self, of: _Engine, view: EngineView, error: int) -> None:
        """Raise an alarm, or end one, and note what the agent is to be told."""
        engine, unsure = view.engine, view.status and view.status.events is Events.UNSURE
        if view.cache_state != "unsure":
            of.run.length = of.run.hits = 0  # what was right before a loss proves nothing after it
        elif of.run.length >= AGREEING and of.run.hits:
            of.word = of.word._replace(mispredicted="")
            of.recent.clear()
            if unsure:
                self._due[engine.id] = view.generation
            of.run.length = of.run.hits = 0  # said again if it does not help
            return
        if unsure and error < 0:
            of.recent.pop()  # the agent says itself that something may be missing
        if sum(map(bool, of.recent)) < WRONG:
            return
        why, overstated = _described(of.recent), any(error > 0 for error in of.recent)
        of.recent.clear()
        if engine.events_guessed:
            of.word = Word(why)  # neither proven nor ours to doubt: the address may be wrong
            return
        of.word = of.word._replace(mispredicted=why)
        of.doubted = view.generation
        self._doubts[engine.id] = Doubt(view.generation, why, overstated)

    def look(self, views: Iterable[EngineView]) -> set[EngineId]:
        """Settle what could not be told at once; return the engines whose word changed.

        To be called about once a second, with the engines as they are now.
        """
        now = {view.engine.id: view for view in views}
        return self._settle(now) | self._end_alarms(now.values())

    def _settle(self, now: Mapping[EngineId, EngineView]) -> set[EngineId]:
        """Judge the requests that hit less than predicted, but for what was evicted meanwhile.

        They wait for a look, so that the removals of their own step have arrived.
        """
        due, self._settling, self._unsettled = self._settling, self._unsettled, []
        changed = set()
        for view, predicted, reported in due:
            later = now.get(view.engine.id)
            if later is None or later.generation != view.generation:
                continue
            evicted = (later.removed - view.removed) * view.engine.stride * UNIT
            if predicted - reported <= evicted + (view.block_size or 0):
                self._of(view).tally.evicted += 1
            elif self._note(view, predicted, reported, predicted - reported):
                changed.add(view.engine.id)
        return changed

    def _end_alarms(self, views: Iterable[EngineView]) -> set[EngineId]:
        """End alarms on what is no longer said; return the engines whose word changed.

        A generation that its agent vouches for by itself is one that began with an empty cache.
        """
        ended = set()
        for view in views:
            of = self._engines.get(view.engine.id)
            if of is None or not of.word.mispredicted or not of.doubted:
                continue
            live = view.status is not None and view.status.events is Events.LIVE
            if live and view.generation not in ("", of.doubted):
                of.word = of.word._replace(mispredicted="")
                ended.add(view.engine.id)
        return ended

    def word(self, engine: EngineId) -> Word:
        """Return what is to be said of an engine."""
        of = self._engines.get(engine)
        return of.word if of else NOTHING

    def tallies(self) -> Mapping[EngineId, Tally]:
        """Return each engine's comparisons; those without any are left out."""
        return {engine: of.tally for engine, of in self._engines.items()}

    def take_due(self) -> dict[EngineId, str]:
        """Return the engines to vouch for, with the generation that proved right; once each."""
        due, self._due = self._due, {}
        return due

    def take_doubts(self) -> dict[EngineId, Doubt]:
        """Return the engines to doubt, and what their agents are to be told; once each."""
        doubts, self._doubts = self._doubts, {}
        return doubts

    def keep(self, engines: Set[EngineId]) -> None:
        """Forget engines that are gone."""
        for engine in self._engines.keys() - engines:
            del self._engines[engine]

    def _of(self, view: EngineView) -> _Engine:
        """Return what is remembered of an engine, as long as its events come from one address."""
        of = self._engines.get(view.engine.id)
        if of is None:  # made only then: every request comes by here
            of = self._engines[view.engine.id] = _Engine()
        if of.source != view.engine.events:
            of.source, of.word, of.run = view.engine.events, NOTHING, _Run("")
            of.recent.clear()
        return of


def _error(view: EngineView, predicted: int, reported: int, excused: int) -> int:
    """Return by how many tokens a digest was wrong: above 0 it promised too many.

    What stride and block explain is no error. Neither is one block that a hit does not reach: an
    engine that drafts tokens computes the last block of a hit again.
    """
    block = view.block_size or 0
    if predicted - reported > block:
        return predicted - reported
    too_few = reported - predicted - excused >= view.engine.stride * UNIT + block
    return predicted - reported if too_few else 0


def _count(tally: Tally, predicted: int, reported: int, error: int) -> None:
    tally.compared += 1
    tally.unreported = 0
    tally.too_many += error > 0
    tally.too_few += error < 0
    tally.tokens_too_many += max(0, predicted - reported)
    tally.tokens_too_few += max(0, reported - predicted)


def _described(recent: Iterable[int]) -> str:
    """Say how the latest requests contradict a digest."""
    errors = list(recent)
    wrong = [error for error in errors if error]
    more = sum(error > 0 for error in wrong)
    than = "fewer" if more == len(wrong) else "fewer or more" if more else "more"
    return (
        f"{len(wrong)} of the last {len(errors)} comparable requests hit {than} cached tokens than"
        " its events say"
    )


def announces(version: str) -> bool:
    """Tell whether an engine of this release announces blocks on demand; unknown ones do not."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= ANNOUNCES_SINCE
