"""What a vLLM server says of itself, and the engines that it makes of that.

No sockets here: `discovery` asks. What is read from disk is whether a model's folder, if it is a
local one, has a tokenizer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from coordinator.config import EngineSpec
from coordinator.engines import Engine, ServedModel
from coordinator.tokens import hub
from lineside.decoding import decoded
from lineside.ids import EngineId, GroupId, ModelName, NodeId

DEFAULT_KV_PORT = 5557
DEFAULT_REPLAY_PORT = 5558


MOST_MODELS = 4096
"""That a server serves, adapters among them. One that names more is not used."""

MOST_RANKS = 4096
"""Behind one server, from 0; as many as `rank` takes."""

ModelId: TypeAlias = Annotated[str, Meta(max_length=1024)]
Endpoint: TypeAlias = Annotated[str, Meta(max_length=1024)]
"""Agents are told of it, in one message with all others of their node."""


class Source(msgspec.Struct, frozen=True):
    """What a server says about the KV events of one rank (`/kv_event_sources`)."""

    enable_kv_cache_events: bool = True
    publisher: Annotated[str, Meta(max_length=100)] | None = None
    endpoint: Endpoint | None = None
    replay_endpoint: Endpoint | None = None

    @property
    def publishes(self) -> bool:
        """Whether there are events to read."""
        return bool(self.enable_kv_cache_events and self.publisher != "null" and self.endpoint)


class Card(msgspec.Struct, frozen=True):
    """One entry of `/v1/models`."""

    id: ModelId
    root: Annotated[str, Meta(max_length=4096)] | None = None
    parent: ModelId | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[Card, ...] = ()


class Version(msgspec.Struct, frozen=True):
    """What `/version` says."""

    version: Annotated[str, Meta(max_length=200)] = ""


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


def read_models(body: bytes) -> Sequence[Card]:
    """Read an answer of `/v1/models`. Raises `msgspec.MsgspecError`."""
    return decoded(body, _Models).data


def found_in(
    cards: Sequence[Card], version: str, sources: dict[int, Source] | None
) -> Found | Away:
    """Read a list of models. An adapter names its base model as `parent`."""
    if len(cards) > MOST_MODELS:
        return Away(f"it serves {len(cards)} models, and {MOST_MODELS} are taken")
    if any(not 0 <= rank < MOST_RANKS for rank in sources or ()):
        return Away(f"it names a data-parallel rank that is not below {MOST_RANKS}")
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
    base = unseen(spec, node)
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
        tokenizer=spec.tokenizer or _own_tokenizer(found.root),
    )


def unseen(spec: EngineSpec, node: NodeId) -> Engine:
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
        gpus=spec.gpus,
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


def without_shared_guesses(
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


def _own_tokenizer(root: str) -> str | None:
    is_here = root.startswith("/") and Path(root, "tokenizer.json").is_file()
    return root if is_here or hub.is_name(root) else None
