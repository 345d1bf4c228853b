"""This process's Prometheus metrics, in one class over a registry that is passed in.

Requests are counted from their records, by a service that wraps the plain one; gauges are read
from the parts when Prometheus asks. Label values come from closed lists or from discovery.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.canonical import Canonical
from coordinator.engines import EngineView
from coordinator.holdings import audit
from coordinator.holdings.caches import Caches
from coordinator.holdings.cap import IndexCap, State
from coordinator.limits import Usage
from coordinator.readiness import CODES, Readiness
from coordinator.records import Record
from coordinator.refusal import Refusal
from coordinator.service import Refused, Routed, Service
from coordinator.targets import ANYWHERE, Reach
from lineside.ids import EngineId, GroupId, TenantId

CACHE_STATES = (
    "live",
    "unsure",
    "stale",
    "unproven",
    "lost",
    "filling",
    "connecting",
    "unusable",
    "none",
)

_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """What is counted as requests pass."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=_SECONDS)
        self.requests = counter(
            "lineside_requests", "Requests, by API and by how they ended", ["api", "end"]
        )
        self.refusals = counter(
            "lineside_refusals", "Requests without an engine's answer, by reason", ["reason"]
        )
        self.attempts = counter(
            "lineside_failed_attempts", "Failed tries, by whether they may be repeated", ["repeat"]
        )
        self.tokens = counter(
            "lineside_tokenized_requests",
            "Requests by how their tokens are known, and why",
            ["state", "reason"],
        )
        # Prometheus' client takes 2 us to find a series; of these there are few.
        self._requests, self._tokenized = cache(self.requests.labels), cache(self.tokens.labels)
        self.prompt_tokens = counter("lineside_prompt_tokens", "Prompt tokens, say the engines")
        self.completion_tokens = counter(
            "lineside_completion_tokens", "Output tokens, say the engines"
        )
        self.decision_seconds = seconds(
            "lineside_decision_seconds",
            "From the canonical request to the decision, tokenizing included",
            buckets=_SHORT_SECONDS,
        )
        self.ttft_seconds = seconds(
            "lineside_ttft_seconds", "Time to first token of streams, as the gateway saw it"
        )
        self._pair(counter, seconds)

    def _pair(self, counter: "partial[Counter]", seconds: "partial[Histogram]") -> None:
        """Make what sets predictions beside outcomes."""
        self.ttft_error_seconds = seconds(
            "lineside_ttft_error_seconds",
            "How far the predicted time to first token was off, by direction",
            ["direction"],
        )
        self.cached_tokens = counter(
            "lineside_cached_tokens",
            "Prompt tokens found in caches, where both a prediction and the engine's word exist;"
            " speculative: beyond the index, by requests in flight; confirmed: those reported",
            ["source"],
        )
        self.cached_tokens_error = counter(
            "lineside_cached_tokens_error",
            "Sum of differences between predicted and reported cached tokens, by direction;"
            " what lies within the speculative ones is none",
            ["direction"],
        )
        for source in ("predicted", "speculative", "confirmed", "reported"):
            self.cached_tokens.labels(source)
        for direction in ("too_long", "too_short"):
            self.ttft_error_seconds.labels(direction)
        for direction in ("too_many", "too_few"):
            self.cached_tokens_error.labels(direction)

    def decided(self, record: Record, seconds: float) -> None:
        """Count a decision or a refusal."""
        self.decision_seconds.observe(seconds)
        self._tokenized(record.tokens, record.tokens_reason or "none").inc()
        if record.refusal is not None:
            self.ended(record)

    def ended(self, record: Record) -> None:
        """Count a request's end."""
        outcome = record.outcome
        self._requests(record.api or "none", outcome.end or "none").inc()
        if record.refusal is not None:
            self.refusals.labels(record.refusal.reason).inc()
        for attempt in record.attempts:
            self.attempts.labels(attempt.repeat.value).inc()
        if outcome.prompt_tokens:
            self.prompt_tokens.inc(outcome.prompt_tokens)
        if outcome.completion_tokens:
            self.completion_tokens.inc(outcome.completion_tokens)
        if outcome.ttft_s is not None:
            self.ttft_seconds.observe(outcome.ttft_s)
            if record.predicted_ttft_s is not None:
                error = record.predicted_ttft_s - outcome.ttft_s
                self.ttft_error_seconds.labels("too_long" if error > 0 else "too_short").observe(
                    abs(error)
                )
        self._compare(record, outcome.cached_tokens)

    def _compare(self, record: Record, reported: int | None) -> None:
        """Hold the index's word against the engine's; requests in flight explain a bounded more."""
        predicted, speculative = record.predicted_cached_tokens, record.speculative_tokens
        if predicted is None or speculative is None or reported is None:
            return
        more = max(0, reported - predicted)
        self.cached_tokens.labels("predicted").inc(predicted)
        self.cached_tokens.labels("speculative").inc(speculative)
        self.cached_tokens.labels("confirmed").inc(min(more, speculative))
        self.cached_tokens.labels("reported").inc(reported)
        self.cached_tokens_error.labels("too_many").inc(max(0, predicted - reported))
        self.cached_tokens_error.labels("too_few").inc(max(0, more - speculative))


