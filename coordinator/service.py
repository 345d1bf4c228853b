"""The one service behind all doors: a canonical request in, an engine or a refusal out.

    tokens -> keys, tags -> reserve -> verdict -> decide and account in one step

Owns a request's lease, claim, reservation and record from the decision to its end; a door reports
what happened and never touches them. No logging and no metrics here: `metrics.MeteredService` wraps
it.
"""

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from coordinator.attempts import Attempt, may_repeat
from coordinator.audit import Audit
from coordinator.canonical import Canonical, rewrite
from coordinator.cluster import Cluster
from coordinator.engines import Engine, EngineView
from coordinator.inflight import InFlight, Lease
from coordinator.limits import Limiter, Reservation, Usage
from coordinator.overlay import STRIDE, Claim, Overlay
from coordinator.predict import Predictor
from coordinator.recent import RecentWork
from coordinator.records import Outcome, Record, Records
from coordinator.refusal import Draining, NoEngineReady, OverLimit, Refusal, UnknownModel, to_reply
from coordinator.route import (
    Candidate,
    Decision,
    Facts,
    Field,
    Held,
    Undecided,
    Units,
    decide,
    field_of,
)
from coordinator.tagging import Tagger
from coordinator.tokens import Tokenized
from lineside import hashing
from lineside.clock import Clock
from lineside.ids import BlockKey, EngineId, GroupId, ModelName, TenantId
from policies.verdict import Verdict, default_route

BYTES_PER_TOKEN = 4
"""What an unknown prompt is taken to weigh in a queue; used for load, never shown."""

FIELDS = 1000
"""Models whose engines are kept sorted out; all are forgotten when there are more."""

MEDIA_TOKENS = 1000
"""The same for what follows a prompt's first picture or sound."""


