"""The product as a strategy of a replay: the coordinator's own core, in virtual time.

Service, decider, policies, index, overlay, in-flight accounting, prediction: all as they are in a
coordinator. Only what has sockets is left out: prompts come tokenized, events as keys, and agents
are always heard. Engines report no load, of which decisions make no use anyway.
"""

import json
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coordinator.canonical import Api, Canonical, parse
from coordinator.cluster import Cluster
from coordinator.config import Config
from coordinator.decider import Decider
from coordinator.engines import Engine, ServedModel
from coordinator.holdings.audit import Audit
from coordinator.holdings.index import GroupIndex, Slot, slots_of
from coordinator.holdings.overlay import STRIDE, Overlay
from coordinator.leaning import Fellows, Leaning
from coordinator.limits import Unlimited, Usage
from coordinator.load.inflight import InFlight, PeerSum
from coordinator.load.predict import Learned, Predictor
from coordinator.load.pressure import Pressure
from coordinator.load.recent import RecentWork
from coordinator.measurement import OUTSTANDING_S, Units
from coordinator.records import Records
from coordinator.rules import Resources, Rules
from coordinator.service import Routed, Service
from coordinator.state.peers import Own, Peers
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside import hashing
from lineside.ids import BlockKey, EngineId, GroupId, ModelName, NodeId, TenantId
from lineside.signals import Events, Status
from simulate.traces import BLOCK_TOKENS
from simulate.virtual import ENGINE_BLOCK, Job

SECRET = b"replay"
GROUP = GroupId("replayed")
LEASE_S = 1e9
"""No door can fail to end a request here."""

HEARD_AT = 1e15
"""Agents are heard until then: their silence is not what is replayed."""

FIRST = "first"
"""The one generation of each engine's digest."""

LOOK_S = 1.0

_DEFAULTS = Config(transport="plaintext")
PRIOR_TOKENS_PER_S, PRIOR_STEP_S = _DEFAULTS.prefill_tokens_per_s, _DEFAULTS.step_s
"""Where a coordinator begins that nobody has told anything."""

T = TypeVar("T")


