"""One record for each request: what was decided, on what, and what came of it. Pure.

Written by the service alone; read by the debug endpoints and by metrics. Content-free: it holds
names, numbers and reasons, never text, token ids, block keys or header values.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeAlias

from coordinator.attempts import Attempt
from coordinator.candidates import Candidate
from coordinator.refusal import Reply
from coordinator.route import Decision
from coordinator.tokens.tokenized import Tokenized
from lineside.ids import EngineId, TenantId
from policies.facts import Truth
from policies.model import SetFields
from policies.verdict import Chosen

CAPACITY = 2000
"""Records kept, about 2 kB each with a few engines; the oldest goes first."""

End: TypeAlias = Literal[
    "finished", "rejected", "failed", "aborted", "refused", "unfollowed", "unreported"
]
"""How a request ended: answered; the engine refused it; no answer; the client left; we refused;
a gateway that sent it by itself said how its answer began, and no more; or never said anything."""


@dataclass(slots=True)
class Outcome:
    """What came of a decision, beside what was predicted. `None`: not known, or not yet."""

    end: End | None = None
    status: int | None = None
    finish: str | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    partial: bool = False
    """The answer was broken off: its tokens are those that were seen to pass."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. Filled in as it goes; `outcome.end` is set once."""

    id: str
    at: float
    request_id: str
    api: str = ""
    model: str = ""
    stream: bool = False
    tenant: TenantId
    tags: Mapping[str, Truth] = field(default_factory=dict)
    tokens: str = "unknown"
    tokens_reason: str = ""
    prompt_tokens: int | None = None
    comparable: bool = True
    """One sequence: what the engine reports as cached is what was predicted for."""
    policy: str = ""
    rule: str = ""
    stage: str = ""
    decision: Decision | None = None
    served_by: Candidate | None = None
    overdue_tokens: int = 0
    """Leading tokens that the serving engine computed so long ago that it should have said so."""
    refusal: Reply | None = None
    attempts: list[Attempt] = field(default_factory=list)
    passed_over: dict[EngineId, str] = field(default_factory=dict)
    """Backends that its body could not be put to, and what stands in the way."""
    outcome: Outcome = field(default_factory=Outcome)

    def note_tokens(self, tokenized: Tokenized) -> None:
        """Note how the prompt's tokens are known."""
        self.tokens, self.tokens_reason = tokenized.state.value, tokenized.reason
        self.prompt_tokens = tokenized.count

    @property
    def _predicted(self) -> Candidate | None:
        """The serving engine, where anything was predicted of its cache.

        Not without the prompt's tokens, and not of an engine of whose cache nothing is known: to
        say nothing is not to say that it holds nothing.
        """
        of = self.served_by
        if of is None or of.uncached_tokens is None or not self.comparable:
            return None
        return of if of.view is not None and of.view.cache_usable else None

    @property
    def predicted_cached_tokens(self) -> int | None:
        """What the engine should report at least, by the index; `None`: nothing was predicted.

        Our own decisions in flight are left out: they would hide an index that says nothing.
        """
        return None if (of := self._predicted) is None else of.overlap_tokens

    @property
    def speculative_tokens(self) -> int | None:
        """What the engine may report beyond that, since a request before this one computes it."""
        return None if (of := self._predicted) is None else of.speculative_tokens

    @property
    def excused_tokens(self) -> int:
        """What of the speculative tokens the engine cannot have been asked to announce yet."""
        candidate = self.served_by
        if candidate is None:
            return 0
        known = max(candidate.overlap_tokens, self.overdue_tokens)
        return max(0, candidate.cached_tokens - known)

    @property
    def predicted_ttft_s(self) -> float | None:
        """The time to first token that the serving engine was chosen by."""
        return self.served_by.predicted_ttft_s if self.served_by else None

    def to_json(self) -> dict[str, Any]:
        """Return the shape that debug endpoints and replay share."""
        shown: dict[str, Any] = {
            "id": self.id,
            "at": self.at,
            "request_id": self.request_id,
            "api": self.api,
            "model": self.model,
            "stream": self.stream,
        }
        if self.refusal is not None:
            shown["refusal"] = {
                "reason": self.refusal.reason,
                "status": self.refusal.status,
                "message": self.refusal.message,
            }
        if self.decision is not None and self.served_by is not None:
            shown["decision"] = _decision_json(self.decision, self.served_by)
        decision = self.decision
        candidates = (*decision.ranked, *decision.dropped) if decision else ()
        shown |= {
            "tokens": self.tokens,
            "tokens_reason": self.tokens_reason,
            "prompt_tokens": self.prompt_tokens,
            "tenant": self.tenant,
            "tags": {name: truth.value for name, truth in self.tags.items()},
            "policy": self.policy,
            "rule": self.rule,
            "stage": self.stage,
            **_verdict_json(decision),
            "candidates": [_candidate_json(candidate) for candidate in candidates],
            "attempts": [_attempt_json(attempt) for attempt in self.attempts],
            "passed_over": self.passed_over,
            "outcome": self._outcome_json(),
        }
        return shown

    def _outcome_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "end": outcome.end,
            "status": outcome.status,
            "finish": outcome.finish,
            "ttft_s": outcome.ttft_s,
            "predicted_ttft_s": self.predicted_ttft_s,
            "cached_tokens": outcome.cached_tokens,
            "predicted_cached_tokens": self.predicted_cached_tokens,
            "speculative_tokens": self.speculative_tokens,
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": outcome.completion_tokens,
            "partial": outcome.partial,
            "duration_s": outcome.duration_s,
        }


