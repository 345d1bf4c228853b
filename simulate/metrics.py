"""`/metrics` of one simulated engine: vLLM's names, labels and buckets, for what is read by agents
and autoscalers. Written by the driver; never holds text or ids of requests.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from simulate.core import Core, FinishReason, Limits

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_LABELS = ("engine", "model_name")
_ENGINE = "0"
_TTFT: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_TTFT += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL: tuple[float, ...] = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75)
_ITL += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E: tuple[float, ...] = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0)
_E2E += (30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_SLEEP_STATES = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}


class Metrics:
    """All series of one engine, in a registry of their own."""

    def __init__(self, model: str, limits: Limits) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        ProcessCollector(registry=self._registry)
        self.running = self._gauge(
            "num_requests_running", "Number of requests in model execution batches."
        )
        self.waiting = self._gauge(
            "num_requests_waiting", "Number of requests waiting to be processed."
        )
        self._by_capacity = self._waiting_by_reason()
        self.usage = self._gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."
        )
        self._counters = {
            name: self._counter(name, text)
            for name, text in (
                ("prefix_cache_queries", "Prefix cache queries, in queried tokens."),
                ("prefix_cache_hits", "Prefix cache hits, in cached tokens."),
                ("prompt_tokens", "Number of prefill tokens processed."),
                ("generation_tokens", "Number of generation tokens processed."),
                ("num_preemptions", "Cumulative number of preemption from the engine."),
            )
        }
        self._counted = dict.fromkeys(self._counters, 0)
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL
        )
        self.end_to_end = self._histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _E2E
        )
        self.step_tokens = self._histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )
        self._success = self._finished()
        self._describe(limits)

    def finished(self, reason: FinishReason) -> None:
        """Count a request that came to its end; one that was aborted is counted nowhere."""
        self._success.labels(_ENGINE, reason, self._model).inc()

    def render(self, core: Core) -> bytes:
        """Return the page, with gauges and counters as the core has them now."""
        self.running.set(core.running)
        self.waiting.set(core.waiting)
        self._by_capacity.set(core.waiting)
        self.usage.set(core.usage)
        totals = core.totals
        now = {
            "prefix_cache_queries": totals.prefix_queries,
            "prefix_cache_hits": totals.prefix_hits,
            "prompt_tokens": totals.prompt_tokens,
            "generation_tokens": totals.generated_tokens,
            "num_preemptions": totals.preemptions,
        }
        for name, value in now.items():
            self._counters[name].inc(value - self._counted[name])
        self._counted = now
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry)
        return gauge.labels(_ENGINE, self._model)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, _LABELS, registry=self._registry)
        return counter.labels(_ENGINE, self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, _LABELS, registry=self._registry, buckets=buckets
        )
        return histogram.labels(_ENGINE, self._model)

    def _waiting_by_reason(self) -> Gauge:
        gauge = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            (*_LABELS, "reason"),
            registry=self._registry,
        )
        gauge.labels(_ENGINE, self._model, "deferred").set(0)
        return gauge.labels(_ENGINE, self._model, "capacity")

    def _finished(self) -> Counter:
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            ("engine", "finished_reason", "model_name"),
            registry=self._registry,
        )
        for reason in _FINISH_REASONS:
            success.labels(_ENGINE, reason, self._model)
        return success

    def _describe(self, limits: Limits) -> None:
        """Write what never changes: cache configuration and sleep state."""
        config = {
            "engine": _ENGINE,
            "block_size": str(limits.block_size),
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(limits.blocks * limits.block_size),
            "num_gpu_blocks": str(limits.blocks),
            "num_gpu_blocks_override": str(limits.blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            tuple(config),
            registry=self._registry,
        )
        info.labels(**config).set(1)
        sleep = Gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means awake.",
            (*_LABELS, "sleep_state"),
            registry=self._registry,
        )
        for state, value in _SLEEP_STATES.items():
            sleep.labels(_ENGINE, self._model, state).set(value)
