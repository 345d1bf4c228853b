"""Asks one vLLM server what it is, for `lineside doctor` and `lineside up`. Judges nothing.

Only reads: models, version, event sources, metrics, who listens at its event sockets, and the
tokens of a short text. What costs the engine a request is in `cli.probe`.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent import scrape
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.engines import Engine
from coordinator.publisher import Listener, listener_at
from coordinator.refusal import KEY_REFUSED
from coordinator.servers import (
    Away,
    Found,
    Source,
    Version,
    engines_of,
    found_in,
    read_models,
)
from lineside.decoding import decoded
from lineside.ids import NodeId
from lineside.signals import Load

ANSWER_S = 5.0
"""For one page; a server that takes longer is too busy to be examined."""

TEXT = "Lineside asks how this text is tokenized."

STRIDE = 4
"""Of the engines described here; nothing that is asked depends on it."""

T = TypeVar("T")


class Buffered(Source, frozen=True):
    """A source with what the doctor alone wants to know of it."""

    buffer_steps: int | None = None


class _Tokens(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rank:
    """One engine behind a server, and what can be seen of it from here."""

    engine: Engine
    source: Buffered | None
    """What the server says of its events; `None`: it says nothing."""
    listener: Listener
    """Who listens at its event endpoint."""
    replay: Listener
    load: Load | None
    """`None`: no metrics were had."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one server says and shows."""

    spec: EngineSpec
    found: Found
    ranks: tuple[Rank, ...]
    numbers: tuple[int, ...] = ()
    """Of the engines that its metrics are about."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of `vllm:cache_config_info`; empty: not said."""
    metrics_failure: str = ""
    tokenizes: bool = False

    @property
    def guessed(self) -> bool:
        """Whether its event ports are vLLM's usual ones, for want of any word."""
        return self.spec.kv is None and self.found.sources is None


def session(spec: EngineSpec) -> tuple[aiohttp.ClientSession, Credentials]:
    """Return a session that carries the server's key, where it has one."""
    credentials = Credentials.of([spec])
    timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=2.0)
    made = aiohttp.ClientSession(timeout=timeout, middlewares=credentials.middlewares())
    return made, credentials


async def look(
    http: aiohttp.ClientSession, credentials: Credentials, spec: EngineSpec
) -> Seen | Away:
    """Ask a server all there is to read; `Away` where it does not answer as vLLM does."""
    if no_key := credentials.read(spec.url):
        return Away(f"{no_key}: {spec.api_key_file}")
    try:
        found = await _found(http, spec)
        if isinstance(found, Away):
            return found
        page = await scrape.fetch(http, spec.url, ANSWER_S)
        tokens = await _tokens(http, spec.url, found.models[0].name, TEXT)
    except TimeoutError:
        return Away(f"it took the connection and did not answer within {ANSWER_S:.0f} s")
    except aiohttp.ClientConnectorError as error:
        return Away(f"cannot connect: {_words(error.errno)}")
    except aiohttp.ClientError:
        return Away("the connection broke")
    body = page if isinstance(page, bytes) else b""
    engines = engines_of(spec, found, NodeId("local"), STRIDE)
    loads = scrape.parse(body, [engine.rank or 0 for engine in engines], found.version)
    ranks = [
        await _rank(engine, found, loads[engine.rank or 0] if body else None) for engine in engines
    ]
    return Seen(
        spec,
        found,
        tuple(ranks),
        numbers=tuple(scrape.engines_in(body)),
        cache_config=scrape.cache_config(body),
        metrics_failure="" if isinstance(page, bytes) else page.detail,
        tokenizes=bool(tokens),
    )


async def _found(http: aiohttp.ClientSession, spec: EngineSpec) -> Found | Away:
    async with http.get(f"{spec.url}/v1/models") as answer:
        if answer.status in KEY_REFUSED:
            return Away("it wants a key that it was not given: --engine URL,api_key_file=FILE")
        if answer.status != 200:
            return Away(f"GET /v1/models answers {answer.status}: is this a vLLM server?")
        try:
            cards = read_models(await answer.read())
        except msgspec.MsgspecError:
            return Away("GET /v1/models answers something else than a list of models")
    version = await _get(http, f"{spec.url}/version", Version)
    sources = await _get(http, f"{spec.url}/kv_event_sources", dict[int, Buffered])
    said: dict[int, Source] | None = None if sources is None else {**sources}
    return found_in(cards, version.version if version else "", said)


async def _get(http: aiohttp.ClientSession, url: str, kind: type[T]) -> T | None:
    async with http.get(url) as answer:
        if answer.status != 200:
            return None
        try:
            return decoded(await answer.read(), kind, strict=False)
        except msgspec.MsgspecError:
            return None


async def _tokens(http: aiohttp.ClientSession, url: str, model: str, text: str) -> tuple[int, ...]:
    """Return a text's tokens, by the server itself; empty: it does not say."""
    body: dict[str, Any] = {"model": model, "prompt": text}
    async with http.post(f"{url}/tokenize", json=body) as answer:
        if answer.status != 200:
            return ()
        try:
            return decoded(await answer.read(), _Tokens).tokens
        except msgspec.MsgspecError:
            return ()


async def _rank(engine: Engine, found: Found, load: Load | None) -> Rank:
    source = (found.sources or {}).get(engine.rank or 0)
    listener, replay = await asyncio.gather(listener_at(engine.events), listener_at(engine.replay))
    binds = listener in (Listener.NOBODY, Listener.SUBSCRIBER)  # as discovery has it
    said = source if isinstance(source, Buffered) else None
    return Rank(replace(engine, events_bind=binds), said, listener, replay, load)


def host_of(spec: EngineSpec) -> str:
    """Return the server's host."""
    return urlsplit(spec.url).hostname or ""


def _words(number: int | None) -> str:
    return os.strerror(number).lower() if number and number > 0 else "its name is not known"
