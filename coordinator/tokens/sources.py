"""A request's tokens: given, from the model's own tokenizer, from an engine, or unknown and why.

One time budget covers all ways. A tokenizer is trusted as long as no engine is known to tokenize
otherwise (`verify`), a doubtful one once an engine has confirmed it. Never holds up a request: out
of budget, or no way, it is routed by load alone.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any

import aiohttp

from coordinator.apis import TEMPLATED, Api
from coordinator.canonical import Canonical
from coordinator.engines import Engine
from coordinator.tokens import rendering
from coordinator.tokens.engine_tokenize import EngineTokenize, Failure
from coordinator.tokens.hub import Hub
from coordinator.tokens.loading import Loader, SourceState
from coordinator.tokens.probes import probes
from coordinator.tokens.rendering import NotRendered
from coordinator.tokens.reuse import Reused
from coordinator.tokens.sandbox import MAX_TEXT_CHARS
from coordinator.tokens.tokenized import Reason, Tokenized, TokenState
from coordinator.tokens.tokenizer import Tokenizer, Unloadable
from lineside import logs
from lineside.clock import Clock
from lineside.ids import EngineId

BUDGET_S = 0.05
"""Default for all that a request's tokens may take."""

INLINE_BYTES, SLOW_INLINE_BYTES = 32_000, 8_000
"""A body up to this is rendered and encoded on the event loop: in 0.2 to 1.5 ms, or in 5 ms if it
was written to be slow. A thread's turn takes longer. The second is for the slower encoder."""

SPACED_BYTES, SPACED_EVERY = 64_000, 500
"""So is one of this size where a space comes so often: it has no long words, which are slow."""

INLINE_MESSAGES = 50
"""Each takes a template up to 20 us."""

POOL_THREADS = 2
POOL_QUEUE = 32
"""Larger ones in the pool or waiting for it; beyond, a request goes by load alone (`busy`)."""

LONG_BYTES = 500_000
"""Above this a text written to be slow takes a thread for seconds, and an encoder cannot be
stopped: only one such body at a time, so that a thread is left for the rest."""

PROBE_S = 5.0
"""For each probe prompt of `verify`."""

VERIFY_AGAIN_S = 60.0
"""Until an engine is asked again that could not be compared with its tokenizer."""

log = logs.get("coordinator.tokens.sources")


class Check(Enum):
    """What probe prompts said of an engine and its tokenizer directory."""

    SAME = "same"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"
    """The engine tokenized no probe."""
    NO_TOKENIZER = "no_tokenizer"


