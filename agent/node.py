"""The engines and the GPUs of this node: who reads them, and the latest of what they said.

Reporters write assignments (`adopt`, `release`); the node starts and stops one worker per engine
and one scrape per server, and keeps the latest value of each signal. There are no queues: a slow
reporter reads the newest.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

import aiohttp

from agent import gpu, scrape
from agent.assignment import Assigned, AssignedEngine, Scheme
from agent.checkpoint import Checkpoints, Key, Saved
from agent.digest_log import DigestLog
from agent.engine import Counters, Subscribe, Worker
from agent.owners import GpuOwners
from agent.peers import Peers
from agent.scrape import Failure, ScrapeFailed
from agent.signals import Observed
from lineside import logs
from lineside.clock import Clock
from lineside.ids import EngineId, Generation
from lineside.signals import Load, NodeGpus, Status

SAVE_S = 30.0
"""Between two checkpoints of all engines."""

CAPTURE_S = 5.0
"""For an engine's holdings to come to the end of a batch; then its last checkpoint stays."""

FLUSH_S = 0.02
"""Between the first change and the flush that closes its window, at least."""

FLUSH_MAX_S = 0.1
"""Between two flushes, unless much has changed: a message costs a coordinator as much as hundreds
of keys, and one has hundreds of agents."""

FLUSH_KEYS = 256
"""Changes that are much."""

log = logs.get("agent.node")

T = TypeVar("T")
_Task: TypeAlias = "asyncio.Task[None]"


@dataclass(slots=True)
class Reading:
    """One engine, as it is being read."""

    worker: Worker
    counters: Counters
    secret: bytes
    task: _Task
    load: Observed[Load] | None = None


@dataclass(slots=True)
class Server:
    """One server's scrapes. `failing`: why the last one failed; empty: it did not."""

    task: _Task
    failures: Counter[Failure] = field(default_factory=Counter)
    failing: str = ""


