"""What is known of providers, for people and for Prometheus. Reads; changes nothing.

Labels are names of resources and values of closed lists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.apis import PATHS
from coordinator.candidates import Provider
from coordinator.load.answers import Latency, Spread
from coordinator.providers.cooldowns import Cause, Pause
from coordinator.service import Service
from lineside.ids import EngineId

QUANTILES = ("0.5", "0.95")


class ProviderViews(Collector):
    """Every provider of the resources in force."""

    def __init__(
        self, service: Service, key_problems: Callable[[], Mapping[EngineId, str]]
    ) -> None:
        """`key_problems` says why keys are missing."""
        self._service = service
        self._key_problems = key_problems

    @property
    def _providers(self) -> Iterable[Provider]:
        return self._service.decider.rules.providers.values()

    def paused(self) -> Iterator[tuple[Provider, Pause]]:
        """Yield the providers that cool down."""
        now = self._service.clock.monotonic()
        for provider in self._providers:
            pause = self._service.decider.cooldowns.pause(provider.id, now)
            if pause is not None:
                yield provider, pause

    def shown(self) -> list[dict[str, Any]]:
        """Return each provider's state, for people."""
        decider, now = self._service.decider, self._service.clock.monotonic()
        unmetered = self._service.bodies.capabilities.unmetered(now)
        pauses = {provider.id: pause for provider, pause in self.paused()}
        problems = self._key_problems()
        return [
            {
                "name": provider.id,
                "type": provider.dialect.type,
                "endpoint": provider.endpoint,
                "apis": {
                    api.value: spoken.value
                    for api in PATHS.values()
                    if (spoken := provider.dialect.spoken(api)) is not None
                },
                "models": provider.upstream,
                "inflight": self._service.inflight.queue(provider.id, now).outstanding,
                "cooldown": _pause_json(pauses.get(provider.id)),
                "faults": {
                    fault.value: count
                    for fault, count in decider.cooldowns.counts(provider.id).items()
                },
                "key_missing": problems.get(provider.id),
                "reports_usage": provider.id not in unmetered,
                "latency": {
                    model: _latency_json(latency)
                    for model, latency in decider.answers.latencies(provider.id).items()
                },
            }
            for provider in self._providers
        ]

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: reading everything is cheap."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything."""
        now = self._service.clock.monotonic()
        inflight = GaugeMetricFamily(
            "lineside_provider_inflight", "Requests in flight at the provider", labels=["provider"]
        )
        cooldown = GaugeMetricFamily(
            "lineside_provider_cooldown",
            "1 while the provider gets no requests, by cause",
            labels=["provider", "cause"],
        )
        faults = CounterMetricFamily(
            "lineside_provider_faults", "Tries that failed, by fault", labels=["provider", "fault"]
        )
        pauses = {provider.id: pause for provider, pause in self.paused()}
        for provider in self._providers:
            queue = self._service.inflight.queue(provider.id, now)
            inflight.add_metric([provider.id], queue.outstanding)
            pause = pauses.get(provider.id)
            for cause in Cause:
                is_it = pause is not None and pause.cause is cause
                cooldown.add_metric([provider.id, cause.name.lower()], float(is_it))
            for fault, count in self._service.decider.cooldowns.counts(provider.id).items():
                faults.add_metric([provider.id, fault.value], count)
        yield from (inflight, cooldown, faults, *self._latencies())

    def _latencies(self) -> Iterator[Metric]:
        labels = ["provider", "model", "quantile"]
        ttft = GaugeMetricFamily(
            "lineside_provider_ttft_seconds",
            "Time to first token of the provider's latest streams",
            labels=labels,
        )
        e2e = GaugeMetricFamily(
            "lineside_provider_e2e_seconds",
            "Time to the end of the provider's latest answers",
            labels=labels,
        )
        for provider in self._providers:
            for model, latency in self._service.decider.answers.latencies(provider.id).items():
                for family, spread in ((ttft, latency.ttft), (e2e, latency.e2e)):
                    for quantile, seconds in zip(QUANTILES, spread or (), strict=False):
                        family.add_metric([provider.id, model, quantile], seconds)
        yield from (ttft, e2e)


def _pause_json(pause: Pause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {"cause": pause.cause.name.lower(), "reason": pause.cause.value, "for_s": pause.for_s}


def _latency_json(latency: Latency) -> dict[str, float | None]:
    return {**_spread_json("ttft", latency.ttft), **_spread_json("e2e", latency.e2e)}


def _spread_json(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        f"{name}_p50_s": spread.p50_s if spread else None,
        f"{name}_p95_s": spread.p95_s if spread else None,
    }
