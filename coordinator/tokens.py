"""A request's tokens: given, from the model's own tokenizer, from an engine, or unknown and why.

One time budget covers all ways. A tokenizer is loaded once per directory, off the event loop, and
trusted as long as no engine is known to tokenize otherwise (`verify`). Never holds up a request:
out of budget, or no way, it is routed by load alone.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import aiohttp

from coordinator import rendering
from coordinator.canonical import Api, Canonical
from coordinator.engine_tokenize import EngineTokenize, Failure
from coordinator.engines import Engine
from coordinator.probes import probes
from coordinator.rendering import NotRendered
from coordinator.sandbox import MAX_TEXT_CHARS
from coordinator.tokenizer import Tokenizer, Unloadable
from lineside import logs
from lineside.clock import Clock
from lineside.ids import EngineId

BUDGET_S = 0.05
"""Default for all that a request's tokens may take."""

INLINE_BYTES = 20_000
"""A body up to this is rendered and encoded on the event loop, in well under a millisecond."""

POOL_THREADS = 2
POOL_QUEUE = 32
"""Larger ones in the pool or waiting for it; beyond, a request goes by load alone (`busy`)."""

RELOAD_AFTER_S = 60.0
"""A directory that could not be read is tried again when a request asks for it after this."""

PROBE_S = 5.0
"""For each probe prompt of `verify`."""

log = logs.get("coordinator.tokens")


class TokenState(Enum):
    """How far a request's tokens can be relied on."""

    EXACT = "exact"
    """Given, or from the model's own tokenizer."""
    ENGINE = "engine"
    """An engine tokenized the request."""
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Where tokens come from, why not from the model's tokenizer, or why there are none."""

    GIVEN = "given"
    LOCAL = "local"
    UNVERIFIED = "unverified"
    """Local, and no engine has confirmed that it tokenizes the same."""
    MEDIA = "media"
    """Known up to the first media part, or not at all when nothing local renders it."""

    NO_TOKENIZER = "no_tokenizer"
    LOADING = "loading"
    UNLOADABLE = "unloadable"
    DIFFERENT = "different"
    """An engine tokenized a probe otherwise than the directory."""
    CLIENT_TEMPLATE = "client_template"
    TEMPLATE = "template"
    """The template raised on this request, or the model has none."""

    BUDGET = "budget"
    BUSY = "busy"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    """Embeddings, truncation, or a request that the engine refuses to tokenize."""
    ENGINE_ERROR = "engine_error"
    BREAKER_OPEN = "breaker_open"
    NO_ENGINE = "no_engine"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A request's first prompt. `packed` ends at the first media part; then `count` is unknown."""

    state: TokenState
    reason: str
    packed: bytes | None = None
    count: int | None = None


