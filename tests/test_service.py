"""One request through the service: what is accounted, what is recorded, and what is given back."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from coordinator.attempts import Attempt, Repeat
from coordinator.canonical import Api, Canonical, parse
from coordinator.cluster import Cluster
from coordinator.decider import Decider
from coordinator.engines import Engine, ServedModel
from coordinator.holdings.audit import AGREEING, Audit
from coordinator.holdings.overlay import GRACE_S, Overlay
from coordinator.limits import Reservation, Usage
from coordinator.load.inflight import InFlight
from coordinator.load.predict import FixedRate
from coordinator.load.recent import RecentWork
from coordinator.measurement import Units
from coordinator.records import Records
from coordinator.refusal import (
    Draining,
    NoEngineReady,
    OverLimit,
    Overloaded,
    UnknownModel,
    UpstreamBroken,
)
from coordinator.rules import Rules
from coordinator.service import Refused, Routed, Service
from coordinator.state.secret import Secret
from coordinator.tagging import GivenTags
from coordinator.tokens.tokenized import Tokenized, TokenState
from lineside import hashing
from lineside.ids import BlockKey, EngineId, GroupId, ModelName, NodeId, TenantId
from lineside.signals import Events, Status
from tests.manual_clock import ManualClock

TENANT = TenantId("t")
SECRET = b"secret"
PROMPT = list(range(64))


class FixedTokens:
    """Knows the tokens of every request, or of none."""

    def __init__(self, tokenized: Tokenized) -> None:
        self.tokenized = tokenized

    async def of(self, canonical: Canonical, engines: Sequence[Engine]) -> Tokenized:
        return self.tokenized


@dataclass
class Held:
    """An index in which engines hold prompts. Remembers what was looked up."""

    units: dict[tuple[GroupId, BlockKey], dict[EngineId, Units]] = field(default_factory=dict)
    asked: list[tuple[GroupId, Sequence[BlockKey]]] = field(default_factory=list)

    limits: list[int | None] = field(default_factory=list)

    def alike(
        self, group: GroupId, unit_keys: Sequence[BlockKey], limit: int | None = None
    ) -> list[tuple[Units, tuple[EngineId, ...]]]:
        self.asked.append((group, unit_keys))
        self.limits.append(limit)
        found = self.units.get((group, unit_keys[0]), {})
        return [(units, (engine,)) for engine, units in found.items()]


@dataclass
class Ledger:
    """A limiter that remembers what it was told, and may refuse."""

    refuse: bool = False
    said: list[str] = field(default_factory=list)

    async def reserve(
        self, tenant: TenantId, model: ModelName, input_tokens: int | None, output: int | None
    ) -> Reservation | OverLimit:
        if self.refuse:
            return OverLimit("tokens", 3)
        self.said.append(f"reserve {input_tokens}+{output}")
        return Reservation(tenant, model, input_tokens, output)

    def settle(self, reservation: Reservation, usage: Usage) -> None:
        self.said.append(f"settle {usage.completion_tokens}")

    def refund(self, reservation: Reservation) -> None:
        self.said.append("refund")


def engine(name: str, group: str = "g", lora: str | None = None) -> Engine:
    return Engine(
        id=EngineId(name),
        base_url=f"http://{name}",
        endpoint=name,
        group=GroupId(group),
        models=(ServedModel(ModelName("m"), lora=lora),),
        node=NodeId("n"),
        events="tcp://e:1",
    )


@dataclass
class Bench:
    """A service over fakes."""

    service: Service
    clock: ManualClock
    ledger: Ledger
    held: Held

    @property
    def outstanding(self) -> int:
        return self.service.inflight.outstanding

    async def routed(self, **fields: Any) -> Routed:
        answer = await self.service.route(request(**fields), TENANT, "req")
        assert isinstance(answer, Routed)
        return answer

    async def refused(self, **fields: Any) -> Refused:
        answer = await self.service.route(request(**fields), TENANT, "req")
        assert isinstance(answer, Refused)
        return answer


def bench(
    *engines: Engine,
    tokenized: Tokenized | None = None,
    refuse: bool = False,
) -> Bench:
    clock, ledger, held, cluster = ManualClock(), Ledger(refuse), Held(), Cluster()
    cluster.assign(engines)
    for each in engines:
        cluster.observe_status(each.id, Status(Events.LIVE, block_size=16), clock.monotonic())
        cluster.observe_digest(each.id, "g1", True, False, clock.monotonic())
    packed = hashing.pack(PROMPT)
    decider = Decider(
        cluster=cluster,
        rules=Rules(cluster),
        overlaps=held,
        tokens=FixedTokens(tokenized or Tokenized(TokenState.EXACT, "given", packed, len(PROMPT))),
        inflight=InFlight(),
        overlay=Overlay(),
        recent=RecentWork(),
        predictor=FixedRate(1000.0, 0.01),
        clock=clock,
        rng=random.Random(1),
        secret=Secret(SECRET),
    )
    service = Service(
        decider=decider,
        limiter=ledger,
        tagger=GivenTags(),
        records=Records(),
        lease_s=100.0,
        audit=Audit(0.0, random.Random()),
    )
    return Bench(service, clock, ledger, held)


def request(**fields: Any) -> Canonical:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 7} | fields
    canonical = parse(Api.OPENAI_COMPLETIONS, {}, json.dumps(body).encode())
    assert isinstance(canonical, Canonical)
    return canonical


async def test_a_decision_is_accounted_in_the_same_step() -> None:
    b = bench(engine("a"), engine("b"))
    routed = [await b.routed(stream=True) for _ in range(10)]
    sent = [r.target.id for r in routed]
    assert sorted((sent.count(EngineId("a")), sent.count(EngineId("b")))) == [5, 5]
    queue = b.service.inflight.queue(EngineId("a"), b.clock.monotonic())
    assert (queue.outstanding, queue.queued_tokens) == (5, 64 + 4 * 16)  # one computes the prompt


async def test_keys_are_looked_up_by_group_adapter_and_salt() -> None:
    b = bench(engine("a", "g1"), engine("b", "g2", lora="sql"))
    routed = await b.routed(cache_salt="s")
    packed = hashing.pack(PROMPT)
    keys = {
        GroupId("g1"): hashing.chain(hashing.seed(SECRET, None, "s"), packed),
        GroupId("g2"): hashing.chain(hashing.seed(SECRET, "sql", "s"), packed),
    }
    assert dict(b.held.asked) == keys
    assert b.held.limits == [(len(PROMPT) - 1) // hashing.UNIT] * 2
    b.held.units[GroupId("g2"), keys[GroupId("g2")][0]] = {EngineId("b"): (3, 3, 3)}
    b.service.aborted(routed, Usage())
    routed = await b.routed(cache_salt="s")
    assert routed.target.id == "b"
    assert routed.record.predicted_cached_tokens == 48


def doubt(b: Bench, name: str = "a") -> None:
    """Let the engine's agent say, now, that events were lost."""
    unsure = Status(Events.UNSURE, "events were lost", block_size=16, announce=True)
    b.service.cluster.observe_status(EngineId(name), unsure, b.clock.monotonic())


