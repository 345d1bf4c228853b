"""Which engines get no requests for now: those that fail, and those that do not get on. Pure.

Evidence comes from two sides: what became of requests, and what engines report while they have
work. Written by the service's wrapper and the chores; the only writer of `Cluster.observe_failing`.
Whether an excluded engine is used all the same, for want of a better one, is the decision's word.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from coordinator.cluster import Cluster
from coordinator.engines import EngineView
from lineside.ids import EngineId
from lineside.signals import Load

OPENS_AFTER = 5
"""Failures in a row, nothing answered between them: one client's odd requests are not enough
where others are served."""

OPEN_S = 5.0
"""How long an engine is left alone at first; each trial that fails doubles it."""

OPEN_MOST_S = 60.0

REPORT_FOR_S = 5.0
"""A report older than this says nothing about progress."""


class Cause(Enum):
    """Why an engine is excluded, as people read it."""

    FAILS = "it failed several requests in a row"
    SILENT = "it took a request and did not answer in time"
    STALLED = "it makes no progress although requests are pending"


class Exclusion(NamedTuple):
    """An engine that is excluded, or on trial."""

    cause: Cause
    open_s: float
    opened_at: float


@dataclass(slots=True)
class _Engine:
    failures: int = 0
    cause: Cause | None = None
    """`None`: closed, that is, used."""
    opened_at: float = 0.0
    open_s: float = OPEN_S
    heard_at: float = 0.0
    """When the engine's server last answered a look at it."""
    trial: bool = False
    """A request is on its way to find out; until it ends, no other is sent."""
    alive_at: float = -math.inf
    """When the engine was last seen to do something."""
    excused_at: float = -math.inf
    """When it last had nothing to do, or nothing was known of it."""
    load: Load | None = None
    shown: str = ""
    remembered: bool = False
    """It is known from an earlier life of the coordinator; the engine has yet to be found."""


