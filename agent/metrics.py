"""This process's Prometheus metrics, made of the node's state whenever they are asked for.

Nothing is counted here and nothing is kept, so a series ends with the engine, the server or the
stream that it is of. Labels are engine ids, configured addresses and words from closed lists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.gpu_metrics import gpu_metrics
from agent.kubelet import Kubelet, NoAnswer
from agent.node import Node
from agent.scrape import Failure
from lineside.about import About
from lineside.clock import Clock
from lineside.signals import Events

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)

LAG_S = 0.5


class AgentMetrics(Collector):
    """Registers itself; `lag_s` is written by `watch_lag`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        node: Node,
        streams: Callable[[], Mapping[str, bool]],
        remaining: Callable[[], Iterable[tuple[str, float]]],
        clock: Clock,
        kubelet: Kubelet | None = None,
    ) -> None:
        self._node = node
        self._streams = streams
        self._remaining = remaining
        self._clock = clock
        self._kubelet = kubelet
        self.lag_s = 0.0
        registry.register(self)
        registry.register(About(clock))

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield from self._of_engines()
        yield from self._of_scrapes()
        yield from gpu_metrics(self._node.gpus(), self._clock.monotonic())
        yield from self._of_kubelet()
        yield _gauge(
            "lineside_agent_stream_up",
            "Whether the stream to this coordinator is established.",
            ["coordinator"],
            (([address], float(up)) for address, up in self._streams().items()),
        )
        yield _gauge(
            "lineside_agent_certificate_remaining_seconds",
            "For how long certificates still hold, ours and coordinators'; below 0: ended.",
            ["what"],
            (([what], seconds) for what, seconds in self._remaining()),
        )
        yield GaugeMetricFamily(
            "lineside_agent_loop_lag_seconds",
            "By how much the event loop was late at the last look.",
            self.lag_s,
        )

    def _of_engines(self) -> Iterator[Metric]:
        status = {engine: reading.worker.status() for engine, reading in self._node.engines.items()}
        yield _gauge(
            "lineside_agent_events_state",
            "1 for the state that an engine's events are in.",
            ["engine", "state"],
            (
                ([engine, state.value], float(state is now.events))
                for engine, now in status.items()
                for state in Events
            ),
        )
        yield _gauge(
            "lineside_agent_blocks_held",
            "Cache blocks that an engine holds, copies counted.",
            ["engine"],
            (([engine], now.blocks) for engine, now in status.items()),
        )
        yield _gauge(
            "lineside_agent_keys_reported",
            "Block keys in an engine's digest.",
            ["engine"],
            (([engine], len(r.worker.log.held)) for engine, r in self._node.engines.items()),
        )
        yield _gauge(
            "lineside_agent_silent_tokens",
            "Uncached prompt tokens computed without a block announced; above 0: alarm.",
            ["engine"],
            (([engine], r.worker.silent_tokens) for engine, r in self._node.engines.items()),
        )
        for name, attribute, text in _COUNTERS:
            yield _counter(
                name,
                text,
                ["engine"],
                (([engine], getattr(now, attribute)) for engine, now in status.items()),
            )

    def _of_scrapes(self) -> Iterator[Metric]:
        now = self._clock.monotonic()
        loads = {
            engine: reading.load
            for engine, reading in self._node.engines.items()
            if reading.load is not None
        }
        yield _gauge(
            "lineside_agent_scrape_age_seconds",
            "Age of what is known of an engine's load; absent before the first scrape.",
            ["engine"],
            (([engine], now - load.at) for engine, load in loads.items()),
        )
        yield _gauge(
            "lineside_agent_scrape_missing_series",
            "Series that an engine's release should have and has not.",
            ["engine"],
            (([engine], len(load.value.missing)) for engine, load in loads.items()),
        )
        yield _counter(
            "lineside_agent_scrape_failures",
            "Scrapes of a server that brought no page.",
            ["server", "reason"],
            (
                ([url, failure], server.failures[failure])
                for url, server in self._node.servers.items()
                for failure in get_args(Failure)
            ),
        )

    def _of_kubelet(self) -> Iterator[Metric]:
        """Yield what is known of the kubelet; where it is not asked, no series."""
        kubelets = [] if self._kubelet is None else [self._kubelet]
        now = self._clock.monotonic()
        yield _gauge(
            "lineside_agent_pod_resources_up",
            "Whether the kubelet answers which GPUs it gave to which pod.",
            [],
            (([], float(not kubelet.failing)) for kubelet in kubelets),
        )
        yield _gauge(
            "lineside_agent_pod_resources_age_seconds",
            "Since the kubelet was asked and answered; absent before its first answer.",
            [],
            (([], now - k.answered_at) for k in kubelets if k.answered_at is not None),
        )
        yield _counter(
            "lineside_agent_pod_resources_failures",
            "Questions to the kubelet that brought no answer.",
            ["reason"],
            (
                ([failure], kubelet.failures[failure])
                for kubelet in kubelets
                for failure in get_args(NoAnswer)
            ),
        )
        yield _gauge(
            "lineside_agent_engine_device",
            "1 for each GPU, or part of one (MIG), that the kubelet gave to an engine's pod.",
            ["engine", "device"],
            (
                ([engine, device], 1.0)
                for engine, devices in self._node.owners.devices.items()
                for device in devices.ids
            ),
        )


_COUNTERS = (
    ("lineside_agent_replays", "replays", "Replays asked of an engine."),
    ("lineside_agent_engine_restarts", "restarts", "New lives of an engine seen."),
    ("lineside_agent_event_batches", "batches", "Event batches applied."),
    ("lineside_agent_event_gaps", "gaps", "Gaps in an engine's event sequence, healed or not."),
    ("lineside_agent_undecodable_events", "undecodable", "Messages and events not understood."),
    ("lineside_agent_unmatched_removals", "unmatched_removals", "Removals of blocks not held."),
)


def _gauge(
    name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _counter(
    name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float]]
) -> CounterMetricFamily:
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def _filled(family: F, samples: Iterable[tuple[list[str], float]]) -> F:
    for values, number in samples:
        family.add_metric(values, number)
    return family


async def watch_lag(metrics: AgentMetrics, clock: Clock) -> None:
    """Look again and again how late the loop wakes."""
    while True:
        due = clock.monotonic() + LAG_S
        await clock.sleep(LAG_S)
        metrics.lag_s = max(clock.monotonic() - due, 0.0)
