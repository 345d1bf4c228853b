"""Asks engines to tokenize, inside the caller's deadline, behind a breaker each.

An engine that has the render endpoint is asked there, with the request itself; the others at
`/tokenize`, which takes most of what shapes a prompt. Knows nothing of local tokenizers. Remembers
which engines failed lately; never queues.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import aiohttp
import msgspec

from coordinator.apis import TEMPLATED
from coordinator.canonical import FORBIDDEN_KEYS, Canonical, Changes, rewrite
from coordinator.engines import Engine
from lineside.clock import Clock
from lineside.decoding import decoded
from lineside.hashing import pack
from lineside.ids import EngineId

OPENS_AFTER = 3
"""Failures in a row."""

OPEN_S = 5.0
"""Then no question for this long; after it one, whose outcome decides."""

ATTEMPTS = 2
"""Engines asked for one request, if the first fails early."""

LEAST_S = 0.01
"""With less time left no engine is asked: it could not answer, and would be blamed for it."""

MAX_ANSWER_BYTES = 32 << 20
"""A longer answer counts as a failure; a million token ids take a quarter of it."""


class Failure(Enum):
    """Why no engine tokenized a request."""

    BUDGET = "budget"
    ENGINE_ERROR = "engine_error"
    BREAKER_OPEN = "breaker_open"
    REFUSED = "refused"
    """The engine finds fault with the request itself, and will again when it is sent."""
    NO_ENGINE = "no_engine"


@dataclass(slots=True)
class Breaker:
    """One engine's record of late. Pure: time is an argument."""

    failures: int = 0
    opened_at: float | None = None
    trying: bool = False

    def allows(self, now: float) -> bool:
        """Whether the engine may be asked."""
        if self.opened_at is None:
            return True
        return not self.trying and now - self.opened_at >= OPEN_S

    def begin(self) -> None:
        """Note a question; while open it is the only one."""
        self.trying = self.opened_at is not None

    def succeed(self) -> None:
        """Note an answer: close."""
        self.failures, self.opened_at = 0, None

    def fail(self, now: float) -> None:
        """Note a failure: open after several, and again after a failed trial."""
        self.failures += 1
        if self.failures >= OPENS_AFTER:
            self.opened_at = now


class _Refused(Exception):
    pass


class _NoRoute(Exception):
    pass


class _BadAnswer(Exception):
    pass


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _Rendered(msgspec.Struct):
    token_ids: list[int]


_ANY_RENDERED: Any = _Rendered | list[_Rendered]


RENDER_CHAT, RENDER_COMPLETION = "/v1/chat/completions/render", "/v1/completions/render"

_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, _BadAnswer)