async def test_an_unsure_engine_is_asked_to_announce_and_its_fallback_is_not() -> None:
    b = bench(*(replace(engine(name), version="0.32.0") for name in "ab"))
    b.service.audit = Audit(1.0, random.Random(1))
    key = hashing.chain(hashing.seed(SECRET), hashing.pack(PROMPT))[0]
    b.held.units[GroupId("g"), key] = {EngineId("a"): (3, 3, 3)}
    doubt(b)
    routed = await b.routed()
    assert routed.target.id == "a"
    assert json.loads(routed.body)["vllm_xargs"] == {"kv_cache_report_mode": "full"}
    assert b.service.fallback(routed, Attempt(EngineId("a"), Repeat.SAFE, "refused"))
    assert "vllm_xargs" not in json.loads(routed.body)


async def test_an_unsure_engine_that_reports_what_was_predicted_is_vouched_for() -> None:
    b = bench(engine("a"))
    key = hashing.chain(hashing.seed(SECRET), hashing.pack(PROMPT))[0]
    b.held.units[GroupId("g"), key] = {EngineId("a"): (3, 3, 3)}
    for _ in range(AGREEING):
        assert b.service.audit.take_due() == {}
        doubt(b)
        b.service.finished(await b.routed(), 200, Usage(64, 48, 1), "length")
        await b.clock.advance(GRACE_S + 1)
        b.service.expire()
    assert b.service.audit.take_due() == {EngineId("a"): "g1"}


