"""`/metrics` of one simulated server: vLLM's names, labels and buckets, for what is read by agents
and autoscalers. Written by the driver; never holds text or ids of requests.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from simulate.core import Core, FinishReason, Limits

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_LABELS = ("engine", "model_name")
_TTFT: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_TTFT += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL: tuple[float, ...] = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75)
_ITL += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E: tuple[float, ...] = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0)
_E2E += (30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SUCCESS_TEXT = "Count of successfully processed requests."
_SUCCESS_LABELS = ("engine", "finished_reason", "model_name")
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
_TOTALS = {
    "prefix_cache_queries": ("prefix_queries", "Prefix cache queries, in queried tokens."),
    "prefix_cache_hits": ("prefix_hits", "Prefix cache hits, in cached tokens."),
    "external_prefix_cache_queries": (
        "offload_queries",
        "External prefix cache queries, in queried tokens.",
    ),
    "external_prefix_cache_hits": (
        "offload_hits",
        "External prefix cache hits, in cached tokens.",
    ),
    "prompt_tokens": ("prompt_tokens", "Number of prefill tokens processed."),
    "generation_tokens": ("generated_tokens", "Number of generation tokens processed."),
    "num_preemptions": ("preemptions", "Cumulative number of preemption from the engine."),
}
"""Counters: the core's name for each, and its text."""


class _Families:
    """Every family, without a rank."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, (*_LABELS, *labels), registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", text, _LABELS, registry=registry, buckets=buckets)

        self.running = gauge(
            "num_requests_running", "Number of requests in model execution batches."
        )
        self.waiting = gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self.by_reason = gauge(
            "num_requests_waiting_by_reason", "Number of waiting requests by reason.", "reason"
        )
        self.usage = gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self.totals = {
            name: Counter(f"vllm:{name}", text, _LABELS, registry=registry)
            for name, (_, text) in _TOTALS.items()
        }
        self.first_token = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL
        )
        self.end_to_end = histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _E2E
        )
        self.step_tokens = histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )
        self.success = Counter(
            "vllm:request_success", _SUCCESS_TEXT, _SUCCESS_LABELS, registry=registry
        )
        self.sleep = gauge(
            "engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means awake.",
            "sleep_state",
        )


class RankMetrics:
    """The series of one rank; its core is read when the page is rendered."""

    def __init__(self, families: "_Families", engine: str, model: str) -> None:
        def labelled(family: Gauge) -> Gauge:
            return family.labels(engine, model)

        self._running, self._waiting = labelled(families.running), labelled(families.waiting)
        self._usage = labelled(families.usage)
        families.by_reason.labels(engine, model, "deferred").set(0)
        self._by_capacity = families.by_reason.labels(engine, model, "capacity")
        self._counters = {
            name: family.labels(engine, model) for name, family in families.totals.items()
        }
        self._counted = dict.fromkeys(self._counters, 0)
        self.first_token = families.first_token.labels(engine, model)
        self.inter_token = families.inter_token.labels(engine, model)
        self.end_to_end = families.end_to_end.labels(engine, model)
        self.step_tokens = families.step_tokens.labels(engine, model)
        self._success = {
            reason: families.success.labels(engine, reason, model) for reason in _FINISH_REASONS
        }
        self._sleep = {
            state: families.sleep.labels(engine, model, state) for state in _SLEEP_STATES
        }
        self.sleeps_at(None)

    def finished(self, reason: FinishReason) -> None:
        """Count a request that came to its end; one that was aborted is counted nowhere."""
        self._success[reason].inc()

    def sleeps_at(self, level: int | None) -> None:
        """Say that the engine sleeps at a level, or that it is awake."""
        self._sleep["awake"].set(level is None)
        self._sleep["weights_offloaded"].set(level == 1)
        self._sleep["discard_all"].set(level == 2)

    def read(self, core: Core) -> None:
        """Set gauges and counters to what the core has now."""
        self._running.set(core.running)
        self._waiting.set(core.waiting)
        self._by_capacity.set(core.waiting)
        self._usage.set(core.usage)
        now = {name: int(getattr(core.totals, total)) for name, (total, _) in _TOTALS.items()}
        for name, value in now.items():
            self._counters[name].inc(value - self._counted[name])
        self._counted = now


class Metrics:
    """All series of one server, in a registry of their own. `ranks` has one entry a rank."""

    def __init__(self, model: str, limits: Limits, ranks: int = 1) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        families = _Families(self._registry)
        self.ranks = [RankMetrics(families, str(rank), model) for rank in range(ranks)]
        self._describe(limits)

    def render(self, cores: Sequence[Core]) -> bytes:
        """Return the page, with gauges and counters as the cores have them now."""
        for rank, core in zip(self.ranks, cores, strict=True):
            rank.read(core)
        return generate_latest(self._registry)

    def _describe(self, limits: Limits) -> None:
        """Write what never changes: the configuration of the cache."""
        config = {
            "block_size": str(limits.block_size),
            "enable_prefix_caching": str(limits.prefix_caching),
            "kv_cache_size_tokens": str(limits.blocks * limits.block_size),
            "num_gpu_blocks": str(limits.blocks),
            "num_gpu_blocks_override": str(limits.blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            ("engine", *config),
            registry=self._registry,
        )
        for rank in range(len(self.ranks)):
            info.labels(str(rank), *config.values()).set(1)