class Check(Enum):
    """What probe prompts said of an engine and its tokenizer directory."""

    SAME = "same"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"
    """The engine tokenized no probe."""
    NO_TOKENIZER = "no_tokenizer"


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One tokenizer directory, for people."""

    directory: str
    state: str
    """`loading`, `ready` or `failed`."""
    error: str = ""
    encoder: str = ""
    content_format: str = ""


@dataclass(frozen=True, slots=True)
class _Loading:
    outcome: "asyncio.Future[Tokenizer | Unloadable]"
    begun_at: float


class Tokens:
    """Lives on one event loop. Whoever builds it calls `close`."""

    def __init__(
        self, clock: Clock, http: aiohttp.ClientSession, budget_s: float = BUDGET_S
    ) -> None:
        self._clock = clock
        self._budget_s = budget_s
        self._engines = EngineTokenize(clock, http)
        self._directories: dict[str, _Loading] = {}
        self._checks: dict[EngineId, dict[Api, Check]] = {}
        self._pool = ThreadPoolExecutor(POOL_THREADS, "tokens")
        self._pooled = 0

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        """Return the tokens of a request's first prompt; `engines` serve its model."""
        known = _without_tokenizer(canonical)
        if known:
            return known
        deadline = asyncio.get_running_loop().time() + self._budget_s
        tokenizer, reason = self._tokenizer(canonical.api, engines)
        if tokenizer:
            local = await self._encoded(tokenizer, canonical, deadline)
            if isinstance(local, bytes):
                return _finished(canonical, TokenState.EXACT, reason, local)
            if local in _FINAL:
                return Tokenized(TokenState.UNKNOWN, local)
            reason = local
        return await self._asked(canonical, engines, reason, deadline)

    async def verify(self, engine: Engine) -> Check:
        """Load an engine's tokenizer and compare it with the engine's own on probe prompts.

        To be called when an engine appears, and again when it may have been restarted.
        """
        if engine.tokenizer is None:
            return Check.NO_TOKENIZER
        tokenizer = await self.load(engine.tokenizer)
        if isinstance(tokenizer, Unloadable):
            return Check.NO_TOKENIZER
        before = self._checks.get(engine.id)
        found = {api: await self._compare(engine, tokenizer, api) for api in Api}
        self._checks[engine.id] = found
        if found != before:
            log.info(
                "tokenizer compared with the engine",
                engine=engine.id,
                **{api.value: check.value for api, check in found.items()},
            )
        worst = (Check.DIFFERENT, Check.SAME, Check.UNVERIFIED)
        return next(check for check in worst if check in found.values())

    async def load(self, directory: str) -> Tokenizer | Unloadable:
        """Read a directory now, rather than when the first request needs it."""
        return await asyncio.shield(self._load(directory).outcome)

    def forget(self, engine: EngineId) -> None:
        """Drop what is known of an engine that left."""
        self._checks.pop(engine, None)
        self._engines.forget(engine)

    def directories(self) -> list[DirectoryState]:
        """Return the state of each tokenizer directory that was asked for."""
        return [_state(name, loading) for name, loading in sorted(self._directories.items())]

    def checks(self) -> dict[EngineId, dict[Api, Check]]:
        """Return what `verify` last found, by engine."""
        return dict(self._checks)

    def open_breakers(self) -> list[EngineId]:
        """Return the engines whose `/tokenize` is not asked for now."""
        return self._engines.open_breakers()

    def close(self) -> None:
        """Give up what is still being encoded."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tokenizer(self, api: Api, engines: Sequence[Engine]) -> tuple[Tokenizer | None, Reason]:
        """Choose a local tokenizer; the reason says how good it is, or why there is none."""
        checks = [self._checks[e.id][api] for e in engines if e.id in self._checks]
        if Check.DIFFERENT in checks:
            return None, Reason.DIFFERENT
        reason = Reason.NO_TOKENIZER
        for directory in dict.fromkeys(e.tokenizer for e in engines if e.tokenizer):
            outcome = self._load(directory).outcome
            if not outcome.done():
                reason = Reason.LOADING
                continue
            tokenizer = outcome.result()
            if isinstance(tokenizer, Tokenizer):
                return tokenizer, Reason.LOCAL if Check.SAME in checks else Reason.UNVERIFIED
            reason = Reason.UNLOADABLE
        return None, reason

    def _load(self, directory: str) -> _Loading:
        now = self._clock.monotonic()
        known = self._directories.get(directory)
        if known and not (_has_failed(known) and now - known.begun_at > RELOAD_AFTER_S):
            return known
        outcome = asyncio.get_running_loop().run_in_executor(None, _load, directory)
        loading = _Loading(outcome, now)
        self._directories[directory] = loading
        return loading

    async def _encoded(
        self, tokenizer: Tokenizer, canonical: Canonical, deadline: float
    ) -> bytes | Reason:
        try:
            if len(canonical.raw) <= INLINE_BYTES:
                return tokenizer.tokens(canonical)
            if self._pooled >= POOL_QUEUE:
                return Reason.BUSY
            encoded = asyncio.get_running_loop().run_in_executor(
                self._pool, tokenizer.tokens, canonical
            )
            self._pooled += 1
            encoded.add_done_callback(self._leave_pool)
            async with asyncio.timeout_at(deadline):
                return await encoded
        except NotRendered as error:
            return _NOT_RENDERED[error.reason]
        except TimeoutError:
            return Reason.BUDGET

    def _leave_pool(self, _: object) -> None:
        self._pooled -= 1

    async def _asked(
        self, canonical: Canonical, engines: Sequence[Engine], why: Reason, deadline: float
    ) -> Tokenized:
        if canonical.has_media:
            return Tokenized(TokenState.UNKNOWN, Reason.MEDIA)
        if len(canonical.raw) > MAX_TEXT_CHARS:
            return Tokenized(TokenState.UNKNOWN, Reason.TOO_LARGE)
        answer = await self._engines.ask(canonical, engines, deadline)
        if isinstance(answer, Failure):
            return Tokenized(TokenState.UNKNOWN, _FAILED[answer])
        return _finished(canonical, TokenState.ENGINE, why, answer)

    async def _compare(self, engine: Engine, tokenizer: Tokenizer, api: Api) -> Check:
        check = Check.UNVERIFIED
        for probe in probes(api, engine):
            try:
                ours = tokenizer.tokens(probe)
            except NotRendered:
                continue  # never used locally, so nothing to compare
            deadline = asyncio.get_running_loop().time() + PROBE_S
            theirs = await self._engines.ask(probe, [engine], deadline)
            if isinstance(theirs, Failure):
                continue
            if theirs != ours:
                return Check.DIFFERENT
            check = Check.SAME
        return check


_FINAL = frozenset({Reason.BUDGET, Reason.BUSY, Reason.TOO_LARGE})
"""After these an engine is not asked either: there is no time, or it would be no better off."""

_NOT_RENDERED = {
    rendering.Reason.NO_TEMPLATE: Reason.TEMPLATE,
    rendering.Reason.CLIENT_TEMPLATE: Reason.CLIENT_TEMPLATE,
    rendering.Reason.REFUSED: Reason.TEMPLATE,
    rendering.Reason.TOO_LARGE: Reason.TOO_LARGE,
    rendering.Reason.TOO_SLOW: Reason.BUDGET,
    rendering.Reason.MEDIA_LOST: Reason.MEDIA,
}

_FAILED = {
    Failure.BUDGET: Reason.BUDGET,
    Failure.ENGINE_ERROR: Reason.ENGINE_ERROR,
    Failure.BREAKER_OPEN: Reason.BREAKER_OPEN,
    Failure.REFUSED: Reason.UNSUPPORTED,
    Failure.NO_ENGINE: Reason.NO_ENGINE,
}


def _load(directory: str) -> Tokenizer | Unloadable:
    try:
        tokenizer = Tokenizer.load(directory)
    except Unloadable as error:
        log.warning("tokenizer not loaded", directory=directory, reason=str(error))
        return error
    log.info("tokenizer loaded", directory=directory, encoder=tokenizer.encoder)
    return tokenizer


def _has_failed(loading: _Loading) -> bool:
    return loading.outcome.done() and isinstance(loading.outcome.result(), Unloadable)


def _state(directory: str, loading: _Loading) -> DirectoryState:
    if not loading.outcome.done():
        return DirectoryState(directory, "loading")
    outcome = loading.outcome.result()
    if isinstance(outcome, Unloadable):
        return DirectoryState(directory, "failed", str(outcome))
    content_format = outcome.template.content_format
    return DirectoryState(
        directory,
        "ready",
        encoder=outcome.encoder,
        content_format=content_format.value if content_format else "",
    )


def _without_tokenizer(canonical: Canonical) -> Tokenized | None:
    if canonical.api is not Api.OPENAI_COMPLETIONS:
        return None
    if not canonical.prompts or canonical.body.get("prompt_embeds") is not None:
        return Tokenized(TokenState.UNKNOWN, Reason.UNSUPPORTED)
    prompt = canonical.prompts[0]
    if isinstance(prompt, bytes):
        return _finished(canonical, TokenState.EXACT, Reason.GIVEN, prompt)
    return None


def _finished(canonical: Canonical, state: TokenState, reason: Reason, packed: bytes) -> Tokenized:
    count = len(packed) // 4
    if _is_truncated(canonical.body.get("truncate_prompt_tokens"), count):
        return Tokenized(TokenState.UNKNOWN, Reason.UNSUPPORTED)
    if canonical.has_media:
        return Tokenized(state, Reason.MEDIA, packed)
    return Tokenized(state, reason, packed, count)


def _is_truncated(limit: Any, count: int) -> bool:
    """Whether the engine cuts the prompt; a negative limit means its context's length.

    Engines also take `50.0` and `"50"`; what is no number at all they refuse.
    """
    try:
        return limit is not None and 0 <= float(limit) < count
    except (TypeError, ValueError):
        return False
