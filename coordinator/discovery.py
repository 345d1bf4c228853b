"""Servers from the configuration to engines: asks each one, again and again, what it is.

The only writer of the cluster's engines and of who is away. A server that cannot be reached keeps
its engines, marked with the reason, so that it can come back; one that is merely slow stays in.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from coordinator.cluster import Cluster
from coordinator.config import EngineSpec
from coordinator.credentials import Credentials
from coordinator.engines import Engine, ServedModel
from coordinator.publisher import Listener, listener_at
from coordinator.refusal import KEY_REFUSED
from lineside import logs
from lineside.ids import EngineId, GroupId, ModelName, NodeId

log = logs.get("coordinator.discovery")

PROBE_TIMEOUT_S = 5.0
"""A server that takes longer is busy, which is not away."""

NOT_ASKED = "not asked yet"
"""Why a server is away that this process has not looked at so far."""

DEFAULT_KV_PORT = 5557
DEFAULT_REPLAY_PORT = 5558

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True):
    """What a server says about the KV events of one rank (`/kv_event_sources`)."""

    enable_kv_cache_events: bool = True
    publisher: str | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None

    @property
    def publishes(self) -> bool:
        """Whether there are events to read."""
        return bool(self.enable_kv_cache_events and self.publisher != "null" and self.endpoint)


class Card(msgspec.Struct, frozen=True):
    """One entry of `/v1/models`."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[Card, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What one server says. `sources` `None`: it has no such page."""

    models: tuple[ServedModel, ...]
    root: str
    version: str = ""
    sources: dict[int, Source] | None = None


@dataclass(frozen=True, slots=True)
class Away:
    """A server that cannot be reached, and why."""

    reason: str


BUSY = None
"""A server that took the connection and did not answer in time: nothing new is known."""


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
            spec: (_unseen(spec, node),) for spec in specs
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
        engines = _without_shared_guesses(self._engines, self._guessed)
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
            version = await self._get(f"{base}/version", _Version)
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


def read_models(body: bytes) -> Sequence[Card]:
    """Read an answer of `/v1/models`. Raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(body, type=_Models).data


def found_in(
    cards: Sequence[Card], version: str, sources: dict[int, Source] | None
) -> Found | Away:
    """Read a list of models. An adapter names its base model as `parent`."""
    bases = [card for card in cards if card.parent is None]
    if not bases:
        return Away("it serves no model")
    return Found(
        models=tuple(
            ServedModel(
                name=ModelName(card.id),
                lora=None if card.parent is None else card.id,
                max_model_len=card.max_model_len or bases[0].max_model_len,
            )
            for card in cards
        ),
        root=bases[0].root or bases[0].id,
        version=version,
        sources=sources,
    )


def engines_of(spec: EngineSpec, found: Found, node: NodeId, stride: int) -> tuple[Engine, ...]:
    """Return the engines behind one server: one for each data-parallel rank."""
    named = sorted(found.sources) if found.sources else [0]
    ranks = named if spec.rank is None else [spec.rank]
    has_ranks = len(named) > 1 or spec.rank is not None
    return tuple(_engine(spec, found, node, stride, rank, has_ranks) for rank in ranks)


def _engine(
    spec: EngineSpec, found: Found, node: NodeId, stride: int, rank: int, has_ranks: bool
) -> Engine:
    base = _unseen(spec, node)
    events, replay = _addresses(spec, found, rank)
    return replace(
        base,
        id=EngineId(f"{base.endpoint}/{rank}") if has_ranks else base.id,
        group=GroupId(found.root),
        models=found.models,
        rank=rank if has_ranks else None,
        version=found.version,
        events=events,
        replay=replay,
        topic=spec.topic or "",
        stride=stride,
        tokenizer=spec.tokenizer or _local_tokenizer(found.root),
    )


def _unseen(spec: EngineSpec, node: NodeId) -> Engine:
    """Return what stands for a server that has not answered yet: it serves nothing."""
    parts = urlsplit(spec.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    endpoint = f"{_bracketed(parts.hostname or '')}:{port}"
    return Engine(
        id=EngineId(endpoint if spec.rank is None else f"{endpoint}/{spec.rank}"),
        base_url=f"{parts.scheme}://{endpoint}",
        endpoint=endpoint,
        group=GroupId(""),
        models=(),
        node=NodeId(spec.node) if spec.node else node,
        rank=spec.rank,
    )


def _addresses(spec: EngineSpec, found: Found, rank: int) -> tuple[str, str]:
    """Return the event and replay endpoints of a rank; empty: there is none."""
    host = urlsplit(spec.url).hostname or ""
    if spec.kv is not None:
        # vLLM counts a rank's ports up from those of rank 0; a spec for one rank means that one.
        offset = rank if spec.rank is None else 0
        events = located(spec.kv, host, offset)
        if spec.replay is not None:
            return events, located(spec.replay, host, offset)
        source = (found.sources or {}).get(rank)
        if source is not None and source.replay_endpoint:
            return events, located(source.replay_endpoint, host)
        return events, _next_port(events) if found.sources is None else ""
    if found.sources is None:
        replay = spec.replay or f"tcp://*:{DEFAULT_REPLAY_PORT}"
        return located(f"tcp://*:{DEFAULT_KV_PORT}", host, rank), located(replay, host, rank)
    source = found.sources.get(rank)
    if source is None or not source.publishes:
        return "", ""
    replay = spec.replay or source.replay_endpoint or ""
    return located(source.endpoint or "", host), located(replay, host)


def _next_port(endpoint: str) -> str:
    """Return where vLLM's own examples put the replay socket of an event endpoint."""
    scheme, _, address = endpoint.partition("://")
    at, _, port = address.rpartition(":")
    return f"tcp://{at}:{int(port) + 1}" if scheme == "tcp" and port.isdigit() else ""


def located(endpoint: str, host: str, offset: int = 0) -> str:
    """Put the server's host where a ZMQ endpoint names every interface, or none."""
    scheme, _, address = endpoint.rpartition("://")
    if not address or (scheme or "tcp") != "tcp":
        return endpoint
    at, _, port = address.rpartition(":")
    if not port.isdigit():
        return endpoint
    name = at if at not in ("", "*", "0.0.0.0", "[::]", "::") else _bracketed(host)
    return f"tcp://{name}:{int(port) + offset}"


def _without_shared_guesses(
    found: Mapping[EngineSpec, Sequence[Engine]], guessed: Set[EngineSpec]
) -> tuple[Engine, ...]:
    """Take a guessed event port from servers that share it: it can belong to only one of them."""
    owners = Counter(engine.events for engines in found.values() for engine in engines)
    return tuple(
        replace(engine, events="", replay="", events_guessed=False)
        if spec in guessed and owners[engine.events] > 1
        else engine
        for spec, engines in found.items()
        for engine in engines
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _local_tokenizer(root: str) -> str | None:
    return root if root.startswith("/") and Path(root, "tokenizer.json").is_file() else None