class Tokens:
    """Lives on one event loop. Whoever builds it calls `close`."""

    def __init__(
        self,
        clock: Clock,
        http: aiohttp.ClientSession,
        budget_s: float = BUDGET_S,
        hub: Hub | None = None,
    ) -> None:
        self._clock = clock
        self._budget_s = budget_s
        self._engines = EngineTokenize(clock, http)
        self._loader = Loader(clock, hub or Hub())
        self._checks: dict[EngineId, dict[Api, Check]] = {}
        self._verifying: dict[EngineId, object] = {}
        self._pool = ThreadPoolExecutor(POOL_THREADS, "tokens")
        self._pooled = self._long = 0

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        """Return the tokens of a request's first prompt; `engines` serve its model."""
        known = _without_tokenizer(canonical)
        if known:
            return known
        deadline = asyncio.get_running_loop().time() + self._budget_s
        if _hides_tools(canonical):
            return await self._asked(canonical, engines, Reason.TOOL_CHOICE, deadline)
        tokenizer, reason = self._tokenizer(_way(canonical), engines)
        if tokenizer:
            if _is_quick(tokenizer, canonical):
                local = _encoded_now(tokenizer, canonical, self._budget_s)
            else:
                local = await self._encoded(tokenizer, canonical, deadline)
            if isinstance(local, bytes):
                return _finished(canonical, TokenState.EXACT, reason, local)
            if local in _FINAL:
                return Tokenized(TokenState.UNKNOWN, local)
            reason = local
        return await self._asked(canonical, engines, reason, deadline)

    async def verify(self, engine: Engine) -> Check:
        """Load an engine's tokenizer and compare it with the engine's own on probe prompts."""
        await self._look(engine)
        if engine.tokenizer is None:
            return Check.NO_TOKENIZER
        tokenizer = await self.load(engine.tokenizer)
        if isinstance(tokenizer, Unloadable):
            return Check.NO_TOKENIZER
        before = self._checks.get(engine.id)
        found = {api: await self._compare(engine, tokenizer, api) for api in TEMPLATED}
        self._checks[engine.id] = found
        if found != before:
            log.info(
                "tokenizer compared with the engine",
                engine=engine.id,
                **{api.value: check.value for api, check in found.items()},
            )
        worst = (Check.DIFFERENT, Check.SAME, Check.UNVERIFIED)
        return next(check for check in worst if check in found.values())

    async def keep_verified(self, engine: Engine) -> None:
        """Verify an engine, again and again until it could be compared, or is forgotten.

        To be called when an engine appears, and when it may have been restarted.
        """
        mine = self._verifying[engine.id] = object()
        while self._verifying.get(engine.id) is mine:
            check = await self.verify(engine)
            if engine.tokenizer is None or check in (Check.SAME, Check.DIFFERENT):
                return
            await self._clock.sleep(VERIFY_AGAIN_S)

    async def load(self, source: str) -> Tokenizer | Unloadable:
        """Read a tokenizer now, rather than when the first request needs it."""
        return await self._loader.load(source)

    def forget(self, engine: EngineId) -> None:
        """Drop what is known of an engine that left."""
        self._verifying.pop(engine, None)
        self._checks.pop(engine, None)
        self._engines.forget(engine)

    def sources(self) -> list[SourceState]:
        """Return the state of each tokenizer that was asked for."""
        return self._loader.states()

    def reused(self) -> Reused:
        """Return what was spared of encoding so far."""
        return self._loader.reused()

    def checks(self) -> dict[EngineId, dict[Api, Check]]:
        """Return what `verify` last found, by engine."""
        return dict(self._checks)

    def open_breakers(self) -> list[EngineId]:
        """Return the engines whose `/tokenize` is not asked for now."""
        return self._engines.open_breakers()

    def close(self) -> None:
        """Give up what is still being loaded or encoded."""
        self._loader.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tokenizer(self, api: Api, engines: Sequence[Engine]) -> tuple[Tokenizer | None, Reason]:
        """Choose a local tokenizer; the reason says how good it is, or why there is none."""
        confirmed, sources = False, dict[str, None]()  # in their order
        for engine in engines:
            if (found := self._checks.get(engine.id)) is not None:
                check = found[api]
                if check is Check.DIFFERENT:
                    return None, Reason.DIFFERENT
                confirmed = confirmed or check is Check.SAME
            if engine.tokenizer:
                sources[engine.tokenizer] = None
        reason = Reason.NO_TOKENIZER
        for source in sources:
            tokenizer = self._loader.get(source)
            if tokenizer is None:
                reason = Reason.LOADING
            elif isinstance(tokenizer, Unloadable):
                reason = Reason.UNLOADABLE
            elif tokenizer.doubt and not confirmed:
                reason = Reason.UNCONFIRMED
            else:
                return tokenizer, Reason.LOCAL if confirmed else Reason.UNVERIFIED
        return None, reason

    async def _encoded(
        self, tokenizer: Tokenizer, canonical: Canonical, deadline: float
    ) -> bytes | Reason:
        loop, size = asyncio.get_running_loop(), len(canonical.raw)
        seconds = deadline - loop.time()
        try:
            is_long = size > LONG_BYTES
            if self._pooled >= POOL_QUEUE or (is_long and self._long):
                return Reason.BUSY
            until = time.monotonic() + seconds
            encoded = loop.run_in_executor(self._pool, _in_time, tokenizer, canonical, until)
            self._pooled += 1
            self._long += is_long
            encoded.add_done_callback(partial(self._leave_pool, is_long))
            async with asyncio.timeout_at(deadline):
                return await encoded
        except NotRendered as error:
            return _NOT_RENDERED[error.reason]
        except TimeoutError:
            return Reason.BUDGET

    def _leave_pool(self, is_long: bool, encoded: "asyncio.Future[bytes]") -> None:
        self._pooled -= 1
        self._long -= is_long
        if not encoded.cancelled():
            encoded.exception()  # seen: nobody may wait for it any more

    async def _asked(
        self, canonical: Canonical, engines: Sequence[Engine], why: Reason, deadline: float
    ) -> Tokenized:
        if canonical.has_media:
            return Tokenized(TokenState.UNKNOWN, Reason.MEDIA)
        if len(canonical.raw) > MAX_TEXT_CHARS:
            return Tokenized(TokenState.UNKNOWN, Reason.TOO_LARGE)
        must_render = why is Reason.TOOL_CHOICE
        answer = await self._engines.ask(canonical, engines, deadline, must_render)
        if must_render and answer is Failure.NO_ENGINE:
            return Tokenized(TokenState.UNKNOWN, why)
        if isinstance(answer, Failure):
            return Tokenized(TokenState.UNKNOWN, _FAILED[answer])
        return _finished(canonical, TokenState.ENGINE, why, answer)

    async def _look(self, engine: Engine) -> None:
        probe = next(iter(probes(Api.OPENAI_CHAT, engine)), None)
        if probe:
            deadline = asyncio.get_running_loop().time() + PROBE_S
            await self._engines.look(engine, probe, deadline)

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