class VirtualClock:
    """Shows what the replay says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError("nothing waits in a replay")


class Prompts:
    """The tokens of the request at hand: 512 for each block, that no other block has."""

    def __init__(self) -> None:
        self.job: Job | None = None

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        assert self.job is not None
        request = self.job.request
        packed = packed_prompt(request.blocks)[: 4 * request.input_tokens]
        return Tokenized(TokenState.EXACT, "given", packed, request.input_tokens)


def packed_prompt(blocks: Sequence[int]) -> bytes:
    """Return tokens that are the same for the same blocks only, as the chain of keys reads them."""
    return b"".join(block.to_bytes(8, "little") * (BLOCK_TOKENS // 2) for block in blocks)


class Index:
    """The index of one group, and what each block of the trace is in it."""

    def __init__(self, names: Sequence[EngineId]) -> None:
        self._index = GroupIndex(STRIDE)
        self._slots = [self._index.open_slot() for _ in names]
        self._names = dict(zip(self._slots, names, strict=True))
        for slot in self._slots:
            self._index.show(slot)
        self._keys: dict[int, Sequence[BlockKey]] = {}
        self.removed = [0] * len(names)
        """Keys that each engine has announced as gone."""

    def alike(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> list[tuple[Units, tuple[EngineId, ...]]]:
        return [
            ((depth * STRIDE,) * 3, tuple(map(self._names.__getitem__, slots_of(mask))))
            for depth, mask in self._index.runs(unit_keys, STRIDE)
        ]

    def note(self, job: Job, keys: Sequence[BlockKey]) -> None:
        """Remember the keys of a prompt's blocks."""
        each = BLOCK_TOKENS // hashing.UNIT // STRIDE
        for place, block in enumerate(job.request.blocks):
            of = keys[place * each : (place + 1) * each]
            if len(of) > len(self._keys.get(block, ())):
                self._keys[block] = of

    def announced(self, engine: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        """Take what an engine's events say."""
        slot: Slot = self._slots[engine]
        for block in removed:
            self.removed[engine] += self._index.remove(slot, self._keys.get(block, ()))
        for block in stored:
            self._index.add(slot, self._keys.get(block, ()))


@dataclass(frozen=True, slots=True)
class Parts:
    """What a router is made of; a replay swaps some to show what they are worth."""

    overlay: Callable[[], Overlay] = Overlay
    inflight: Callable[[Mapping[EngineId, PeerSum]], InFlight] = InFlight
    recent: Callable[[], RecentWork] = RecentWork
    pressure: Callable[[], Pressure] = Pressure
    leaning: Callable[[Fellows], Leaning] = Leaning
    predictor: Callable[[], Predictor] = lambda: Learned(PRIOR_TOKENS_PER_S, PRIOR_STEP_S)
    outstanding_s: float = OUTSTANDING_S


USUAL, NO_RESOURCES = Parts(), Resources()


@dataclass(frozen=True, slots=True)
class Paired:
    """A prediction with what came of it."""

    predicted_s: float
    ttft_s: float
    low_s: float
    high_s: float
    """Between these two the coordinator expects four of five."""


class VirtualRouter:
    """A coordinator's core that a replay asks where each request goes."""

    def __init__(
        self,
        engines: int,
        rng: random.Random,
        parts: Parts = USUAL,
        resources: Resources = NO_RESOURCES,
        model: str = "replayed",
        versions: Sequence[str] = (),
        peers: Peers | None = None,
        index: Index | None = None,
    ) -> None:
        """`versions`: of the engines, where they are of several classes.

        `peers`: what is heard of other coordinators. `index`: one that all of them read.
        """
        self._names = [EngineId(f"engine-{number}") for number in range(1, engines + 1)]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._cluster = _cluster(self._names, model, versions or [""] * engines)
        self._clock, self._prompts = VirtualClock(), Prompts()
        self._index = index or Index(self._names)
        self._request, self._look_at = _request(model), 0.0
        self._open: dict[int, tuple[Routed, Paired]] = {}
        self.paired: list[Paired] = []
        """In the order of first tokens."""
        self.refused = 0
        self.elsewhere = 0
        """Requests that policies sent to a provider."""
        rules = Rules(self._cluster, resources)
        models = rules.bench().layout.inventory.models
        if len(models) > 1:
            raise ManyModels(", ".join(sorted(models)))
        decider = self._decider(rules, rng, parts, peers or Peers())
        self._service = _service(decider, rng)
        self.own = Own(decider.inflight, decider.overlay)
        """What it tells other coordinators."""

    def _decider(self, rules: Rules, rng: random.Random, parts: Parts, peers: Peers) -> Decider:
        return Decider(
            cluster=self._cluster,
            rules=rules,
            overlaps=self._index,
            tokens=self._prompts,
            inflight=parts.inflight(peers.sums),
            overlay=parts.overlay(),
            recent=parts.recent(),
            predictor=parts.predictor(),
            pressure=parts.pressure(),
            outstanding_s=parts.outstanding_s,
            claimed_elsewhere=peers.units,
            leaning=parts.leaning(peers),
            clock=self._clock,
            rng=rng,
            secret=Secret(SECRET),
        )

    def choose(self, job: Job, now: float) -> int | None:
        self._clock.now, self._prompts.job = now, job
        self._look(now)
        routed = _done(self._service.route(self._request, TenantId("replay"), "replay"))
        if not isinstance(routed, Routed):
            self.refused += 1
            return None
        target = routed.target
        if not isinstance(target, Engine):
            self.elsewhere += 1
            self._service.finished(routed, 200, Usage(), "stop")
            return None
        for keys in routed.keys.values():
            self._index.note(job, keys)
        predicted_s = routed.candidate.predicted_ttft_s or 0.0
        band = self._service.decider.predictor.band(target)
        paired = Paired(predicted_s, 0.0, predicted_s * band.low, predicted_s * band.high)
        self._open[job.id] = routed, paired
        return self._numbers[target.id]

    def first_token(self, job: Job, engine: int, at: float) -> None:
        self._clock.now = at
        routed, paired = self._open[job.id]
        self._service.first_token(routed)
        self.paired.append(replace(paired, ttft_s=at - job.arrived))

    def finished(self, job: Job, engine: int, at: float) -> None:
        self._clock.now = at
        routed, _ = self._open.pop(job.id)
        usage = Usage(job.request.input_tokens, job.cached_tokens, job.request.output_tokens)
        self._service.finished(routed, 200, usage, "length")

    def announced(
        self, engine: int, stored: Sequence[int], removed: Sequence[int], at: float
    ) -> None:
        self._index.announced(engine, stored, removed)
        self.heard(engine, removed)

    def heard(self, engine: int, removed: Sequence[int]) -> None:
        """Take what an engine's events say beside what is in the index."""
        if removed:
            name, total = self._names[engine], self._index.removed[engine]
            self._cluster.observe_digest(name, FIRST, True, False, HEARD_AT, removed=total)

    def _look(self, now: float) -> None:
        """Settle the audit once a second, as a coordinator does."""
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            audit = self._service.audit
            for name in audit.look(self._cluster.snapshot(now).engines):
                self._cluster.observe_word(name, audit.word(name))


class ManyModels(Exception):
    """Resources name more models than the one that a trace is of."""


def _service(decider: Decider, rng: random.Random) -> Service:
    return Service(
        decider=decider,
        limiter=Unlimited(),
        tagger=GivenTags(),
        records=Records(),
        lease_s=LEASE_S,
        audit=Audit(0.0, rng),
        shed_wait_s=_DEFAULTS.shed_wait_s,
    )


def _cluster(names: Sequence[EngineId], model: str, versions: Sequence[str]) -> Cluster:
    """Return a cluster that discovery found and agents have reported on."""
    cluster = Cluster()
    cluster.assign([_engine(*each, model) for each in zip(names, versions, strict=True)])
    for name in names:
        cluster.observe_status(name, Status(Events.LIVE, block_size=ENGINE_BLOCK), HEARD_AT)
        cluster.observe_digest(name, FIRST, True, False, HEARD_AT)
    return cluster


def _engine(name: EngineId, version: str, model: str) -> Engine:
    return Engine(
        id=name,
        base_url=f"http://{name}:8000",
        endpoint=f"{name}:8000",
        group=GROUP,
        models=(ServedModel(ModelName(model)),),
        node=NodeId("replay"),
        version=version,
        events="tcp://replayed:1",
    )


def _request(model: str) -> Canonical:
    message = {"role": "user", "content": "-"}
    body = {"model": model, "messages": [message], "stream": True}
    parsed = parse(Api.OPENAI_CHAT, {}, json.dumps(body).encode())
    assert isinstance(parsed, Canonical)
    return parsed


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a decision waited in a replay")
