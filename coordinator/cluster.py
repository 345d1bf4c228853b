"""What the coordinator knows of its engines, each signal with its age.

Written by discovery (`assign`) and by ingest (`observe_*`, `link_*`); readers take a `Snapshot`.
Pure: time is an argument, in the coordinator's monotonic seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from coordinator.engines import NOTHING, Engine, EngineView, ServedModel, Word
from lineside.ids import EngineId, GroupId, NodeId, PodIdent
from lineside.signals import Load, NodeGpus, Status

VIEW_FOR_S = 0.02
"""A view serves the requests of this long, unless something but a load is heard: loads and ages may
lag by as much. Hundreds of engines that report in turn would else have all views made anew."""

GPU_FOR_S = 5.0
"""How long a GPU's utilization says something: agents read it every second."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment. Immutable."""

    engines: tuple[EngineView, ...]
    revision: int

    def serving(self, model: str) -> list[EngineView]:
        """Return the engines that serve a model name."""
        return [view for view in self.engines if view.engine.serves(model)]

    def models(self) -> list[ServedModel]:
        """Return each served name once, sorted."""
        by_name = {served.name: served for view in self.engines for served in view.engine.models}
        return [by_name[name] for name in sorted(by_name)]


@dataclass(slots=True)
class _Record:
    engine: Engine
    """As discovery found it, but for the stride, which may be coarser."""
    linked: bool = False
    heard_at: float | None = None
    status: Status | None = None
    load: Load | None = None
    load_at: float = 0.0
    generation: str = ""
    digest_live: bool = False
    diverged: bool = False
    hit_points: bool = False
    removed: int = 0
    gpu_utilization: float | None = None
    gpu_at: float = 0.0
    away: str = ""
    failing: str = ""
    word: Word = NOTHING
    view: EngineView | None = None
    viewed_at: float = 0.0


_Tenant: TypeAlias = tuple[EngineId, PodIdent | None]
"""An engine in its pod: at the same address there may be another pod's later."""