def _is_quick(tokenizer: Tokenizer, canonical: Canonical) -> bool:
    if len(canonical.messages) > INLINE_MESSAGES:
        return False
    if tokenizer.encoder != "fastokens":
        return len(canonical.raw) <= SLOW_INLINE_BYTES
    size = len(canonical.raw)
    return size <= INLINE_BYTES or (size <= SPACED_BYTES and _is_spaced(canonical.raw))


def _is_spaced(raw: bytes) -> bool:
    """Whether no word of a body is long. Costs 20 us at most."""
    find, every = raw.find, SPACED_EVERY
    return all(find(b" ", at, at + every) >= 0 for at in range(0, len(raw) - every, every))


def _encoded_now(tokenizer: Tokenizer, canonical: Canonical, seconds: float) -> bytes | Reason:
    try:
        return tokenizer.tokens(canonical, seconds)
    except NotRendered as error:
        return _NOT_RENDERED[error.reason]


def _in_time(tokenizer: Tokenizer, canonical: Canonical, until: float) -> bytes:
    """Tokenize in what time is left after waiting for a thread."""
    return tokenizer.tokens(canonical, until - time.monotonic())


def _way(canonical: Canonical) -> Api:
    """Return which of the two ways leads to a request's tokens."""
    return Api.OPENAI_CHAT if canonical.is_chat else Api.OPENAI_COMPLETIONS


def _hides_tools(canonical: Canonical) -> bool:
    return bool(canonical.tools) and canonical.chat.get("tool_choice") == "none"


def _without_tokenizer(canonical: Canonical) -> Tokenized | None:
    if canonical.previous_response is not None:
        return Tokenized(TokenState.UNKNOWN, Reason.CONTINUATION)
    if canonical.is_chat:
        return None
    if not canonical.prompts or canonical.body.get("prompt_embeds") is not None:
        return Tokenized(TokenState.UNKNOWN, Reason.UNSUPPORTED)
    prompt = canonical.prompts[0]
    if isinstance(prompt, bytes):
        return _finished(canonical, TokenState.EXACT, Reason.GIVEN, prompt)
    return None


def _finished(canonical: Canonical, state: TokenState, reason: Reason, packed: bytes) -> Tokenized:
    count = len(packed) // 4
    if _is_truncated(canonical.chat.get("truncate_prompt_tokens"), count):
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
