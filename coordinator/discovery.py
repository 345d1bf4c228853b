"""Servers of the configuration and of pods to engines: asks each, again and again, what it is.

`servers` reads the answers. The only writer of the cluster's engines and of who is away. A server
that cannot be reached keeps its engines, marked with the reason, so that it can come back; one that
is merely slow stays in.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

import aiohttp
import msgspec

from coordinator.cluster import Cluster
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.engines import Engine, Hosting
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
from lineside.decoding import decoded
from lineside.ids import EngineId, NodeId, PodIdent

log = logs.get("coordinator.discovery")

PROBE_TIMEOUT_S = 5.0
"""A server that takes longer is busy, which is not away."""

ANSWER_BYTES = 4 * 2**20
"""Of one page: thousands of adapters. A longer one is not read."""

NOT_ASKED = "not asked yet"
"""Why a server is away that this process has not looked at so far."""

BUSY = None
"""A server that took the connection and did not answer in time: nothing new is known."""

T = TypeVar("T")


class Discovery:
    """Watches every server of the configuration, and those that `follow` names."""

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
        self._cluster, self._session, self._credentials = cluster, session, credentials
        self._node, self._stride, self._probe_s = node, stride, probe_s
        self._changed = changed
        self._appeared = appeared
        self._looked = looked
        self._engines: dict[EngineSpec, tuple[Engine, ...]] = {
            spec: (unseen(spec, node),) for spec in specs
        }
        self._away: dict[EngineSpec, str] = dict.fromkeys(specs, NOT_ASKED)
        """What looks and requests say."""
        self._met: dict[EngineSpec, set[EngineId]] = {}
        """Engines that `appeared` has heard of since they were away last."""
        self._pods: dict[EngineSpec, Hosting] = {}
        """Of the servers that came by `follow`."""
        self._named = {spec.url.rstrip("/") for spec in specs}
        self._tasks: asyncio.TaskGroup | None = None
        self._watching: dict[EngineSpec, asyncio.Task[None]] = {}
        self._wake = {spec: asyncio.Event() for spec in specs}
        self._listeners: dict[EngineSpec, dict[str, Listener]] = {}
        """Who listens at the event endpoints of a server's engines, where that is known."""
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
            self._tasks = tasks
            self._watch_all(tasks)
            await asyncio.Event().wait()  # servers may come at any time

    def follow(self, pods: Mapping[EngineSpec, Hosting]) -> None:
        """Watch these servers and no others, beside those of the configuration.

        What is known of a server is forgotten when it has another pod: an address can come back.
        """
        gone = [spec for spec, pod in self._pods.items() if _pod(pods.get(spec)) != pod.pod]
        for spec in gone:
            self._forget(spec)
        if gone:
            self._publish()
        for spec, pod in pods.items():
            if spec.url not in self._named:
                self._put(spec, pod)
        self._publish()
        if self._tasks is not None:
            self._watch_all(self._tasks)

    def _put(self, spec: EngineSpec, pod: Hosting) -> None:
        if self._pods.get(spec) == pod:
            return
        if spec not in self._engines:
            self._away[spec], self._wake[spec] = NOT_ASKED, asyncio.Event()
            self._credentials.add(spec)
            self._engines[spec] = (unseen(spec, self._node),)
        was = self._reason(spec)
        self._pods[spec] = pod
        self._engines[spec] = tuple(_in_pod(each, pod) for each in self._engines[spec])
        self._note(spec, was)
        if was and not self._reason(spec):
            self._wake[spec].set()

    def _watch_all(self, tasks: asyncio.TaskGroup) -> None:
        for spec in self._engines.keys() - self._watching.keys():
            watch = self._watch(spec, tasks)
            self._watching[spec] = tasks.create_task(watch, name=f"discovery of {spec.url}")

    def _forget(self, spec: EngineSpec) -> None:
        for known in (
            self._engines,
            self._away,
            self._met,
            self._pods,
            self._wake,
            self._listeners,
        ):
            known.pop(spec, None)
        self._guessed.discard(spec)
        self._credentials.drop(spec)
        if (watch := self._watching.pop(spec, None)) is not None:
            watch.cancel()
        log.info("engine left", url=spec.url)

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
        if spec.kv is None and seen.sources is None:
            self._guessed.add(spec)
        else:
            self._guessed.discard(spec)
        self._engines[spec] = await self._engines_of(spec, seen)
        self._publish()
        self._set_away(spec, "")
        if self._reason(spec):
            return []
        met = self._met.get(spec, set())
        self._met[spec] = {engine.id for engine in self._engines[spec]}
        return [engine for engine in self._engines[spec] if engine.id not in met]

    async def _sleep(self, spec: EngineSpec) -> None:
        """Wait until the next look is due, or the server is suspected."""
        try:
            async with asyncio.timeout(self._probe_s):
                await self._wake[spec].wait()
        except TimeoutError:
            pass

    def _set_away(self, spec: EngineSpec, reason: str) -> None:
        was = self._reason(spec)
        self._away[spec] = reason
        self._note(spec, was)

    def _reason(self, spec: EngineSpec) -> str:
        """Return why a server is not to be used; empty: it is, and so is one that is not known."""
        pod = self._pods.get(spec)
        return (pod.unfit if pod is not None else "") or self._away.get(spec, "")

    def _note(self, spec: EngineSpec, was: str) -> None:
        """Tell of a server's state, which was another one before or the same."""
        reason = self._reason(spec)
        if reason != was:
            if reason:
                log.warning("engine away", url=spec.url, reason=reason)
            else:
                log.info("engine reached", url=spec.url)
        if reason:
            self._met.pop(spec, None)
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
                self._cluster.observe_away(engine.id, self._reason(spec))

    async def _engines_of(self, spec: EngineSpec, found: Found) -> tuple[Engine, ...]:
        guessed = spec in self._guessed
        engines = [
            await self._with_direction(spec, engine, guessed)
            for engine in engines_of(spec, found, self._node, self._stride)
        ]
        pod = self._pods.get(spec)
        return tuple(engines if pod is None else [_in_pod(each, pod) for each in engines])

    async def _with_direction(self, spec: EngineSpec, engine: Engine, guessed: bool) -> Engine:
        """Find out whether the engine's publisher binds its endpoint or connects to it."""
        if not engine.events:
            return engine
        listeners = self._listeners.setdefault(spec, {})
        listener = listeners.get(engine.events, Listener.UNKNOWN)
        if listener in (Listener.UNKNOWN, Listener.NOBODY):
            listener = listeners[engine.events] = await listener_at(engine.events)
        if listener is Listener.NOBODY and guessed:
            return replace(engine, events="", replay="")
        binds = listener in (Listener.NOBODY, Listener.SUBSCRIBER)
        return replace(engine, events_bind=binds, events_guessed=guessed)

    async def _look(self, spec: EngineSpec) -> Found | Away | None:
        base = spec.url.rstrip("/")
        if no_key := await self._credentials.look(spec.url):
            return Away(no_key)
        try:
            async with self._asked(f"{base}/v1/models") as answer:
                if answer.status in KEY_REFUSED:
                    return Away(_KEY_REFUSED if spec.api_key_file else _KEY_WANTED)
                if answer.status != 200:
                    return Away(f"GET /v1/models answers {answer.status}")
                cards = read_models(await _read(answer))
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
        except _TooLong:
            return Away(f"it answers more than {ANSWER_BYTES >> 20} MiB")
        except msgspec.MsgspecError:
            return Away("GET /v1/models answers something else than a list of models")
        return found_in(cards, version.version if version else "", sources)

    def _asked(self, url: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.get(url, headers=_PLAIN, timeout=_TIMEOUT, allow_redirects=False)

    async def _get(self, url: str, kind: type[T]) -> T | None:
        async with self._asked(url) as answer:
            if answer.status != 200:
                return None
            try:
                return decoded(await _read(answer), kind, strict=False)
            except msgspec.MsgspecError:
                return None


_KEY_WANTED = "it wants a key: name its `api_key_file`"
_KEY_REFUSED = "it does not accept the key in `api_key_file`"
_PLAIN = {"accept-encoding": "identity"}
_TIMEOUT = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S, sock_connect=2.0)


class _TooLong(Exception):
    """An answer is beyond the bound."""


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return a whole answer. Raises `_TooLong`."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > ANSWER_BYTES:
            raise _TooLong
    return bytes(body)


def _pod(hosting: Hosting | None) -> PodIdent | None:
    return None if hosting is None else hosting.pod


def _in_pod(engine: Engine, at: Hosting) -> Engine:
    return replace(engine, labels=at.labels, namespace=at.pod.namespace, pod=at.pod)


def _words(number: int | None) -> str:
    return os.strerror(number) if number and number > 0 else "its name is not known"


async def _awaited(waiting: Awaitable[object]) -> None:
    await waiting
