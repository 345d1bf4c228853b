"""The one service behind all doors: a canonical request in, a backend or a refusal out.

    tags -> tokens, plan -> reserve -> decide and account in one step        (see `decider`)

Owns a request's lease, claim, reservation and record from the decision to its end; a door reports
what happened and never touches them. No logging and no metrics here: `metrics.MeteredService` wraps
it.
"""

import math
import os
from dataclasses import dataclass

from coordinator.accounting import account, overdue
from coordinator.attempts import Attempt, may_repeat
from coordinator.bodies import Bodies
from coordinator.candidates import Candidate
from coordinator.canonical import BadRequest, Canonical
from coordinator.cluster import Cluster
from coordinator.decider import Decider
from coordinator.engines import Engine
from coordinator.heavy import Heavy
from coordinator.holdings.audit import Audit
from coordinator.holdings.overlay import Overlay
from coordinator.limits import Limiter, Reservation, Usage
from coordinator.load.inflight import InFlight
from coordinator.load.lessons import learn
from coordinator.records import End, Record, Records
from coordinator.refusal import (
    Draining,
    NoEngineReady,
    OverLimit,
    PolicyDenied,
    Refusal,
    UnknownModel,
    blamed,
    to_reply,
)
from coordinator.route import Decision
from coordinator.routed import Refused as Refused
from coordinator.routed import Routed as Routed
from coordinator.routed import rest_of
from coordinator.seen import Keys, Seen
from coordinator.tagging import Tagger
from coordinator.targets import ANYWHERE, Reach
from coordinator.translate.requests import Untranslatable
from coordinator.unserved import why_unserved
from lineside.clock import Clock
from lineside.ids import ModelName, TenantId
from policies.verdict import Chosen, Denied

UNTOLD, UNTOLD_S = 2.0, 0.25
"""A first token of which nobody told has come by then: so often what was predicted, and so much."""