async def test_what_is_in_flight_counts_until_the_index_has_had_time_to_say_so() -> None:
    b = bench(engine("a"))
    first = await b.routed(stream=True)
    second = await b.routed(stream=True)
    assert (second.record.predicted_cached_tokens, second.record.speculative_tokens) == (0, 48)
    assert second.candidate.uncached_tokens == 16
    b.service.aborted(second, Usage())
    b.service.first_token(first)
    await b.clock.advance(GRACE_S - 0.1)
    assert (await b.routed(stream=True)).record.speculative_tokens == 48
    b.service.expire()
    await b.clock.advance(0.2)
    third = await b.service.dry_run(request(), TENANT)
    assert third.speculative_tokens == 48  # of the request before it, which has not begun
    await b.clock.advance(100.0)
    b.service.expire()
    late = (await b.routed()).record
    assert late.speculative_tokens is None  # nothing was heard of the engine for so long
    assert late.served_by is not None and late.served_by.speculative_tokens == 0


@pytest.mark.parametrize("end", ["failed", "aborted", "rejected"])
@pytest.mark.parametrize("began", [False, True], ids=["before a token", "after the first token"])
async def test_what_failed_before_its_first_token_counts_no_more(end: str, began: bool) -> None:
    b = bench(engine("a"))
    routed = await b.routed(stream=True)
    if began:
        b.service.first_token(routed)
    match end:
        case "failed":
            b.service.failed(routed, UpstreamBroken())
        case "aborted":
            b.service.aborted(routed, Usage())
        case "rejected":
            b.service.finished(routed, 400, Usage(), None)
    assert (await b.routed()).record.speculative_tokens == (48 if began else 0)


async def test_a_fallback_takes_its_claim_along() -> None:
    b = bench(engine("a"), engine("b"))
    routed = await b.routed(stream=True)
    failed = routed.target.id
    b.service.fallback(routed, Attempt(failed, Repeat.SAFE, "refused"))
    record = await b.service.dry_run(request(), TENANT)
    assert record.decision
    ahead = {c.target.id: c.speculative_tokens for c in record.decision.ranked}
    assert ahead == {failed: 0, routed.target.id: 48}
    b.service.failed(routed, UpstreamBroken())
    assert b.service.overlay.claims == 0


async def test_a_prompt_whose_log_probabilities_are_asked_for_is_not_looked_up() -> None:
    """Engines then compute all of it anew, whatever they hold."""
    b = bench(engine("a"))
    await b.routed(prompt_logprobs=1)
    assert b.held.asked == []
    assert (await b.routed()).record.predicted_cached_tokens == 0
    assert len(b.held.asked) == 1


async def test_what_is_reported_of_several_sequences_is_compared_with_nothing() -> None:
    b = bench(engine("a"))
    outcome = (await b.routed(n=2)).record.to_json()["outcome"]
    assert outcome["predicted_cached_tokens"] is None
    assert outcome["speculative_tokens"] is None


