"""A canonical request to a decision: tokens, plan, keys, overlap, load. Accounts nothing.

Owns nothing but caches of what follows from the cluster's state alone; `service` owns the request.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from coordinator.canonical import Canonical
from coordinator.cluster import Cluster
from coordinator.engines import Engine, EngineView
from coordinator.holdings.overlay import STRIDE, Overlay
from coordinator.leaning import Leaning
from coordinator.load.answers import Answers
from coordinator.load.inflight import InFlight
from coordinator.load.newcomers import Newcomers
from coordinator.load.outlook import RequestOutlook
from coordinator.load.predict import Predictor
from coordinator.load.pressure import Pressure
from coordinator.load.recent import RecentWork
from coordinator.measurement import (
    OUTSTANDING_S,
    Facts,
    Held,
    Part,
    Units,
    measure,
)
from coordinator.providers.bars import Bar, KeyMissing, bars, bars_nowhere, none_missing
from coordinator.providers.cooldowns import Cooldowns
from coordinator.route import NO_BARS, Decision, decide
from coordinator.rules import Bench, Rules, saturated
from coordinator.runners import Field, field_of
from coordinator.seen import Keys, Seen, first_known, load_tokens
from coordinator.state.secret import Secret
from coordinator.targets import ANYWHERE, Layout, Reach
from coordinator.tokens.tokenized import Tokenized
from lineside import hashing
from lineside.clock import Clock
from lineside.ids import BlockKey, EngineId, GroupId, ModelName, TenantId
from policies.facts import Pools, RequestFacts, Truth
from policies.verdict import Denied

NO_POOLS: Pools = MappingProxyType({})

FIELDS = 1000
"""Models whose engines are kept sorted out; all are forgotten when there are more."""


class Overlaps(Protocol):
    """The index, as the read path sees it."""

    def alike(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> Sequence[tuple[Units, tuple[EngineId, ...]]]:
        """Return the leading units that engines of a group hold, and which hold as much.

        `limit`: units before the prompt's last token, where that is known.
        """
        ...


class Tokenizer(Protocol):
    """Requests to token ids, within a time budget."""

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        """Return a prompt's tokens for the engines that may serve it."""
        ...