@dataclass(kw_only=True)
class MeteredService(Service):
    """The service, counted from outside."""

    metrics: Metrics

    async def route(
        self,
        request: Canonical,
        tenant: TenantId,
        request_id: str,
        reach: Reach = ANYWHERE,
    ) -> Routed | Refused:
        started = self.clock.monotonic()
        answer = await super().route(request, tenant, request_id, reach)
        self.metrics.decided(answer.record, self.clock.monotonic() - started)
        return answer

    def refuse(self, refusal: Refusal, tenant: TenantId, request_id: str) -> Refused:
        refused = super().refuse(refusal, tenant, request_id)
        self.metrics.ended(refused.record)
        return refused

    def finished(
        self, routed: Routed, status: int, usage: Usage, finish: str | None, age_s: float = 0.0
    ) -> bool:
        return self._count(routed, super().finished(routed, status, usage, finish, age_s))

    def failed(self, routed: Routed, refusal: Refusal) -> bool:
        return self._count(routed, super().failed(routed, refusal))

    def aborted(self, routed: Routed, usage: Usage) -> bool:
        return self._count(routed, super().aborted(routed, usage))

    def unreported(self, routed: Routed, status: int | None = None) -> bool:
        return self._count(routed, super().unreported(routed, status))

    def _count(self, routed: Routed, ended: bool) -> bool:
        if ended:
            self.metrics.ended(routed.record)
        return ended