@dataclass(slots=True)
class EngineTokenize:
    """Written by the requests that ask, on one event loop."""

    clock: Clock
    http: aiohttp.ClientSession
    _breakers: dict[EngineId, Breaker] = field(default_factory=dict)
    _renderers: set[EngineId] = field(default_factory=set)
    """Engines seen to have the render endpoint; most answer 403 there."""
    _turn: int = 0

    async def ask(
        self,
        canonical: Canonical,
        engines: Sequence[Engine],
        deadline: float,
        rendered: bool = False,
    ) -> bytes | Failure:
        """Return a request's packed token ids from one of the engines that serve its model.

        `deadline` is in the event loop's time. `rendered`: by the render endpoint or not at all.
        """
        if rendered:
            engines = [engine for engine in engines if engine.id in self._renderers]
        failure = Failure.NO_ENGINE
        for engine in self._order(engines)[:ATTEMPTS]:
            if deadline - asyncio.get_running_loop().time() < LEAST_S:  # not this engine's fault
                return Failure.BUDGET
            answer = await self._ask_one(canonical, engine, deadline, rendered)
            if answer is not Failure.ENGINE_ERROR:
                return answer
            failure = Failure.ENGINE_ERROR
        if failure is Failure.NO_ENGINE and engines:
            return Failure.BREAKER_OPEN
        return failure

    async def look(self, engine: Engine, probe: Canonical, deadline: float) -> bool:
        """Find out whether an engine has the render endpoint, and remember it."""
        self._renderers.add(engine.id)
        answer = await self.ask(probe, [engine], deadline, rendered=True)
        if isinstance(answer, Failure):
            self._renderers.discard(engine.id)
        return engine.id in self._renderers

    def forget(self, engine: EngineId) -> None:
        """Drop what is known of an engine that left."""
        self._breakers.pop(engine, None)
        self._renderers.discard(engine)

    def open_breakers(self) -> list[EngineId]:
        """Return the engines that are not asked for now."""
        return [engine for engine, b in self._breakers.items() if b.opened_at is not None]

    def _order(self, engines: Iterable[Engine]) -> list[Engine]:
        """Return the engines that may be asked, by turns; those that failed last come last."""
        now = self.clock.monotonic()
        allowed = [engine for engine in engines if self._breaker(engine).allows(now)]
        start = self._turn % len(allowed) if allowed else 0
        self._turn += 1
        turned = allowed[start:] + allowed[:start]
        return sorted(turned, key=lambda engine: self._breaker(engine).failures > 0)

    def _breaker(self, engine: Engine) -> Breaker:
        return self._breakers.setdefault(engine.id, Breaker())

    async def _ask_one(
        self, canonical: Canonical, engine: Engine, deadline: float, rendered: bool
    ) -> bytes | Failure:
        breaker = self._breaker(engine)
        breaker.begin()
        try:
            async with asyncio.timeout_at(deadline):
                packed = await self._answer(canonical, engine, rendered)
        except (_Refused, _NoRoute):
            breaker.succeed()
            return Failure.REFUSED
        except _ERRORS:
            breaker.fail(self.clock.monotonic())
            late = asyncio.get_running_loop().time() >= deadline
            return Failure.BUDGET if late else Failure.ENGINE_ERROR
        finally:
            breaker.trying = False
        breaker.succeed()
        return packed

    async def _answer(self, canonical: Canonical, engine: Engine, rendered: bool) -> bytes:
        if engine.id in self._renderers:
            path = RENDER_CHAT if canonical.is_chat else RENDER_COMPLETION
            try:
                return _rendered(await self._post(engine, path, _to_render(canonical, engine)))
            except _NoRoute:  # another engine answers at this address now
                self._renderers.discard(engine.id)
                if rendered:
                    raise
        try:
            return _tokenized(await self._post(engine, "/tokenize", question(canonical, engine)))
        except _NoRoute as error:
            raise _BadAnswer from error

    async def _post(self, engine: Engine, path: str, body: bytes) -> bytes:
        async with self.http.post(
            f"{engine.base_url}{path}",
            data=body,
            headers={"content-type": "application/json"},
            allow_redirects=False,
        ) as response:
            if response.status in (403, 404, 405, 501):
                raise _NoRoute
            if response.status in (400, 413, 422):
                raise _Refused
            if response.status != 200:
                raise _BadAnswer
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    raise _BadAnswer
        return bytes(answer)


def _tokenized(answer: bytes) -> bytes:
    try:
        return pack(decoded(answer, _Tokenized).tokens)
    except (msgspec.DecodeError, OverflowError) as error:
        raise _BadAnswer from error


def _rendered(answer: bytes) -> bytes:
    try:
        prompts = decoded(answer, _ANY_RENDERED)
        first = prompts if isinstance(prompts, _Rendered) else prompts[0]
        return pack(first.token_ids)
    except (msgspec.DecodeError, OverflowError, IndexError) as error:
        raise _BadAnswer from error


def _model(canonical: Canonical, engine: Engine) -> str:
    names = [served.name for served in engine.models]
    return canonical.model if canonical.model in names or not names else names[0]


def _to_render(canonical: Canonical, engine: Engine) -> bytes:
    model = _model(canonical, engine)
    if canonical.api in TEMPLATED:
        return rewrite(canonical, Changes(model, meter=False))
    if not canonical.is_chat:
        return msgspec.json.encode({"model": model, "prompt": canonical.body["input"]})
    chat = {name: value for name, value in canonical.chat.items() if name not in FORBIDDEN_KEYS}
    return msgspec.json.encode({**chat, "model": model, "stream": False})


def question(canonical: Canonical, engine: Engine) -> bytes:
    """Return the body of `/tokenize` for a request: its chat form, or the first of its prompts."""
    body = canonical.chat
    if not canonical.is_chat:
        fields: dict[str, Any] = {"prompt": canonical.prompts[0]}
    else:
        fields = {"messages": canonical.messages, "chat_template_kwargs": _variables(body)}
        shaping = ("tools", "chat_template", "add_generation_prompt", "continue_final_message")
        fields |= {name: body.get(name) for name in shaping}
    fields["add_special_tokens"] = body.get("add_special_tokens")
    asked = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({"model": _model(canonical, engine), **asked})


def _variables(body: Any) -> dict[str, Any] | None:
    """Return the template's variables; `/tokenize` takes some of a chat's fields only this way."""
    asked = body.get("chat_template_kwargs") or {}
    if not isinstance(asked, dict):
        return None
    effort = body.get("reasoning_effort")
    if effort is not None:
        asked = {"enable_thinking": effort != "none", **asked, "reasoning_effort": effort}
    documents = body.get("documents")
    if documents is not None:
        asked = {**asked, "documents": documents}
    return asked or None