class Node:
    """One per process. Starts its tasks in the group that it is given."""

    def __init__(
        self,
        *,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        session: aiohttp.ClientSession,
        subscribe: Subscribe,
        read_gpus: Callable[[], NodeGpus],
        pauses: scrape.Pauses = scrape.USUAL,
        checkpoints: Checkpoints | None = None,
        owners: GpuOwners | None = None,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._session = session
        self._subscribe = subscribe
        self._checkpoints = checkpoints
        self._unsaved = ""  # why the last checkpoint could not be written
        self._pauses = pauses
        self._connected: set[str] = set()
        self._words: dict[str, tuple[Scheme, Assigned]] = {}
        self._scheme: Scheme | None = None
        self.engines: dict[EngineId, Reading] = {}
        self.servers: dict[str, Server] = {}
        self._ending: set[_Task] = set()
        self._gpus: Observed[NodeGpus] | None = None
        self.owners = owners or GpuOwners()
        self._dirty = asyncio.Event()
        self._changed: set[asyncio.Event] = set()
        self.peers = Peers(self._announce)
        tasks.create_task(self._flush(), name="flush")
        if checkpoints is not None:
            tasks.create_task(self._save_often(checkpoints), name="checkpoints")
        tasks.create_task(gpu.watch(read_gpus, clock, self._took_gpus), name="gpus")

    # --- what to read -----------------------------------------------------------------------------

    @property
    def assigned(self) -> bool:
        """Whether any coordinator has said what to read."""
        return bool(self._words)

    def adopt(self, scheme: Scheme, assigned: Assigned) -> None:
        """Take a connected coordinator's word in place of its last one, and read accordingly."""
        self._connected.add(assigned.coordinator)
        self._words[assigned.coordinator] = (scheme, assigned)
        self._words = {name: self._words[name] for name in self._words if name in self._connected}
        self._follow()

    def scheme(self) -> Scheme | None:
        """Return how keys are made now; `None`: no coordinator has said so yet."""
        return self._scheme

    def release(self, coordinator: str) -> None:
        """Note that a coordinator's stream ended. The last one's word stays until the next word."""
        self._connected.discard(coordinator)
        if self._connected and coordinator in self._words:
            del self._words[coordinator]
            self._follow()

    def _follow(self) -> None:
        """Bring workers and scrapes in line with the word of the highest revision."""
        scheme, assigned = max(self._words.values(), key=lambda word: word[1].revision)
        self._scheme = scheme
        wanted = {engine.id: self._coarsest(engine) for engine in assigned.engines}
        for engine_id in self.engines.keys() - wanted.keys():
            self._end(self.engines.pop(engine_id).task)
        for engine in wanted.values():
            self._read(engine, scheme.secret)
        urls = {engine.base_url for engine in wanted.values()}
        for url in self.servers.keys() - urls:
            self._end(self.servers.pop(url).task)
        for url in urls - self.servers.keys():
            self.servers[url] = Server(self._start(partial(self._scrape, url), f"scrape {url}"))
        self.owners.assign(wanted.values())
        log.info("following", coordinator=assigned.coordinator, engines=len(wanted))
        self._announce()

    def _coarsest(self, engine: AssignedEngine) -> AssignedEngine:
        """Return the engine with the coarsest stride that any connected coordinator asks for."""
        strides = (
            other.stride
            for _, assigned in self._words.values()
            for other in assigned.engines
            if other.id == engine.id
        )
        return replace(engine, stride=max(strides))

    def _read(self, engine: AssignedEngine, secret: bytes) -> None:
        """Read an engine as assigned, by a new worker unless the one at work can follow."""
        before = self.engines.get(engine.id)
        if before and before.secret == secret and before.worker.reads(engine):
            before.worker.follow(engine)
            return
        counters, load = (before.counters, before.load) if before else (Counters(), None)
        if before:
            self._end(before.task)
        worker = Worker(engine, secret, counters, self._clock, self._dirty.set)
        task = self._start(
            partial(worker.run, self._subscribe, self._remembered), f"events {engine.id}"
        )
        self.engines[engine.id] = Reading(worker, counters, secret, task, load)

    def _start(self, work: Callable[[], Coroutine[None, None, None]], name: str) -> _Task:
        async def wait_and_work() -> None:
            if self._ending:  # one of them may still hold the address that this one binds
                await asyncio.wait(self._ending)
            await work()

        return self._tasks.create_task(wait_and_work(), name=name)

    def _end(self, task: _Task) -> None:
        if not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    # --- what reporters read ----------------------------------------------------------------------

    def log(self, engine: EngineId) -> DigestLog | None:
        """Return an engine's digest log; another one after each change of scheme or stride."""
        reading = self.engines.get(engine)
        return reading.worker.log if reading else None

    def vouched(self, engine: EngineId, generation: Generation) -> None:
        """Take a coordinator's word that what is said of an engine has proved right."""
        if reading := self.engines.get(engine):
            reading.worker.healed(generation)

    def doubted(
        self, engine: EngineId, generation: Generation, reason: str, *, overstated: bool
    ) -> None:
        """Take a coordinator's word that what is said of an engine has proved wrong."""
        if reading := self.engines.get(engine):
            reading.worker.doubted(generation, reason, overstated=overstated)

    def statuses(self) -> dict[EngineId, Observed[Status]]:
        """Return every engine's status as it is now."""
        now = self._clock.monotonic()
        return {id: self._observed(r.worker.status(), now) for id, r in self.engines.items()}

    def loads(self) -> dict[EngineId, Observed[Load]]:
        """Return the last load of each engine that was scraped at all."""
        return {id: r.load for id, r in self.engines.items() if r.load}

    def gpus(self) -> Observed[NodeGpus] | None:
        """Return the last reading of this node's GPUs."""
        return self._gpus

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set at every change; its owner clears it."""
        event = asyncio.Event()
        self._changed.add(event)
        return event

    # --- what outlives the agent ------------------------------------------------------------------

    async def _remembered(self, key: Key) -> Saved | str:
        """Return an engine's checkpoint, or why there is none to use."""
        if self._checkpoints is None:
            return "checkpoints are off"
        return await asyncio.to_thread(self._checkpoints.load, key)

    async def _save_often(self, checkpoints: Checkpoints) -> None:
        await asyncio.to_thread(checkpoints.prune, self._clock.unix())
        while True:
            await self._clock.sleep(SAVE_S)
            await self.save()

    async def save(self) -> None:
        """Write a checkpoint of every engine. One after the other: the pauses do not add up."""
        if self._checkpoints is None:
            return
        for reading in list(self.engines.values()):
            try:
                async with asyncio.timeout(CAPTURE_S):
                    captured = await reading.worker.captured()
                if captured is not None:
                    await asyncio.to_thread(self._checkpoints.save, reading.worker.key, captured)
                self._unsaved = ""
            except (TimeoutError, OSError) as error:
                reason = str(error) or "a batch took too long"
                if reason != self._unsaved:
                    log.warning("no checkpoint", engine=reading.worker.engine.id, reason=reason)
                self._unsaved = reason

    # --- what is read -----------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Close every engine's window soon after something changed in any, and report it."""
        flushed_at = float("-inf")
        while True:
            await self._dirty.wait()
            await self._clock.sleep(FLUSH_S)
            now = self._clock.monotonic()
            if now - flushed_at < FLUSH_MAX_S and self._changes() < FLUSH_KEYS:
                continue
            flushed_at = now
            self._dirty.clear()
            for reading in self.engines.values():
                reading.worker.flush()
            self._announce()

    def _changes(self) -> int:
        return sum(reading.worker.changes for reading in self.engines.values())

    async def _scrape(self, url: str) -> None:
        take = partial(self._took_page, url)
        await scrape.watch(self._session, url, self._clock, take, self._pauses)

    def _took_page(self, url: str, page: bytes | ScrapeFailed, asked_at: float) -> bool:
        """Keep the loads of the server's engines. Return whether any has requests."""
        server = self.servers[url]
        if isinstance(page, ScrapeFailed):
            server.failures[page.failure] += 1
            if not server.failing:
                log.warning("scrape fails", server=url, reason=page.detail)
            server.failing = page.detail
            return False
        if server.failing:
            log.info("scrape works again", server=url)
            server.failing = ""
        readings = [r for r in self.engines.values() if r.worker.engine.base_url == url]
        version = readings[0].worker.engine.version
        loads = scrape.parse(page, [r.worker.engine.rank for r in readings], version)
        for reading in readings:
            self._keep(reading, loads[reading.worker.engine.rank], asked_at)
        self._dirty.set()
        return any(load.running or load.waiting for load in loads.values())

    def _keep(self, reading: Reading, load: Load, at: float) -> None:
        if load.missing != (reading.load.value.missing if reading.load else ()):
            log.warning("series missing", engine=reading.worker.engine.id, series=load.missing)
        reading.load = self._observed(load, at)
        reading.worker.saw(load, at)

    def _took_gpus(self, gpus: NodeGpus) -> None:
        if gpus.unavailable != (self._gpus.value.unavailable if self._gpus else ""):
            log.info("GPUs", unavailable=gpus.unavailable)
        self._gpus = self._observed(self.owners.named(gpus), self._clock.monotonic())
        self._dirty.set()

    def _observed(self, value: T, at: float) -> Observed[T]:
        return Observed(value, at, self._clock.unix() - (self._clock.monotonic() - at))

    def _announce(self) -> None:
        for event in self._changed:
            event.set()