@dataclass(kw_only=True)
class Service:
    """Decides, accounts, and follows each request to its end."""

    decider: Decider
    limiter: Limiter
    tagger: Tagger
    records: Records
    lease_s: float
    audit: Audit
    shed_wait_s: float = math.inf
    """When all engines that may serve a request are predicted to be so far behind, it is shed."""
    draining: bool = False

    def __post_init__(self) -> None:
        self.bodies = Bodies()
        self.heavy = Heavy()

    @property
    def cluster(self) -> Cluster:
        """The engines."""
        return self.decider.cluster

    @property
    def inflight(self) -> InFlight:
        """The leases."""
        return self.decider.inflight

    @property
    def overlay(self) -> Overlay:
        """The claims."""
        return self.decider.overlay

    @property
    def clock(self) -> Clock:
        """The time."""
        return self.decider.clock

    async def route(
        self,
        request: Canonical,
        tenant: TenantId,
        request_id: str,
        reach: Reach = ANYWHERE,
    ) -> Routed | Refused:
        """Choose a backend and take a lease on it. Every `Routed` must be ended by its door.

        `reach`: what backends there are to choose from.
        """
        started = self.clock.monotonic()
        record = self._record(request, tenant, request_id)
        seen = await self._see(record, request)
        if not isinstance(seen, Seen):
            return self._refuse(record, seen)
        model, count = ModelName(request.model), seen.tokenized.count
        granted = await self.limiter.reserve(tenant, model, count, request.max_tokens)
        if isinstance(granted, OverLimit):
            return self._refuse(record, granted)
        routed = self._taken(record, request, seen, reach, granted, started)
        if not isinstance(routed, Routed):
            self.limiter.refund(granted)
            return self._refuse(record, routed)
        self.records.add(record)
        return routed

    async def dry_run(self, request: Canonical, tenant: TenantId) -> Record:
        """Decide as `route` would, account nothing, keep no record."""
        record = self._record(request, tenant, "dry-run")
        seen = await self._see(record, request)
        if not isinstance(seen, Seen):
            record.refusal = to_reply(seen)
            return record
        decision, _ = self._decide(record, seen)
        if unserved := why_unserved(request.model, decision, self.shed_wait_s):
            record.refusal = to_reply(unserved)
        else:
            record.served_by = decision.chosen
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
        if not may_repeat(record.attempts) or routed.seen is None:
            return False
        asked, announces, now = routed.verdict.set, self.audit.asks, self.clock.monotonic()
        found = self.bodies.first(routed.request, self._left(routed), asked, record, announces, now)
        if not isinstance(found, tuple):
            return False
        candidate, body = found
        self._move(routed, candidate, routed.seen)
        routed.body = body
        return True

    def pass_over(self, routed: Routed, unfit: Untranslatable) -> bool:
        """Move on from a backend that a request cannot be put to; return whether there is one."""
        routed.record.passed_over[routed.target.id] = unfit.message
        if routed.seen is None or (left := next(iter(self._left(routed)), None)) is None:
            return False
        self._move(routed, left, routed.seen)
        return True

    def again(self, routed: Routed, failed: Attempt) -> bool:
        """Ask the same backend once more, without its usage; return whether that may be."""
        routed.record.attempts.append(failed)
        if not may_repeat(routed.record.attempts):
            return False
        routed.meter, asked = False, routed.verdict.set
        routed.body = self.bodies.unmetered(routed.request, routed.candidate, asked)
        return True

    def fallbacks(self, routed: Routed, most: int) -> list[tuple[Candidate, bytes]]:
        """Return where a request may go if its backend fails, in order, each with its body.

        For gateways that send requests themselves; they say later whether they took one.
        """
        decision = routed.record.decision
        assert decision is not None
        return list(self.bodies.each(routed.request, decision.fallbacks(most), routed.verdict.set))

    def handed_over(self, routed: Routed) -> float:
        """Let go of a request that its gateway sends by itself; return when it leaves its queue.

        A gateway may never say that its first token came, so that is long after it was due.
        """
        predicted_s = routed.candidate.wait_s + routed.candidate.own_s
        due = routed.decided + UNTOLD_S + UNTOLD * predicted_s
        self.inflight.hand_over(routed.lease, due)
        routed.request, routed.body = routed.request.bare(), b""
        if routed.seen is not None:
            routed.seen = routed.seen.bare(routed.request)
        return due

    def went_on(self, routed: Routed, failed: Attempt, to: Candidate) -> bool:
        """Note that a gateway took a fallback by itself; return whether that can be."""
        if routed.seen is None:
            return False
        routed.record.attempts.append(failed)
        self._move(routed, to, routed.seen)
        self.handed_over(routed)
        return True

    def first_token(self, routed: Routed, age_s: float = 0.0) -> None:
        """Note that the prefill is over, since a while ago."""
        now = max(routed.decided, self.clock.monotonic() - age_s)
        routed.own_s = self.inflight.first_token(routed.lease, now)
        self._settle(routed, now)
        outcome, predicted_s = routed.record.outcome, routed.candidate.predicted_ttft_s
        if outcome.ttft_s is None:
            outcome.ttft_s, routed.ttft_s = now - routed.started, now - routed.decided
            if predicted_s is not None and isinstance(routed.target, Engine):
                self.decider.predictor.observe(routed.target, predicted_s, routed.ttft_s)

    def finished(
        self, routed: Routed, status: int, usage: Usage, finish: str | None, age_s: float = 0.0
    ) -> bool:
        """Note an answer, of any status: the engine's own refusals count as `rejected`.

        This and the other ends return whether this call ended the request.
        """
        if status < 400:
            self._settle(routed, self.clock.monotonic())
        if not self._end(routed, "finished" if status < 400 else "rejected", status, age_s):
            return False
        outcome = routed.record.outcome
        outcome.finish = finish
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.cached_tokens = usage.cached_tokens
        outcome.completion_tokens = usage.completion_tokens
        if status < 400:
            self.limiter.settle(routed.reservation, usage)
            self._learn(routed, usage)
        else:
            self.limiter.refund(routed.reservation)
        return True

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        """Note that no answer came, or only a part of one."""
        reply = to_reply(blamed(refusal, routed.candidate.type))
        end: End = "refused" if isinstance(refusal, BadRequest) else "failed"
        if not self._end(routed, end, reply.status):
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

    def unreported(self, routed: Routed, status: int | None = None) -> bool:
        """Note that of a request that a gateway sent no more is said than its answer's `status`."""
        if status is not None and not routed.record.stream:  # computed before its head was sent
            self._settle(routed, self.clock.monotonic())
        if not self._end(routed, "unfollowed" if status else "unreported", status):
            return False
        self.limiter.settle(routed.reservation, Usage(partial=True))
        return True

    def expire(self) -> int:
        """Release leases and claims that no door has ended in time; return how many leases."""
        now = self.clock.monotonic()
        self.overlay.expire(now)
        self.overlay.expire_lost(now)
        return self.inflight.expire(now)

    async def _see(self, record: Record, request: Canonical) -> Seen | Refusal:
        if self.draining:
            return Draining()
        record.tags = await self.tagger.tags(request)
        seen = await self.decider.see(request, record.tenant, record.tags)
        if isinstance(seen, Denied):
            record.policy, record.rule = seen.source.policy, seen.source.rule
            return PolicyDenied(seen.message, seen.status)
        record.note_tokens(seen.tokenized)
        return self._unknown(request.model, seen) if seen.is_hopeless else seen

    def _unknown(self, model: str, seen: Seen) -> Refusal:
        if self.cluster.has_unseen():
            return NoEngineReady(model)
        return UnknownModel(model, tuple(sorted(seen.bench.layout.inventory.models)))

    def _decide(self, record: Record, seen: Seen, reach: Reach = ANYWHERE) -> tuple[Decision, Keys]:
        decision, keys = self.decider.decide(seen, reach)
        record.decision, verdict = decision, decision.verdict
        record.policy, record.rule = verdict.source.policy, verdict.source.rule
        record.stage = verdict.source.part
        if isinstance(verdict, Chosen):
            record.note_tokens(seen.tokens.get(decision.chosen.model, seen.tokenized))
        return decision, keys

    def _taken(
        self,
        record: Record,
        request: Canonical,
        seen: Seen,
        reach: Reach,
        granted: Reservation,
        started: float,
    ) -> Routed | Refusal:
        """Decide and account in one step, without an await: load that is read is load reserved."""
        decision, keys = self._decide(record, seen, reach)
        goes_on = request.previous_response is not None
        if unserved := why_unserved(request.model, decision, self.shed_wait_s, goes_on):
            return unserved
        assert isinstance(decision.verdict, Chosen)
        now = self.clock.monotonic()
        asked, announces = decision.verdict.set, self.audit.asks
        first = self.bodies.first(request, decision.in_turn(), asked, record, announces, now)
        if not isinstance(first, tuple):
            return first or NoEngineReady(request.model)
        chosen, body = first
        record.overdue_tokens = overdue(self.decider, chosen, keys)
        # What may fail is behind us: a lease that is taken gets into its door's hands.
        lease, claim = account(self.decider, chosen, seen, keys, self.lease_s)
        record.served_by = chosen
        return Routed(
            record=record,
            request=request,
            candidate=chosen,
            body=body,
            lease=lease,
            claim=claim,
            seen=seen,
            keys=keys,
            verdict=decision.verdict,
            reservation=granted,
            started=started,
            decided=now,
        )

    def _move(self, routed: Routed, candidate: Candidate, seen: Seen) -> None:
        """Take a request's lease and claim from one backend to another."""
        self.inflight.release(routed.lease, self.clock.monotonic())
        if routed.claim:
            self.overlay.drop(routed.claim)
        routed.record.overdue_tokens = overdue(self.decider, candidate, routed.keys)
        taken = account(self.decider, candidate, seen, routed.keys, self.lease_s)
        routed.lease, routed.claim = taken
        routed.body, routed.meter = None, True
        routed.candidate = routed.record.served_by = candidate
        routed.decided = self.clock.monotonic()

    def _left(self, routed: Routed) -> list[Candidate]:
        """Return the fallbacks that may still be tried, in order."""
        now, cooldowns = self.clock.monotonic(), self.decider.cooldowns
        views = self.cluster.snapshot(now).engines
        return rest_of(routed.record, views, lambda provider: cooldowns.pause(provider, now))

    def _settle(self, routed: Routed, now: float) -> None:
        """Note that the prompt is in the engine's cache."""
        if routed.claim:
            self.overlay.settle(routed.claim, now)
        routed.keys, routed.seen = {}, None

    def _learn(self, routed: Routed, usage: Usage) -> None:
        """Hold an answer against what was predicted of it."""
        engine = routed.target.id
        if self.audit.ended(routed.record):
            self.cluster.observe_word(engine, self.audit.word(engine))
        learn(
            self.decider.predictor, self.decider.answers, routed.record, usage, routed.own_s,
            routed.ttft_s, self.clock.monotonic() - routed.decided,
        )  # fmt: skip

    def _end(self, routed: Routed, end: End, status: int | None, age_s: float = 0.0) -> bool:
        now = self.clock.monotonic()
        self.inflight.release(routed.lease, now)
        if routed.claim:
            self.overlay.drop(routed.claim)  # unless it is settled
        outcome = routed.record.outcome
        if outcome.end is not None:
            return False
        outcome.end, outcome.status = end, status
        outcome.duration_s = max(0.0, now - age_s - routed.started)
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
        name, at = os.urandom(8).hex(), self.clock.unix()
        return Record(id=name, at=at, request_id=request_id, tenant=tenant)