class Overlaps(Protocol):
    """The index, as the read path sees it."""

    def overlap(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> dict[EngineId, Units]:
        """Return the leading units that each engine of a group holds; omit zeros.

        `limit`: units before the prompt's last token, where that is known.
        """
        ...


Keys: TypeAlias = Mapping[GroupId, Sequence[BlockKey]]
"""A prompt's keys as the overlay wants them: by group, every `STRIDE`-th."""


class Tokenizer(Protocol):
    """Requests to token ids, within a time budget."""

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        """Return a prompt's tokens for the engines that may serve it."""
        ...


@dataclass(slots=True, eq=False)
class Routed:
    """A request on its way. The door reads; the service writes, also when a fallback is taken."""

    record: Record
    request: Canonical = field(repr=False)
    candidate: Candidate
    body: bytes = field(repr=False)
    lease: Lease
    claim: Claim | None
    keys: Keys = field(repr=False)
    """Empty once the first token was seen: there is no fallback any more."""
    reservation: Reservation
    load_tokens: int
    started: float

    @property
    def engine(self) -> Engine:
        """Where the request goes."""
        return self.candidate.target


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal and the record of it."""

    record: Record
    refusal: Refusal


@dataclass(kw_only=True)
class Service:
    """Decides, accounts, and follows each request to its end."""

    cluster: Cluster
    overlaps: Overlaps
    tokens: Tokenizer
    inflight: InFlight
    overlay: Overlay
    recent: RecentWork
    predictor: Predictor
    limiter: Limiter
    tagger: Tagger
    records: Records
    clock: Clock
    rng: random.Random
    secret: bytes = field(repr=False)
    lease_s: float
    audit: Audit = field(default_factory=lambda: Audit(0.0, random.Random()))
    draining: bool = False

    def __post_init__(self) -> None:
        self._fields: dict[ModelName, tuple[Sequence[EngineView], Field]] = {}

    async def route(
        self, request: Canonical, tenant: TenantId, request_id: str
    ) -> Routed | Refused:
        """Choose an engine and take a lease on it. Every `Routed` must be ended by its door."""
        started = self.clock.monotonic()
        record = self._record(request, tenant, request_id)
        if refusal := self._admission(request):
            return self._refuse(record, refusal)
        tokenized = await self._observe(record, request)
        model = ModelName(request.model)
        granted = await self.limiter.reserve(tenant, model, tokenized.count, request.max_tokens)
        if isinstance(granted, OverLimit):
            return self._refuse(record, granted)
        # From here to the lease there is no await: load that is read is the load that is reserved.
        decided, keys = self._decide(record, request, tokenized)
        if isinstance(decided, Undecided):
            self.limiter.refund(granted)
            return self._refuse(record, decided.refusal)
        load_tokens, chosen = _load_tokens(request, tokenized), decided.chosen
        record.overdue_tokens = self._overdue(chosen, keys)
        lease, claim = self._account(chosen, load_tokens, request.stream, keys)
        record.served_by = chosen
        self.records.add(record)
        return Routed(
            record=record,
            request=request,
            candidate=chosen,
            body=rewrite(request, chosen.model, True, self.audit.asks(chosen.view)),
            lease=lease,
            claim=claim,
            keys=keys,
            reservation=granted,
            load_tokens=load_tokens,
            started=started,
        )

    async def dry_run(self, request: Canonical, tenant: TenantId) -> Record:
        """Decide as `route` would, account nothing, keep no record."""
        record = self._record(request, tenant, "dry-run")
        if refusal := self._admission(request):
            record.refusal = to_reply(refusal)
            return record
        decided, _ = self._decide(record, request, await self._observe(record, request))
        if isinstance(decided, Undecided):
            record.refusal = to_reply(decided.refusal)
        else:
            record.served_by = decided.chosen
        return record

    def refuse(self, refusal: Refusal, tenant: TenantId, request_id: str) -> Refused:
        """Record what a door refused before there was a canonical request."""
        return self._refuse(self._new_record(tenant, request_id), refusal)

    def fallback(self, routed: Routed, failed: Attempt) -> bool:
        """Move a failed request to its next fallback; return whether there is one.

        The only place that repeats a request.
        """
        record = routed.record
        record.attempts.append(failed)
        candidate = self._next(record) if may_repeat(record.attempts) else None
        if candidate is None:
            return False
        self.inflight.release(routed.lease, self.clock.monotonic())
        if routed.claim:
            self.overlay.drop(routed.claim)
        record.overdue_tokens = self._overdue(candidate, routed.keys)
        routed.lease, routed.claim = self._account(
            candidate, routed.load_tokens, routed.request.stream, routed.keys
        )
        announce = self.audit.asks(candidate.view)
        routed.body = rewrite(routed.request, candidate.model, True, announce)
        routed.candidate = record.served_by = candidate
        return True

    def first_token(self, routed: Routed) -> None:
        """Note that the prefill is over."""
        now = self.clock.monotonic()
        self.inflight.first_token(routed.lease, now)
        self._settle(routed, now)
        if routed.record.outcome.ttft_s is None:
            routed.record.outcome.ttft_s = now - routed.started

    def finished(self, routed: Routed, status: int, usage: Usage, finish: str | None) -> bool:
        """Note an answer, of any status: the engine's own refusals count as `rejected`.

        This and the other ends return whether this call ended the request.
        """
        if status < 400:
            self._settle(routed, self.clock.monotonic())
        if not self._end(routed, "finished" if status < 400 else "rejected", status):
            return False
        outcome = routed.record.outcome
        outcome.finish = finish
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.cached_tokens = usage.cached_tokens
        outcome.completion_tokens = usage.completion_tokens
        if status < 400:
            self.limiter.settle(routed.reservation, usage)
            if self.audit.ended(routed.record):
                engine = routed.engine.id
                self.cluster.observe_word(engine, self.audit.word(engine))
        else:
            self.limiter.refund(routed.reservation)
        return True

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        """Note that no answer came, or only a part of one."""
        reply = to_reply(refusal)
        if not self._end(routed, "failed", reply.status):
            return False
        routed.record.refusal = reply
        self.limiter.refund(routed.reservation)
        return True

    def aborted(self, routed: Routed, usage: Usage) -> bool:
        """Note that the client left; what it was sent by then is charged."""
        if not self._end(routed, "aborted", None):
            return False
        routed.record.outcome.completion_tokens = usage.completion_tokens
        routed.record.outcome.partial = usage.partial
        self.limiter.settle(routed.reservation, usage)
        return True

    def expire(self) -> int:
        """Release leases and claims that no door has ended in time; return how many leases."""
        now = self.clock.monotonic()
        self.overlay.expire(now)
        self.overlay.expire_lost(now)
        return self.inflight.expire(now)

    def _admission(self, request: Canonical) -> Refusal | None:
        if self.draining:
            return Draining()
        if not self.cluster.engines(request.model):
            if self.cluster.has_unseen():
                return NoEngineReady(request.model)
            served = tuple(model.name for model in self.cluster.models())
            return UnknownModel(request.model, served)
        return None

    async def _observe(self, record: Record, request: Canonical) -> Tokenized:
        record.tags = await self.tagger.tags(request)
        tokenized = await self.tokens.of(request, self.cluster.reachable(request.model))
        record.tokens = tokenized.state.value
        record.tokens_reason = tokenized.reason
        record.prompt_tokens = tokenized.count
        return tokenized

    def _decide(
        self, record: Record, request: Canonical, tokenized: Tokenized
    ) -> tuple[Decision | Undecided, Keys]:
        verdict = default_route(ModelName(request.model))
        record.policy, record.rule, record.stage = verdict.policy, verdict.rule, verdict.stage
        now = self.clock.monotonic()
        self.overlay.expire(now)
        held, keys = self._held(verdict, request, tokenized)
        decided = decide(
            Facts(
                model=verdict.models[0],
                prompt_tokens=tokenized.count,
                load_tokens=_load_tokens(request, tokenized),
            ),
            self._field(verdict.models[0], now),
            held,
            partial(self.inflight.queues, now=now),
            self.recent.seconds,
            self.predictor,
            self.rng,
        )
        record.dropped = decided.dropped
        if isinstance(decided, Decision):
            record.decision = decided
        return decided, keys

    def _field(self, model: ModelName, now: float) -> Field:
        """Return the model's engines in the running; the views of a moment give one field."""
        views = self.cluster.views(model, now)
        kept = self._fields.get(model)
        if kept is None or kept[0] is not views:
            if len(self._fields) >= FIELDS:
                self._fields.clear()
            kept = self._fields[model] = views, field_of(views)
        return kept[1]

    def _held(
        self, verdict: Verdict, request: Canonical, tokenized: Tokenized
    ) -> tuple[Held, Keys]:
        """Return what engines hold of the prompt, and its keys by group."""
        indexed: dict[EngineId, Units] = {}
        claimed: dict[EngineId, int] = {}
        chains: dict[str | None, list[BlockKey]] = {}
        keys: dict[GroupId, list[BlockKey]] = {}
        count = tokenized.count
        limit = None if count is None else max(0, count - 1) // hashing.UNIT
        for model in verdict.models if tokenized.packed else ():
            for group, lora in self.cluster.groups(model):
                if lora not in chains:
                    seed = hashing.seed(self.secret, lora, request.cache_salt)
                    chains[lora] = hashing.chain(seed, tokenized.packed or b"")
                keys[group] = hashing.strided(chains[lora], STRIDE)
                if not request.skips_cache:
                    indexed |= self.overlaps.overlap(group, chains[lora], limit)
                    claimed |= self.overlay.units(group, keys[group])
        return Held(indexed, claimed), keys

    def _overdue(self, candidate: Candidate, keys: Keys) -> int:
        """Return the leading tokens that an engine should long have announced."""
        if not candidate.speculative_tokens:
            return 0
        engine, now = candidate.target, self.clock.monotonic()
        prompt = keys.get(engine.group, ())
        return hashing.UNIT * self.overlay.overdue(engine.group, prompt, engine.id, now)

    def _account(
        self, candidate: Candidate, load_tokens: int, streams: bool, keys: Keys
    ) -> tuple[Lease, Claim | None]:
        """Count a request on its engine: in its queue, in its cache, in its recent work."""
        engine, now = candidate.target, self.clock.monotonic()
        due, deadline = now + candidate.wait_s + candidate.own_s, now + self.lease_s
        uncached = max(0, load_tokens - candidate.cached_tokens)
        lease = self.inflight.take(
            engine.id, uncached, candidate.own_s, now, deadline, None if streams else due
        )
        prompt, at_end = keys.get(engine.group, ()), candidate.view.hit_points
        claim = self.overlay.take(engine.id, engine.group, prompt, deadline, at_end)
        self.recent.note(engine, candidate.own_s)
        return lease, claim

    def _settle(self, routed: Routed, now: float) -> None:
        """Note that the prompt is in the engine's cache."""
        if routed.claim:
            self.overlay.settle(routed.claim, now)
        routed.keys = {}

    def _next(self, record: Record) -> Candidate | None:
        if record.decision is None:
            return None
        tried = {attempt.engine for attempt in record.attempts}
        views = self.cluster.views(record.model, self.clock.monotonic())
        away = {view.engine.id for view in views if view.away}
        failing = {view.engine.id for view in views if view.failing}
        left = [c for c in record.decision.ranked if c.target.id not in tried | away]
        return next((c for c in left if c.target.id not in failing), next(iter(left), None))

    def _end(self, routed: Routed, end: str, status: int | None) -> bool:
        now = self.clock.monotonic()
        self.inflight.release(routed.lease, now)
        if routed.claim:
            self.overlay.drop(routed.claim)  # unless it is settled
        outcome: Outcome = routed.record.outcome
        if outcome.end is not None:
            return False
        outcome.end, outcome.status, outcome.duration_s = end, status, now - routed.started
        return True

    def _refuse(self, record: Record, refusal: Refusal) -> Refused:
        record.refusal = to_reply(refusal)
        record.outcome.end, record.outcome.status = "refused", record.refusal.status
        self.records.add(record)
        return Refused(record, refusal)

    def _record(self, request: Canonical, tenant: TenantId, request_id: str) -> Record:
        record = self._new_record(tenant, request_id)
        record.api, record.model, record.stream = request.api.value, request.model, request.stream
        record.comparable = request.is_single
        return record

    def _new_record(self, tenant: TenantId, request_id: str) -> Record:
        return Record(
            id=secrets.token_hex(8), at=self.clock.unix(), request_id=request_id, tenant=tenant
        )


def _load_tokens(request: Canonical, tokenized: Tokenized) -> int:
    if tokenized.count is not None:
        return tokenized.count * max(1, len(request.prompts))
    if tokenized.packed is not None:
        return len(tokenized.packed) // 4 + MEDIA_TOKENS
    return len(request.raw) // BYTES_PER_TOKEN
