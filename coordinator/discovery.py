"""Servers from the configuration to engines: asks each one, again and again, what it is.

`servers` reads the answers. The only writer of the cluster's engines and of who is away. A server
that cannot be reached keeps its engines, marked with the reason, so that it can come back; one that
is merely slow stays in.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import aiohttp
import msgspec

from coordinator.cluster import Cluster
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
    unseen,
    without_shared_guesses,
)
from lineside import logs
from lineside.ids import EngineId, NodeId

log = logs.get("coordinator.discovery")

PROBE_TIMEOUT_S = 5.0
"""A server that takes longer is busy, which is not away."""

NOT_ASKED = "not asked yet"
"""Why a server is away that this process has not looked at so far."""

BUSY = None
"""A server that took the connection and did not answer in time: nothing new is known."""

T = TypeVar("T")


class Discovery:
    """Watches every server of the configuration."""

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        cluster: Cluster,
        session: aiohttp.ClientSession,
        credentials: Credentials,
        *,
        node: NodeId,
        stride: int,
        probe_s: float,
        changed: Callable[[Sequence[Engine]], None],
        appeared: Callable[[Engine], Awaitable[object]],
        looked: Callable[[EngineId], None],
    ) -> None:
        """`changed` hears of every new set of engines; `appeared` of each engine at first sight,
        and when it is back; `looked` of each that has answered a look.
        """
        self._cluster = cluster
        self._session = session
        self._credentials = credentials
        self._node = node
        self._stride = stride
        self._probe_s = probe_s
        self._changed = changed
        self._appeared = appeared
        self._looked = looked
        self._engines: dict[EngineSpec, tuple[Engine, ...]] = {
            spec: (unseen(spec, node),) for spec in specs
        }
        self._away: dict[EngineSpec, str] = dict.fromkeys(specs, NOT_ASKED)
        self._wake = {spec: asyncio.Event() for spec in specs}
        self._listeners: dict[str, Listener] = {}
        self._guessed: set[EngineSpec] = set()
        """Servers whose event ports are vLLM's usual ones, for want of any word about them."""
        self._published: tuple[Engine, ...] = ()

    def begin(self) -> None:
        """Tell the cluster which servers there are, before a door opens; none is reached yet."""
        self._publish()

    async def run(self) -> None:
        """Watch until cancelled."""
        self.begin()
        async with asyncio.TaskGroup() as tasks:
            for spec in self._engines:
                tasks.create_task(self._watch(spec, tasks), name=f"discovery of {spec.url}")

    def suspect(self, engine: EngineId) -> None:
        """Take an engine out that a request could not connect to, and ask it at once."""
        for spec, engines in self._engines.items():
            if any(known.id == engine for known in engines):
                self._set_away(spec, "a request could not connect")
                self._wake[spec].set()

    async def _watch(self, spec: EngineSpec, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake[spec].clear()
            seen = await self._look(spec)
            if isinstance(seen, Away):
                self._set_away(spec, seen.reason)
            elif seen is not BUSY:
                for engine in await self._accept(spec, seen):
                    log.info("engine found", engine=engine.id, version=engine.version)
                    tasks.create_task(_awaited(self._appeared(engine)))
                for engine in self._engines[spec]:
                    self._looked(engine.id)
            await self._sleep(spec)

    async def _accept(self, spec: EngineSpec, seen: Found) -> list[Engine]:
        """Take over what a server said; return the engines that are new, or back."""
        was_away = bool(self._away[spec])
        before = {engine.id for engine in self._engines[spec] if engine.models and not was_away}
        if spec.kv is None and seen.sources is None:
            self._guessed.add(spec)
        else:
            self._guessed.discard(spec)
        self._engines[spec] = await self._engines_of(spec, seen)
        self._publish()
        self._set_away(spec, "")
        return [engine for engine in self._engines[spec] if engine.id not in before]

    async def _sleep(self, spec: EngineSpec) -> None:
        """Wait until the next look is due, or the server is suspected."""
        try:
            async with asyncio.timeout(self._probe_s):
                await self._wake[spec].wait()
        except TimeoutError:
            pass

    def _set_away(self, spec: EngineSpec, reason: str) -> None:
        if reason != self._away[spec]:
            if reason:
                log.warning("engine away", url=spec.url, reason=reason)
            else:
                log.info("engine reached", url=spec.url)
        self._away[spec] = reason
        for engine in self._engines[spec]:
            self._cluster.observe_away(engine.id, reason)

    def _publish(self) -> None:
        engines = without_shared_guesses(self._engines, self._guessed)
        if engines == self._published:
            return
        self._published = engines
        self._cluster.assign(engines)
        self._changed([engine for engine in engines if engine.models])
        for spec, of_spec in self._engines.items():
            for engine in of_spec:
                self._cluster.observe_away(engine.id, self._away[spec])

    async def _engines_of(self, spec: EngineSpec, found: Found) -> tuple[Engine, ...]:
        engines = engines_of(spec, found, self._node, self._stride)
        return tuple(
            [await self._with_direction(engine, spec in self._guessed) for engine in engines]
        )

    async def _with_direction(self, engine: Engine, guessed: bool) -> Engine:
        """Find out whether the engine's publisher binds its endpoint or connects to it."""
        if not engine.events:
            return engine
        listener = self._listeners.get(engine.events, Listener.UNKNOWN)
        if listener in (Listener.UNKNOWN, Listener.NOBODY):
            listener = self._listeners[engine.events] = await listener_at(engine.events)
        if listener is Listener.NOBODY and guessed:
            return replace(engine, events="", replay="")
        binds = listener in (Listener.NOBODY, Listener.SUBSCRIBER)
        return replace(engine, events_bind=binds, events_guessed=guessed)

    async def _look(self, spec: EngineSpec) -> Found | Away | None:
        base = spec.url.rstrip("/")
        if no_key := self._credentials.read(spec.url):
            return Away(no_key)
        try:
            async with self._session.get(f"{base}/v1/models", timeout=_TIMEOUT) as answer:
                if answer.status in KEY_REFUSED:
                    return Away(_KEY_REFUSED if spec.api_key_file else _KEY_WANTED)
                if answer.status != 200:
                    return Away(f"GET /v1/models answers {answer.status}")
                cards = read_models(await answer.read())
            version = await self._get(f"{base}/version", Version)
            sources = await self._get(f"{base}/kv_event_sources", dict[int, Source])
        except aiohttp.ConnectionTimeoutError:
            return Away("no connection in time")
        except TimeoutError:
            return BUSY
        except aiohttp.ClientConnectorError as error:
            return Away(f"cannot connect: {_words(error.errno)}")
        except aiohttp.ClientError:
            return Away("the connection broke")
        except msgspec.MsgspecError:
            return Away("GET /v1/models answers something else than a list of models")
        return found_in(cards, version.version if version else "", sources)

    async def _get(self, url: str, kind: type[T]) -> T | None:
        async with self._session.get(url, timeout=_TIMEOUT) as answer:
            if answer.status != 200:
                return None
            try:
                return msgspec.json.decode(await answer.read(), type=kind, strict=False)
            except msgspec.MsgspecError:
                return None


_KEY_WANTED = "it wants a key: name its `api_key_file`"
_KEY_REFUSED = "it does not accept the key in `api_key_file`"
_TIMEOUT = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S, sock_connect=2.0)


def _words(number: int | None) -> str:
    return os.strerror(number) if number and number > 0 else "its name is not known"


async def _awaited(waiting: Awaitable[object]) -> None:
    await waiting