class Gauges(Collector):
    """What is read from the coordinator's parts whenever Prometheus asks."""

    def __init__(
        self,
        *,
        service: Service,
        readiness: Readiness,
        caches: Caches,
        cap: IndexCap,
        agents: Callable[[], dict[str, int]],
        loop_lag_s: Callable[[], float],
    ) -> None:
        """`agents` gives counters of the agents' streams."""
        self._service = service
        self._readiness = readiness
        self._caches = caches
        self._cap = cap
        self._agents = agents
        self._loop_lag_s = loop_lag_s

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        yield _gauge("lineside_ready", "1 when ready", float(not self._readiness.reasons()))
        degraded, counts = _labelled("lineside_degraded", _DEGRADED, "reason"), self._degraded()
        for code in CODES:
            degraded.add_metric([code], counts[code])
        yield degraded
        yield _gauge("lineside_loop_lag_seconds", "Event loop lag", self._loop_lag_s())
        yield from self._of_index()
        yield from self._of_overlay()
        yield from self._of_agents()
        yield from self._of_engines()
        yield from self._of_audit()
        yield from self._of_predictions()

    def _degraded(self) -> Mapping[str, int]:
        return Tally(reason.code for reason in self._readiness.degraded())

    def _of_index(self) -> Iterator[Metric]:
        keys, size = self._caches.size()
        yield _gauge("lineside_index_keys", "Block keys in the index", keys)
        yield _gauge("lineside_index_bytes", "Estimated size of the index", size)
        yield _gauge("lineside_index_limit_bytes", "What it may take", self._cap.limit_bytes)
        state = _labelled("lineside_index_state", "1 for the state that the index is in", "state")
        for each in State:
            state.add_metric([each.value], float(each is self._cap.state))
        text = "One in so many keys of 16 tokens is reported by the group's agents"
        stride = _labelled("lineside_index_stride", text, "group")
        for group, asked in self._service.cluster.strides().items():
            stride.add_metric([group], asked)
        yield from (state, stride)
        checks, unclosed = self._caches.checks, self._caches.unclosed
        yield _counter("lineside_index_checks", "Prompts looked up again key by key", checks)
        text = "Engines that held a key of such a prompt and lacked one before it; above 0: a bug"
        yield _counter("lineside_index_unclosed", text, unclosed)

    def _of_overlay(self) -> Iterator[Metric]:
        overlay = self._service.overlay
        text = "Requests whose prompts count as cached before their engines say so"
        yield _gauge("lineside_overlay_claims", text, overlay.claims)
        yield _gauge("lineside_overlay_keys", "Block keys that they hold", overlay.keys)
        text = "Requests whose prompts did not, for want of room"
        yield _counter("lineside_overlay_refused", text, overlay.refused)

    def _of_agents(self) -> Iterator[Metric]:
        for name, value in self._agents().items():
            if name == "streams":
                yield _gauge("lineside_agent_streams", "Connected agents", value)
            else:
                yield _counter(f"lineside_agent_{name}", _OF_STREAMS[name], value)

    def _of_engines(self) -> Iterator[Metric]:
        now = self._service.clock.monotonic()
        inflight = _per_engine("lineside_engine_inflight", "Requests in flight")
        queued = _per_engine(
            "lineside_engine_queued_tokens", "Uncached tokens before a first token"
        )
        wait = _per_engine("lineside_engine_wait_seconds", "Predicted wait of the next request")
        away = _per_engine("lineside_engine_away", "1 when the engine cannot be reached")
        asleep = _per_engine("lineside_engine_asleep", "1 when the engine sleeps")
        recent = _per_engine(
            "lineside_engine_recent_work_seconds",
            "Prefill that the engine was lately given; one far below its peers starves",
        )
        failing = _per_engine(
            "lineside_engine_failing", "1 when the engine is left out for a while"
        )
        text = "1 for the state that the engine's cache is in"
        state = _labelled("lineside_engine_cache_state", text, "engine", "state")
        age = _per_engine("lineside_engine_cache_age_seconds", "Since the agent's last word")
        for view in self._service.cluster.snapshot(now).engines:
            queue = self._service.inflight.queue(view.engine.id, now)
            inflight.add_metric([view.engine.id], queue.outstanding)
            queued.add_metric([view.engine.id], queue.queued_tokens)
            wait.add_metric([view.engine.id], queue.wait_s)
            away.add_metric([view.engine.id], float(bool(view.away)))
            asleep.add_metric([view.engine.id], float(view.asleep))
            recent.add_metric([view.engine.id], self._service.decider.recent.seconds(view.engine))
            failing.add_metric([view.engine.id], float(bool(view.failing)))
            _add_cache(view, state, age)
        yield from (inflight, queued, wait, recent, away, asleep, failing, state, age)

    def _of_predictions(self) -> Iterator[Metric]:
        bias = _per_engine(
            "lineside_engine_ttft_bias",
            "Mean relative error of predicted times to first token; above 0: tokens came later",
        )
        error = _per_engine("lineside_engine_ttft_error", "The same, whatever the direction")
        for name, off in self._service.decider.predictor.errors.items():
            bias.add_metric([name], off.bias)
            error.add_metric([name], off.error)
        text = "Share of recent work of the busiest engine, times the engines: 1 is even"
        busiest = _labelled("lineside_group_busiest_ratio", text, "group")
        text = "Engines with less than a tenth of an even share of recent work"
        starved = _labelled("lineside_group_starved_engines", text, "group")
        members: dict[GroupId, list[EngineId]] = {}
        for engine in self._service.cluster.assigned():
            members.setdefault(engine.group, []).append(engine.id)
        for group, shares in self._service.decider.recent.shares().items():
            names = members.get(group, [])
            busiest.add_metric([group], max(shares.values()) * len(names))
            few = STARVED / max(1, len(names))
            starved.add_metric([group], sum(shares.get(name, 0.0) < few for name in names))
        yield from (bias, error, busiest, starved)

    def _of_audit(self) -> Iterator[Metric]:
        compared = CounterMetricFamily(
            "lineside_engine_audited_requests",
            "Answers whose cached tokens were held against the engine's digest",
            labels=["engine"],
        )
        wrong = CounterMetricFamily(
            "lineside_engine_mispredicted_requests",
            "Those that differ by more than stride and block explain, by direction",
            labels=["engine", "direction"],
        )
        tokens = CounterMetricFamily(
            "lineside_engine_cached_tokens_error",
            "Sum of all differences in those answers, by direction",
            labels=["engine", "direction"],
        )
        alarm = _per_engine(
            "lineside_engine_mispredicted",
            "1 while an engine's answers contradict its events; above 0: alarm",
        )
        now = self._service.clock.monotonic()
        tallies = self._service.audit.tallies()
        for view in self._service.cluster.snapshot(now).engines:
            engine, tally = view.engine.id, tallies.get(view.engine.id) or audit.Tally()
            compared.add_metric([engine], tally.compared)
            wrong.add_metric([engine, "too_many"], tally.too_many)
            wrong.add_metric([engine, "too_few"], tally.too_few)
            tokens.add_metric([engine, "too_many"], tally.tokens_too_many)
            tokens.add_metric([engine, "too_few"], tally.tokens_too_few)
            alarm.add_metric([engine], float(bool(view.word.mispredicted)))
        yield from (compared, wrong, tokens, alarm)


STARVED = 0.1
"""An engine with less than this part of an even share of recent work starves."""

_DEGRADED = "How often each thing that is served around holds (see docs/operations.md)"


_OF_STREAMS = {
    "refused": "Streams of agents that were refused",
    "malformed": "Messages of agents that nobody can read; each ends its stream",
    "late": "Messages of streams that a newer one has replaced",
    "unknown_engine": "Reports on engines that are not known (any more)",
    "unknown_message": "Messages of a kind that this release does not know",
    "resyncs": "Snapshots asked for, since a digest did not fit what was there",
}


def _add_cache(view: EngineView, state: GaugeMetricFamily, age: GaugeMetricFamily) -> None:
    for name in CACHE_STATES:
        state.add_metric([view.engine.id, name], float(view.cache_state == name))
    if view.heard_age_s is not None:
        age.add_metric([view.engine.id], view.heard_age_s)


def _per_engine(name: str, text: str) -> GaugeMetricFamily:
    return _labelled(name, text, "engine")


def _labelled(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