@dataclass(slots=True)
class Cluster:
    """Discovery and ingest write here; nobody else."""

    revision: int = 0
    _records: dict[EngineId, _Record] = field(default_factory=dict)
    _gpus: dict[NodeId, tuple[NodeGpus, float]] = field(default_factory=dict)
    _cards: dict[NodeId, Mapping[str, str]] = field(default_factory=dict)
    """The model of each GPU of a node by UUID, as last heard."""
    _given: dict[NodeId, Mapping[_Tenant, Sequence[str]]] = field(default_factory=dict)
    """The UUIDs of the GPUs that serve a node's engines, by its kubelet's word, as last heard."""
    _serving: dict[str, list[_Record]] = field(default_factory=dict)
    _groups: dict[str, set[tuple[GroupId, str | None]]] = field(default_factory=dict)
    _views: dict[str | None, tuple[tuple[EngineView, ...], float]] = field(default_factory=dict)
    """By model: the last answer, and when the oldest view in it was made."""
    _reachable: dict[str, list[Engine]] = field(default_factory=dict)
    _found: tuple[Engine, ...] = ()
    _factors: dict[GroupId, int] = field(default_factory=dict)
    _watchers: list[Callable[[], None]] = field(default_factory=list)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call back at every new revision, in the middle of the change: to take note, no more."""
        self._watchers.append(watcher)

    def assign(self, engines: Iterable[Engine]) -> None:
        """Replace the engines; what is known of those that stay is kept."""
        before = self._records
        self._records = {}
        self._found = tuple(engines)
        for engine in map(self._with_gpus, map(self._coarser, self._found)):
            record = before.get(engine.id) or _Record(engine)
            record.engine, record.view = engine, None
            self._records[engine.id] = record
        self._serving, self._groups, self._views, self._reachable = {}, {}, {}, {}
        for record in self._records.values():
            for served in record.engine.models:
                self._serving.setdefault(served.name, []).append(record)
                group = record.engine.group, served.lora
                self._groups.setdefault(served.name, set()).add(group)
        self.revision += 1
        for watcher in self._watchers:
            watcher()

    def coarsen(self, group: GroupId, factor: int) -> None:
        """Ask a group's agents for one in so many of the keys that discovery asked for."""
        self._factors[group] = factor
        if factor == 1:
            del self._factors[group]
        self.assign(self._found)

    def _coarser(self, engine: Engine) -> Engine:
        factor = self._factors.get(engine.group, 1)
        return engine if factor == 1 else replace(engine, stride=factor * engine.stride)

    def _with_gpus(self, engine: Engine) -> Engine:
        given = self._given.get(engine.node, {}).get((engine.id, engine.pod), ())
        gpus = engine.gpus or tuple(given)  # who names them in the configuration knows best
        card = _card(self._cards.get(engine.node, {}), gpus)
        return replace(engine, card=card, gpus=gpus) if card or given else engine

    def strides(self) -> dict[GroupId, int]:
        """Return the coarsest stride that each group's agents are asked for."""
        strides: dict[GroupId, int] = {}
        for record in self._records.values():
            engine = record.engine
            strides[engine.group] = max(engine.stride, strides.get(engine.group, 1))
        return strides

    def assigned(self) -> list[Engine]:
        """Return all engines, as their agents are to read them."""
        return [record.engine for record in self._records.values()]

    def observe_away(self, engine: EngineId, reason: str) -> None:
        """Note why an engine's server cannot be reached; empty: it answers again."""
        if record := self._records.get(engine):
            record.away = reason
            self._reachable.clear()
            self._changed(record)

    def observe_failing(self, engine: EngineId, reason: str) -> None:
        """Note why an engine should not be used; empty: it should."""
        if record := self._records.get(engine):
            record.failing = reason
            self._changed(record)

    def observe_word(self, engine: EngineId, word: Word) -> None:
        """Note what the audit says of an engine."""
        if record := self._records.get(engine):
            record.word = word
            self._changed(record)

    def link(self, engine: EngineId, up: bool) -> None:
        """Note that the agent's stream came or went."""
        if record := self._records.get(engine):
            record.linked = up
            self._changed(record)

    def observe_status(self, engine: EngineId, status: Status, heard_at: float) -> None:
        """Keep the agent's word. It is the heartbeat of the engine's digest."""
        if record := self._records.get(engine):
            record.status, record.heard_at = status, heard_at
            self._changed(record)

    def observe_load(self, engine: EngineId, load: Load, observed_at: float) -> None:
        """Keep the newest load report."""
        record = self._records.get(engine)
        if record and (record.load is None or observed_at >= record.load_at):
            record.load, record.load_at = load, observed_at
            record.view = None  # a snapshot shows it at once, a decision when its views are due

    def observe_digest(
        self,
        engine: EngineId,
        generation: str,
        live: bool,
        diverged: bool,
        heard_at: float,
        hit_points: bool = False,
        removed: int = 0,
    ) -> None:
        """Note the state of the engine's digest after a message."""
        if record := self._records.get(engine):
            record.generation, record.digest_live, record.diverged = generation, live, diverged
            record.heard_at, record.hit_points = heard_at, hit_points
            record.removed = removed
            self._changed(record)

    def _changed(self, record: _Record) -> None:
        record.view = None
        self._views.clear()

    def observe_gpus(self, node: NodeId, gpus: NodeGpus, observed_at: float) -> None:
        """Keep a node's GPU report, and what it says of the node's engines.

        Cards of one model on the whole node are its engines' cards, whichever serves which.
        """
        self._gpus[node] = (gpus, observed_at)
        names = {gpu.uuid: gpu.name for gpu in gpus.gpus}
        given = self._given_of(node, gpus)
        # A driver that is away changes no card, and gives no GPU to another engine.
        if names and (names != self._cards.get(node) or given != self._given.get(node, {})):
            self._cards[node], self._given[node] = names, given
            self.assign(self._found)
        utilization = {gpu.uuid: gpu.utilization for gpu in gpus.gpus}
        for record in self._records.values():
            if record.engine.gpus and record.engine.node == node:
                record.gpu_utilization = _busiest(map(utilization.get, record.engine.gpus))
                record.gpu_at = observed_at
                self._changed(record)
            elif not record.engine.gpus and record.gpu_utilization is not None:
                record.gpu_utilization = None
                self._changed(record)

    def _given_of(self, node: NodeId, gpus: NodeGpus) -> dict[_Tenant, Sequence[str]]:
        """Return the GPUs of each engine that the report names: of this node's engines alone."""
        given: dict[_Tenant, list[str]] = {}
        for gpu in gpus.gpus:
            for named in gpu.engines:
                record = self._records.get(named)
                if record is not None and record.engine.node == node:
                    given.setdefault((named, record.engine.pod), []).append(gpu.uuid)
        return dict(given)

    def node_gpus(self, now: float) -> dict[NodeId, tuple[NodeGpus, float]]:
        """Return each node's GPUs with the report's age in seconds."""
        return {node: (gpus, now - at) for node, (gpus, at) in self._gpus.items()}

    def assigned_to(self, node: NodeId) -> list[Engine]:
        """Return a node's engines."""
        return [r.engine for r in self._records.values() if r.engine.node == node]

    def engines(self, model: str) -> list[Engine]:
        """Return the engines that serve a model name, away or not."""
        return [record.engine for record in self._serving.get(model, ())]

    def has_unseen(self) -> bool:
        """Return whether an engine is away that has not said yet what it serves."""
        return any(record.away and not record.engine.models for record in self._records.values())

    def groups(self, model: str) -> Iterable[tuple[GroupId, str | None]]:
        """Return the groups that serve a name, each with the adapter that seeds its keys."""
        return self._groups.get(model, ())

    def reachable(self, model: str) -> Sequence[Engine]:
        """Return those of `engines(model)` that are not away."""
        if model not in self._serving:
            return ()
        if model not in self._reachable:
            serving = self._serving[model]
            self._reachable[model] = [record.engine for record in serving if not record.away]
        return self._reachable[model]

    def is_served(self, model: str) -> bool:
        """Return whether an engine serves a model name that is neither away nor failing."""
        return any(not (r.away or r.failing) for r in self._serving.get(model, ()))

    def views(self, model: str | None, now: float) -> Sequence[EngineView]:
        """Return `snapshot(now).serving(model)` without a view of all other engines.

        Without a model: of all engines.

        It is the same object for as long as nothing new is known: see `VIEW_FOR_S`.
        """
        kept = self._views.get(model)
        if kept is not None and 0 <= now - kept[1] < VIEW_FOR_S:
            return kept[0]
        records = self._records.values() if model is None else self._serving.get(model, ())
        views = tuple(_view(record, now) for record in records)
        if views:
            self._views[model] = views, min(record.viewed_at for record in records)
        return views

    def models(self) -> list[ServedModel]:
        """Return each served name once, sorted."""
        return [
            served
            for name in sorted(self._serving)
            if (served := self._serving[name][0].engine.serves(name))
        ]

    def snapshot(self, now: float) -> Snapshot:
        """Return an immutable view of everything, aged to `now`."""
        return Snapshot(tuple(_view(r, now) for r in self._records.values()), self.revision)


def _view(record: _Record, now: float) -> EngineView:
    if record.view is None or not 0 <= now - record.viewed_at < VIEW_FOR_S:
        record.view, record.viewed_at = _fresh_view(record, now), now
    return record.view


def _fresh_view(record: _Record, now: float) -> EngineView:
    return EngineView(
        record.engine,
        record.linked,
        None if record.heard_at is None else now - record.heard_at,
        record.status,
        record.load,
        None if record.load is None else now - record.load_at,
        record.generation,
        record.digest_live,
        record.diverged,
        record.away,
        record.failing,
        record.hit_points,
        record.word,
        record.removed,
        record.gpu_utilization if now - record.gpu_at <= GPU_FOR_S else None,
    )


def _card(names: Mapping[str, str], uuids: Sequence[str]) -> str:
    """Return the one model of these GPUs of a node, of all where none is named; else nothing."""
    found = {names[uuid] for uuid in uuids or names if uuid in names}
    return found.pop() if len(found) == 1 else ""


def _busiest(utilizations: Iterable[float | None]) -> float | None:
    """Return the highest: an engine waits for the slowest of its GPUs. `None`: one is not known."""
    highest = 0.0
    for each in utilizations:
        if each is None:
            return None
        highest = max(highest, each)
    return highest