@dataclass(kw_only=True)
class Decider:
    """Decides; `dry_run` and `route` of the service differ in what they do with the answer."""

    cluster: Cluster
    rules: Rules
    overlaps: Overlaps
    tokens: Tokenizer
    inflight: InFlight
    overlay: Overlay
    recent: RecentWork
    predictor: Predictor
    pressure: Pressure = field(default_factory=Pressure)
    newcomers: Newcomers = field(default_factory=Newcomers)
    answers: Answers = field(default_factory=Answers)
    cooldowns: Cooldowns = field(default_factory=Cooldowns)
    key_missing: KeyMissing = none_missing
    claimed_elsewhere: Callable[[Sequence[BlockKey]], Mapping[EngineId, int]] = lambda _: {}
    """What other coordinators sent there lately: leading units that engines will hold."""
    leaning: Leaning = field(default_factory=Leaning)
    outstanding_s: float = OUTSTANDING_S
    clock: Clock
    rng: random.Random
    secret: Secret = field(repr=False)

    def __post_init__(self) -> None:
        self._fields: dict[ModelName, tuple[Sequence[EngineView], Layout, Field]] = {}
        self._full: tuple[Sequence[EngineView], Bench, Pools] | None = None

    async def see(
        self, request: Canonical, tenant: TenantId, tags: Mapping[str, Truth]
    ) -> Seen | Denied:
        """Tokenize a request and find out what the policies leave of its targets."""
        bench = self.rules.bench()
        layout, asked_for = bench.layout, bench.policies.names_headers
        meant = layout.models(bench.bound.meant(request.model))
        tokens = await self._tokenize(request, meant)
        tokenized = first_known(tokens)
        secret = self.secret.value or b""
        facts = RequestFacts(
            model=request.model,
            tenant=tenant,
            api=request.api.value,
            stream=request.stream,
            input_tokens=tokenized.count,
            tags=tags,
            headers={n: v for n, v in request.headers.items() if n in asked_for}
            if asked_for
            else {},
            conversation=request.conversation(secret) if bench.policies.has_splits else "",
        )
        plan = bench.bound.plan(facts, self._saturated(bench))
        if isinstance(plan, Denied):
            return plan
        models = layout.models(plan.mask)
        if others := [model for model in models if model not in tokens]:
            tokens |= await self._tokenize(request, others)
            tokenized = first_known(tokens)
        return Seen(request, bench, plan, models, tokens, tokenized, tenant)

    def decide(self, seen: Seen, reach: Reach = ANYWHERE) -> tuple[Decision, Keys]:
        """Measure and rank. No await: load that is read is load that the caller reserves."""
        now = self.clock.monotonic()
        self.overlay.expire(now)
        layout, full = seen.bench.layout, self.newcomers.full()
        keys: dict[tuple[ModelName, GroupId], Sequence[BlockKey]] = {}
        parts: list[Part] = []
        for model in seen.models:
            field_ = self._field(model, layout, now)
            if not (field_.views or field_.out):
                continue  # providers alone serve it
            tokenized = seen.tokens[model]
            held = self._held(model, seen.request, tokenized, keys)
            busy = self.inflight.loads(field_.row.engines, now)
            part = measure(
                field_,
                Facts(tokenized.count, load_tokens(seen.request, tokenized)),
                held,
                busy,
                self.recent.column,
                self.predictor,
                self.pressure.beta(model, busy.wait_s, now),
                self.outstanding_s,
                full,
            )
            parts.append(self.leaning.lean(part) if self.leaning.fellows.active else part)
        expected = self.answers.expected_tokens(
            seen.tenant, ModelName(seen.request.model), seen.request.max_tokens
        )
        loads = {model: seen.load_tokens(model) for model in seen.tokens}
        load = load_tokens(seen.request, seen.tokenized)
        outlook = RequestOutlook(seen.bench, self.answers, self.predictor, loads, load, expected)
        subset, targets = reach.subset, seen.plan.targets
        outside = () if subset is None else layout.outside(targets, subset)
        barred = self._bars(seen, reach.translates, now)
        if reach.nowhere:
            barred = {**barred, **bars_nowhere(layout, targets, reach.nowhere)}
        return decide(seen.plan, parts, layout, outlook, self.rng, outside, barred), keys

    def _saturated(self, bench: Bench) -> Pools:
        """Return which pools are, where a policy asks; the views of a moment give one answer."""
        if not bench.policies.asks_pools:
            return NO_POOLS
        views = self.cluster.views(None, self.clock.monotonic())
        if self._full is None or self._full[0] is not views or self._full[1] is not bench:
            self._full = views, bench, saturated(bench, views)
        return self._full[2]

    def _bars(self, seen: Seen, translates: bool, now: float) -> Mapping[int, Bar]:
        """Return which providers are out of the running."""
        layout, api = seen.bench.layout, seen.request.api
        if not layout.providers:
            return NO_BARS  # nearly always
        there = (place for place in seen.plan.targets if layout.providers >> place & 1)
        return bars(layout, there, api, self.cooldowns, now, translates, self.key_missing)

    def welcome(self, engine: Engine) -> None:
        """Note that an engine is new, or back: it is not to be buried by what is cold."""
        now = self.clock.monotonic()
        views = self.cluster.snapshot(now).engines
        others = [
            view.engine.id
            for view in views
            if view.engine.group == engine.group and not view.away and view.engine.id != engine.id
        ]
        if self.newcomers.welcome(engine, others, now):
            self.recent.welcome(engine)

    async def _tokenize(
        self, request: Canonical, models: Sequence[ModelName]
    ) -> dict[ModelName, Tokenized]:
        """Tokenize for several models at once: they share the one budget of time."""
        if not models:
            return {}
        of, reachable = self.tokens.of, self.cluster.reachable
        if len(models) == 1:
            return {models[0]: await of(request, reachable(models[0]))}
        async with asyncio.TaskGroup() as tasks:
            made = {m: tasks.create_task(of(request, reachable(m))) for m in models}
        return {model: task.result() for model, task in made.items()}

    def _field(self, model: ModelName, layout: Layout, now: float) -> Field:
        """Return the model's engines in the running; the views of a moment give one field."""
        views = self.cluster.views(model, now)
        kept = self._fields.get(model)
        if kept is None or kept[0] is not views or kept[1] is not layout:
            if len(self._fields) >= FIELDS:
                self._fields.clear()
            kept = self._fields[model] = (
                views,
                layout,
                field_of(model, views, layout, self.predictor.class_of, kept and kept[2]),
            )
        return kept[2]

    def _held(
        self,
        model: ModelName,
        request: Canonical,
        tokenized: Tokenized,
        keys: dict[tuple[ModelName, GroupId], Sequence[BlockKey]],
    ) -> Held:
        """Return what a model's engines hold of the prompt, and add its keys by group."""
        indexed: list[tuple[Units, tuple[EngineId, ...]]] = []
        claimed: dict[EngineId, int] = {}
        if not tokenized.packed or (secret := self.secret.value) is None:
            return Held(indexed, claimed)
        chains: dict[str | None, list[BlockKey]] = {}
        count = tokenized.count
        limit = None if count is None else max(0, count - 1) // hashing.UNIT
        for group, lora in self.cluster.groups(model):
            if lora not in chains:
                seed = hashing.seed(secret, lora, request.cache_salt)
                chains[lora] = hashing.chain(seed, tokenized.packed)
            keys[model, group] = hashing.strided(chains[lora], STRIDE)
            if not request.skips_cache:
                indexed += self.overlaps.alike(group, chains[lora], limit)
                claimed |= self.overlay.units(group, keys[model, group])
                for engine, units in self.claimed_elsewhere(keys[model, group]).items():
                    claimed[engine] = max(units, claimed.get(engine, 0))
        return Held(indexed, claimed)
