"""Tokenizers by where they come from, a directory or a hub's name: each loaded once, then kept.

Files are fetched and read in threads of its own; no request ever waits for them. What failed is
tried again when a request asks for it later. Lives on one event loop.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from coordinator.tokens import hub
from coordinator.tokens.hub import Hub, Unfetched
from coordinator.tokens.reuse import Reused
from coordinator.tokens.tokenizer import Tokenizer, Unloadable
from lineside import logs
from lineside.clock import Clock

RELOAD_AFTER_S = 60.0
"""A source that could not be read is tried again when a request asks for it after this."""

THREADS = 4
"""So many at a time; a fifth source waits, and says `loading` meanwhile."""

log = logs.get("coordinator.tokens.loading")


@dataclass(frozen=True, slots=True)
class SourceState:
    """One tokenizer's source, for people."""

    source: str
    state: str
    """`loading`, `ready` or `failed`."""
    error: str = ""
    encoder: str = ""
    content_format: str = ""
    doubt: str = ""
    no_reuse: str = ""
    """Why chats are encoded whole, earlier turns included."""


@dataclass(frozen=True, slots=True)
class _Loading:
    outcome: "asyncio.Future[Tokenizer | Unloadable]"
    begun_at: float


@dataclass(slots=True)
class Loader:
    """Whoever builds it calls `close`."""

    clock: Clock
    hub: Hub = field(default_factory=Hub)
    _sources: dict[str, _Loading] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, "tokenizers")
    )

    def get(self, source: str) -> Tokenizer | Unloadable | None:
        """Return a tokenizer, why there is none, or `None` while it is being loaded."""
        outcome = self._begun(source).outcome
        return outcome.result() if outcome.done() else None

    async def load(self, source: str) -> Tokenizer | Unloadable:
        """Wait for a tokenizer; it goes on loading when the caller does not wait any more."""
        return await asyncio.shield(self._begun(source).outcome)

    def states(self) -> list[SourceState]:
        """Return the state of each source that was asked for."""
        return [_state(name, loading) for name, loading in sorted(self._sources.items())]

    def reused(self) -> Reused:
        """Return what all tokenizers have reused together."""
        total = Reused()
        for each in self._sources.values():
            tokenizer = each.outcome.result() if each.outcome.done() else None
            if isinstance(tokenizer, Tokenizer) and tokenizer.reuse:
                total += tokenizer.reuse.counts()
        return total

    def close(self) -> None:
        """Give up what is still being fetched or read."""
        self.hub.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begun(self, source: str) -> _Loading:
        now = self.clock.monotonic()
        known = self._sources.get(source)
        if known and not (_has_failed(known) and now - known.begun_at > RELOAD_AFTER_S):
            return known
        loop = asyncio.get_running_loop()
        before = str(known.outcome.result()) if known else ""
        outcome = loop.run_in_executor(self._threads, _loaded, source, self.hub, before)
        loading = _Loading(outcome, now)
        self._sources[source] = loading
        return loading


def _loaded(source: str, models: Hub, before: str) -> Tokenizer | Unloadable:
    """Load a tokenizer; log what went wrong unless it is what went wrong `before`."""
    try:
        tokenizer = Tokenizer.load(models.fetch(source) if hub.is_name(source) else source)
    except (Unloadable, Unfetched) as error:
        if str(error) != before:
            log.warning("tokenizer not loaded", source=source, reason=str(error))
        return error if isinstance(error, Unloadable) else Unloadable(str(error))
    log.info(
        "tokenizer loaded",
        source=source,
        encoder=tokenizer.encoder,
        doubt=tokenizer.doubt or None,
        no_reuse=tokenizer.no_reuse or None,
    )
    return tokenizer


def _has_failed(loading: _Loading) -> bool:
    return loading.outcome.done() and isinstance(loading.outcome.result(), Unloadable)


def _state(source: str, loading: _Loading) -> SourceState:
    if not loading.outcome.done():
        return SourceState(source, "loading")
    outcome = loading.outcome.result()
    if isinstance(outcome, Unloadable):
        return SourceState(source, "failed", str(outcome))
    content_format = outcome.template.content_format
    return SourceState(
        source,
        "ready",
        encoder=outcome.encoder,
        content_format=content_format.value if content_format else "",
        doubt=outcome.doubt,
        no_reuse=outcome.no_reuse,
    )