async def test_a_finished_request_is_settled_once_and_paired() -> None:
    b = bench(engine("a"))
    routed = await b.routed(stream=True)
    await b.clock.advance(0.2)
    b.service.first_token(routed)
    await b.clock.advance(0.3)
    assert b.service.finished(routed, 200, Usage(64, 48, 7), "stop") is True
    assert b.service.failed(routed, UpstreamBroken()) is False
    assert b.service.aborted(routed, Usage()) is False
    assert b.ledger.said == ["reserve 64+7", "settle 7"]
    assert b.outstanding == 0
    shown = routed.record.to_json()
    assert shown["outcome"] == {
        "end": "finished",
        "status": 200,
        "finish": "stop",
        "ttft_s": pytest.approx(0.2),
        "predicted_ttft_s": pytest.approx(0.074),
        "cached_tokens": 48,
        "predicted_cached_tokens": 0,
        "speculative_tokens": 0,
        "prompt_tokens": 64,
        "completion_tokens": 7,
        "partial": False,
        "duration_s": pytest.approx(0.5),
    }
    assert "refusal" not in shown


async def test_the_engines_own_refusal_is_refunded() -> None:
    b = bench(engine("a"))
    routed = await b.routed()
    b.service.finished(routed, 400, Usage(), None)
    assert routed.record.outcome.end == "rejected"
    assert b.ledger.said == ["reserve 64+7", "refund"]
    assert b.outstanding == 0


async def test_a_failure_is_refunded_and_says_why() -> None:
    b = bench(engine("a"))
    routed = await b.routed()
    b.service.failed(routed, UpstreamBroken())
    assert routed.record.to_json()["refusal"]["reason"] == "upstream_broken"
    assert b.ledger.said == ["reserve 64+7", "refund"]
    assert b.outstanding == 0


async def test_an_abort_charges_what_was_sent() -> None:
    b = bench(engine("a"))
    routed = await b.routed()
    b.service.aborted(routed, Usage(completion_tokens=3))
    assert (routed.record.outcome.end, routed.record.outcome.completion_tokens) == ("aborted", 3)
    assert b.ledger.said == ["reserve 64+7", "settle 3"]


async def test_a_safe_failure_moves_the_lease_to_the_fallback() -> None:
    b = bench(engine("a"), engine("b"))
    routed = await b.routed()
    first = routed.target.id
    assert b.service.fallback(routed, Attempt(first, Repeat.SAFE, "refused")) is True
    second = routed.target.id
    assert {first, second} == {"a", "b"}
    now = b.clock.monotonic()
    load = {name: b.service.inflight.queue(EngineId(name), now).outstanding for name in "ab"}
    assert load == {first: 0, second: 1}
    assert routed.record.to_json()["decision"]["id"] == second
    assert b.service.fallback(routed, Attempt(second, Repeat.SAFE, "refused")) is False
    assert [attempt.engine for attempt in routed.record.attempts] == [first, second]


async def test_an_uncertain_failure_has_no_fallback() -> None:
    b = bench(engine("a"), engine("b"))
    routed = await b.routed()
    assert not b.service.fallback(routed, Attempt(routed.target.id, Repeat.UNCERTAIN, "broke"))


async def test_a_fallback_that_went_away_meanwhile_is_skipped() -> None:
    b = bench(engine("a"), engine("b"))
    routed = await b.routed()
    (other,) = {EngineId("a"), EngineId("b")} - {routed.target.id}
    b.service.cluster.observe_away(other, "cannot connect")
    assert not b.service.fallback(routed, Attempt(routed.target.id, Repeat.SAFE, "refused"))


async def test_a_model_that_an_unseen_engine_may_serve_is_not_unknown() -> None:
    b = bench(engine("a"), replace(engine("b"), models=()))
    b.service.cluster.observe_away(EngineId("b"), "not asked yet")
    assert (await b.refused(model="nope")).refusal == NoEngineReady("nope")
    b.service.cluster.observe_away(EngineId("b"), "")
    assert (await b.refused(model="nope")).refusal == UnknownModel("nope", ("m",))