def _decision_json(decision: Decision, served_by: Candidate) -> dict[str, Any]:
    return {
        "id": served_by.target.id,
        "endpoint": served_by.target.endpoint,
        "model": served_by.model,
        "type": served_by.type,
        "rank": served_by.target.rank,
        "predicted_ttft_s": served_by.predicted_ttft_s,
        "fallbacks": [c.target.id for c in decision.ranked if c is not served_by],
        "leaned_over": _leaned_over(decision, served_by),
    }


def _leaned_over(decision: Decision, served_by: Candidate) -> str | None:
    """Return what cost alone would have chosen, where an engine of the own share was preferred."""
    if not served_by.lean_s or served_by.cost is None:
        return None
    stage = [c for c in decision.ranked if c.stage == served_by.stage and c.cost is not None]
    cheapest = min(stage, key=lambda each: each.cost or 0.0)
    return cheapest.target.id if (cheapest.cost or 0.0) < served_by.cost else None


def _verdict_json(decision: Decision | None) -> dict[str, Any]:
    """Return what policies said beside the choice."""
    if decision is None:
        return {"guards": [], "unknown": [], "shadow": {}, "set": None}
    verdict = decision.verdict
    return {
        "guards": [str(guard) for guard in verdict.guards],
        "unknown": list(verdict.unknown),
        "shadow": dict(verdict.shadow),
        "set": _set_json(verdict.set) if isinstance(verdict, Chosen) and verdict.set else None,
    }


def _set_json(asked: SetFields) -> dict[str, Any]:
    """Return what a policy set; of headers their names alone, for values may be secrets."""
    return {
        "maxTokens": asked.max_tokens,
        "defaults": asked.defaults,
        "parameters": asked.parameters,
        "headers": sorted(asked.headers or {}),
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    view = candidate.view
    load = view.fresh_load if view else None
    return {
        "id": candidate.target.id,
        "endpoint": candidate.target.endpoint,
        "model": candidate.model,
        "type": candidate.type,
        "stage": candidate.stage or None,
        "overlap_tokens": candidate.overlap_tokens,
        "speculative_tokens": candidate.speculative_tokens,
        "uncached_tokens": candidate.uncached_tokens,
        "predicted_ttft_s": candidate.predicted_ttft_s,
        "cost": candidate.cost,
        "wait_s": candidate.wait_s,
        "own_s": candidate.own_s,
        "outstanding": candidate.outstanding,
        "queued_prompts": candidate.queued,
        "running_prompts": candidate.running,
        "kv_cache_usage": load.kv_cache_usage if load else None,
        "gpu_utilization": view.gpu_utilization if view else None,
        "predicted_e2e_s": candidate.predicted_e2e_s,
        "price": candidate.price,
        "pools": sorted(candidate.pools),
        "newcomer_full": candidate.is_full,
        "recent_s": candidate.recent_s,
        "lean_s": candidate.lean_s,
        "cache_state": view.cache_state if view else None,
        "reason": candidate.reason,
        "dropped_by": candidate.dropped_by or None,
        "ages": {
            "cache_s": view.heard_age_s if view else None,
            "load_s": view.load_age_s if view else None,
        },
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "engine": attempt.engine,
        "repeat": attempt.repeat.value,
        "reason": attempt.reason,
    }


class Records:
    """The latest records, in a ring."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._records: OrderedDict[str, Record] = OrderedDict()  # a `dict` seeks its first one

    def add(self, record: Record) -> None:
        """Keep a record, and drop the oldest when there is no room."""
        if len(self._records) >= self._capacity:
            self._records.popitem(last=False)
        self._records[record.id] = record

    def get(self, record_id: str) -> Record | None:
        """Return one record, if it is still kept."""
        return self._records.get(record_id)

    def latest(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        refused: bool | None = None,
        limit: int = 100,
    ) -> list[Record]:
        """Return records that match, newest first. `None` matches all."""
        matching = (
            record
            for record in self._newest_first()
            if (tenant is None or record.tenant == tenant)
            and (model is None or record.model == model)
            and (refused is None or (record.refusal is not None) == refused)
        )
        return list(islice(matching, limit))

    def _newest_first(self) -> Iterator[Record]:
        return reversed(self._records.values())