@dataclass(slots=True)
class Breakers:
    """One breaker for each engine. Times are the coordinator's monotonic seconds."""

    cluster: Cluster
    stalled_after_s: float
    _engines: dict[EngineId, _Engine] = field(default_factory=dict)
    _news: dict[EngineId, str] = field(default_factory=dict)

    def sent(self, engine: EngineId, now: float) -> bool:
        """Note a request on its way; return whether it is the one that finds out."""
        state = self._of(engine)
        is_trial = state.cause is not None and _tries(state, now)
        state.trial = state.trial or is_trial
        self._show(engine, state, now)
        return is_trial

    def answered(self, engine: EngineId, now: float) -> None:
        """Note content, or an answer that is not the engine's fault: it is used again."""
        state = self._of(engine)
        state.alive_at, state.failures = now, 0
        if state.cause is not None:
            state.cause, state.open_s, state.trial = None, OPEN_S, False
            self._show(engine, state, now)

    def failed(self, engine: EngineId, now: float) -> None:
        """Note a request that the engine broke off, or answered with an error of its own."""
        state = self._of(engine)
        state.failures += 1
        if state.failures >= OPENS_AFTER or state.trial:
            _open(state, state.cause or Cause.FAILS, now)
        self._show(engine, state, now)

    def silent(self, engine: EngineId, since: float, now: float) -> None:
        """Note a request that the engine has left without a word since then.

        One is enough, unless the engine did something else meanwhile: busy is not dead.
        """
        state = self._of(engine)
        if state.trial or state.alive_at <= since:
            _open(state, Cause.SILENT, now)
            self._show(engine, state, now)
        else:
            self.failed(engine, now)

    def left(self, engine: EngineId, now: float) -> None:
        """Note that a trial ended without showing anything: its client left."""
        state = self._of(engine)
        if state.trial:
            state.trial, state.opened_at = False, now
        self._show(engine, state, now)

    def untold(self, engine: EngineId, now: float) -> None:
        """Note that nobody says what became of a trial, nor if it was sent: another may be one."""
        state = self._of(engine)
        state.trial = False
        self._show(engine, state, now)

    def got_on(self, engine: EngineId, now: float) -> None:
        """Note that a stream of the engine goes on."""
        self._of(engine).alive_at = now

    def heard(self, engine: EngineId, now: float) -> None:
        """Note that the engine's server answered a look at it."""
        self._of(engine).heard_at = now

    def reset(self, engine: EngineId) -> None:
        """Forget all: the engine is new, or came back from being away.

        Not what is remembered of it: it is merely found again.
        """
        if (known := self._engines.get(engine)) and known.remembered:
            known.remembered = False
            return
        if (state := self._engines.pop(engine, None)) and state.shown:
            self._tell(engine, "")

    def excluded(self) -> Mapping[EngineId, Exclusion]:
        """Return the engines that are excluded or on trial, to be remembered."""
        return {
            engine: Exclusion(state.cause, state.open_s, state.opened_at)
            for engine, state in self._engines.items()
            if state.cause is not None
        }

    def restore(self, engine: EngineId, was: Exclusion, now: float) -> None:
        """Take over what is remembered of an engine: it is not used before it has been tried.

        What was seen of it since then counts more.
        """
        known = self._engines.get(engine)
        if known and (known.cause is not None or known.alive_at >= was.opened_at):
            return
        state = _Engine(
            cause=was.cause,
            open_s=was.open_s,
            opened_at=was.opened_at,
            heard_at=known.heard_at if known else -math.inf,
            remembered=known is None,
        )
        self._engines[engine] = state
        self._show(engine, state, now)

    def found(self, engines: Iterable[EngineId]) -> None:
        """Show what is remembered of engines that the cluster has only just come to know."""
        for engine in engines:
            if (state := self._engines.get(engine)) and state.remembered:
                self.cluster.observe_failing(engine, state.shown)

    def look(self, view: EngineView, watched: int, now: float) -> None:
        """Compare an engine's report with the one before; let time pass.

        `watched` counts the requests there whose progress we would see: not those that gateways
        send, which may never have been sent. To be called about once a second.
        """
        engine, load = view.engine.id, view.load
        state = self._of(engine)
        reported = load is not None and (view.load_age_s or 0.0) <= REPORT_FOR_S
        before, state.load = state.load, load if reported else None
        if load is None or before is None or not reported or load.generation_tokens is None:
            state.excused_at = now  # our own requests do not tell a long prefill from a stall
        elif _moved(before, load):
            state.alive_at = now
            if state.cause in (Cause.STALLED, Cause.SILENT):
                self.answered(engine, now)
        elif view.asleep or not (watched or load.running or load.waiting):
            state.excused_at = now
        elif now - max(state.alive_at, state.excused_at) >= self.stalled_after_s:
            _open(state, Cause.STALLED, now)
        self._show(engine, state, now)

    def retain(self, engines: set[EngineId]) -> None:
        """Forget all other engines, but for those that are yet to be found."""
        for gone in self._engines.keys() - engines:
            if not self._engines[gone].remembered:
                del self._engines[gone]
                self._news.pop(gone, None)

    def take_news(self) -> list[tuple[EngineId, str]]:
        """Return which engines are excluded (why) or used again (empty) since the last call."""
        news, self._news = self._news, {}
        return list(news.items())

    def _of(self, engine: EngineId) -> _Engine:
        return self._engines.setdefault(engine, _Engine())

    def _show(self, engine: EngineId, state: _Engine, now: float) -> None:
        excluded = state.cause is not None and not _tries(state, now)
        shown = state.cause.value if state.cause and excluded else ""
        if shown != state.shown:
            state.shown = shown
            self._tell(engine, shown)

    def _tell(self, engine: EngineId, reason: str) -> None:
        self._news[engine] = reason
        self.cluster.observe_failing(engine, reason)


def _open(state: _Engine, cause: Cause, now: float) -> None:
    if state.cause is not None and state.trial:
        state.open_s = min(2 * state.open_s, OPEN_MOST_S)
    elif state.cause is not None:
        return  # sent before it opened: no news
    state.cause, state.opened_at, state.trial = cause, now, False


def _tries(state: _Engine, now: float) -> bool:
    """Whether a request may find out if the engine works again.

    Not while its server does not even answer a look: that would cost a client its patience.
    """
    due = state.opened_at + state.open_s
    return not state.trial and now >= due and state.heard_at >= state.opened_at


def _moved(before: Load, load: Load) -> bool:
    """Whether an engine did a step between two reports.

    A long prefill moves no counter before its end, but it takes blocks at every step. What falls
    was given back, which takes no step; a counter that fell began anew.
    """
    return (
        load.prompt_tokens != before.prompt_tokens
        or load.generation_tokens != before.generation_tokens
        or load.prefix_cache_queries != before.prefix_cache_queries
        or (load.kv_cache_usage or 0.0) > (before.kv_cache_usage or 0.0)
    )