async def test_refusals_are_recorded_and_hold_nothing() -> None:
    b = bench(engine("a"))
    refused = await b.refused(model="nope")
    assert refused.refusal == UnknownModel("nope", ("m",))
    b.service.cluster.observe_away(EngineId("a"), "cannot connect")
    assert (await b.refused()).refusal == NoEngineReady("m")
    b.service.draining = True
    assert (await b.refused()).refusal == Draining()
    reasons = [record.to_json()["refusal"]["reason"] for record in b.service.records.latest()]
    assert reasons == ["draining", "no_engine_ready", "unknown_model"]
    assert b.ledger.said == ["reserve 64+7", "refund"]
    assert b.outstanding == 0


async def test_over_a_limit_nothing_is_decided() -> None:
    b = bench(engine("a"), refuse=True)
    refused = await b.refused()
    assert refused.refusal == OverLimit("tokens", 3)
    assert refused.record.decision is None
    assert b.outstanding == 0


async def test_unknown_tokens_weigh_by_the_bodys_size() -> None:
    b = bench(engine("a"), tokenized=Tokenized(TokenState.UNKNOWN, "budget"))
    routed = await b.routed(stream=True)
    shown = routed.record.to_json()
    assert (shown["tokens"], shown["tokens_reason"]) == ("unknown", "budget")
    assert shown["candidates"][0]["uncached_tokens"] is None
    queued = b.service.inflight.queue(EngineId("a"), b.clock.monotonic()).queued_tokens
    assert queued == len(routed.request.raw) // 4


async def test_a_request_without_a_stream_stops_weighing_when_it_should_have_begun() -> None:
    b = bench(engine("a"))
    await b.routed()
    assert b.service.inflight.queue(EngineId("a"), b.clock.monotonic()).wait_s > 0
    await b.clock.advance(1.0)
    queue = b.service.inflight.queue(EngineId("a"), b.clock.monotonic())
    assert (queue.wait_s, queue.outstanding) == (0.0, 1)


async def test_a_forgotten_lease_expires() -> None:
    b = bench(engine("a"))
    await b.routed()
    await b.clock.advance(100.0)
    assert b.service.expire() == 1
    assert b.outstanding == 0


async def test_a_dry_run_decides_and_leaves_no_trace() -> None:
    b = bench(engine("a"))
    record = await b.service.dry_run(request(), TENANT)
    shown: Mapping[str, Any] = record.to_json()
    assert shown["decision"]["id"] == "a"
    assert (await b.service.dry_run(request(model="nope"), TENANT)).refusal is not None
    assert (b.outstanding, b.ledger.said, b.service.records.latest()) == (0, [], [])


async def test_a_record_holds_no_content() -> None:
    b = bench(engine("a"))
    routed = await b.routed(prompt="an unmistakable prompt", user="someone", cache_salt="salt1")
    text = repr(routed) + json.dumps(routed.record.to_json())
    assert not any(secret in text for secret in ("unmistakable", "someone", "salt1", "secret"))


async def test_a_request_is_shed_when_all_engines_are_too_far_behind() -> None:
    b = bench(engine("a"), engine("b"))
    b.service.shed_wait_s = 0.1
    prompt = list(range(1000, 1064))
    for number in range(4):  # 64 tokens at 1000 a second, after 10 ms: 74 ms each
        await b.routed(stream=True, prompt=prompt, cache_salt=str(number))
    refused = await b.refused(stream=True)
    assert isinstance(refused.refusal, Overloaded)
    assert (refused.refusal.wait_s, refused.refusal.retry_after_s) == (pytest.approx(0.148), 1)
    assert b.outstanding == 4
    assert b.ledger.said[-1] == "refund"
    await b.clock.advance(0.05)  # the heads get on
    await b.routed(stream=True)
