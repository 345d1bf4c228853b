"""What the Grafana dashboards show: panels with their queries, as data.

`$where` stands for the labels that a dashboard selects by; `dashboards` makes Grafana's fields.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Queries go by legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    help: str = ""
    width: int = 8
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def _p(quantile: float, metric: str, by: str = "le") -> str:
    rates = f"rate({metric}_bucket{{$where}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by ({by}) ({rates}))"


def _rate(metric: str, by: str = "", where: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    inner = f"$where{',' if where else ''}{where}"
    return f"sum{grouped} (rate({metric}{{{inner}}}[$__rate_interval]))"


def _each(metric: str, how: str = "max", by: str = "engine", where: str = "") -> str:
    return f"{how} by ({by}) ({metric}{{$where{',' if where else ''}{where}}})"


PREDICTED = _rate("lineside_cached_tokens_total", where='source="predicted"')
REPORTED = _rate("lineside_cached_tokens_total", where='source="reported"')
OFF = _rate("lineside_cached_tokens_error_total", "direction")
PROMPT = _rate("lineside_prompt_tokens_total")

OVERVIEW = (
    Row(
        "Requests",
        (
            Panel(
                "Requests by end", ((_rate("lineside_requests_total", "end"), "{{end}}"),), "reqps"
            ),
            Panel(
                "Time to first token",
                tuple((_p(q, "lineside_ttft_seconds"), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
                "s",
            ),
            Panel(
                "Refusals by reason",
                ((_rate("lineside_refusals_total", "reason"), "{{reason}}"),),
                "reqps",
            ),
            Panel(
                "Tokens",
                ((PROMPT, "prompt"), (_rate("lineside_completion_tokens_total"), "output")),
                "short",
                help="a second, as engines count them",
            ),
            Panel(
                "How prompts are known",
                (
                    (
                        _rate("lineside_tokenized_requests_total", "state,reason"),
                        "{{state}} {{reason}}",
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Decisions",
                tuple((_p(q, "lineside_decision_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)),
                "s",
                help="tokenizing included",
            ),
        ),
    ),
    Row(
        "Is the index right",
        (
            Panel(
                "Cached share of prompts",
                (
                    (f"{REPORTED} / {PROMPT}", "engines say"),
                    (f"{PREDICTED} / {PROMPT}", "predicted"),
                ),
                "percentunit",
            ),
            Panel(
                "Predicted wrongly", ((f"{OFF}", "{{direction}}"),), "short", help="tokens a second"
            ),
            Panel(
                "Predicted time to first token, off by",
                ((_p(0.5, "lineside_ttft_error_seconds", "le, direction"), "{{direction}}"),),
                "s",
                help="median",
            ),
        ),
    ),
    Row(
        "Engines",
        (
            Panel("In flight", ((_each("lineside_engine_inflight", "sum"), "{{engine}}"),)),
            Panel(
                "Wait of the next request",
                ((_each("lineside_engine_wait_seconds"), "{{engine}}"),),
                "s",
            ),
            Panel(
                "What caches are worth",
                ((_each("lineside_engine_cache_worth_tokens", "sum"), "{{engine}}"),),
                help="tokens held that requests read lately",
            ),
            Panel(
                "Caches that are not live",
                (
                    (
                        _each(
                            "lineside_engine_cache_state",
                            by="engine,state",
                            where='state!~"live|none"',
                        )
                        + " == 1",
                        "{{engine}} {{state}}",
                    ),
                ),
            ),
            Panel(
                "Away, asleep, failing",
                tuple(
                    (_each(f"lineside_engine_{name}") + " == 1", f"{{{{engine}}}} {name}")
                    for name in ("away", "asleep", "failing", "mispredicted")
                ),
            ),
            Panel(
                "Evenness",
                (
                    (_each("lineside_group_busiest_ratio", by="group"), "{{group}}: busiest"),
                    (_each("lineside_group_starved_engines", by="group"), "{{group}}: starved"),
                ),
                help="busiest engine's share of work, times the engines: 1 is even",
            ),
        ),
    ),
    Row(
        "Providers",
        (
            Panel(
                "In flight",
                ((_each("lineside_provider_inflight", "sum", "provider"), "{{provider}}"),),
            ),
            Panel(
                "Faults",
                (
                    (
                        _rate("lineside_provider_faults_total", "provider,fault"),
                        "{{provider}} {{fault}}",
                    ),
                ),
            ),
            Panel(
                "Cooling down",
                (
                    (
                        _each("lineside_provider_cooldown", by="provider,cause") + " == 1",
                        "{{provider}} {{cause}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Coordinators and agents",
        (
            Panel("Ready", ((_each("lineside_ready", by="instance"), "{{instance}}"),), most=1),
            Panel(
                "Served around", ((_each("lineside_degraded", by="reason") + " > 0", "{{reason}}"),)
            ),
            Panel(
                "Loop lag",
                ((_each("lineside_loop_lag_seconds", by="instance"), "{{instance}}"),),
                "s",
            ),
            Panel(
                "Index",
                (
                    (_each("lineside_index_bytes", by="instance"), "{{instance}}"),
                    (_each("lineside_index_limit_bytes", by="instance"), "{{instance}}: limit"),
                ),
                "bytes",
            ),
            Panel(
                "Agents connected",
                ((_each("lineside_agent_streams", by="instance"), "{{instance}}"),),
            ),
            Panel(
                "Certificates hold",
                (
                    ("min by (what) (lineside_certificate_remaining_seconds{$where})", "{{what}}"),
                    (
                        "min by (what) (lineside_agent_certificate_remaining_seconds{$where})",
                        "agents: {{what}}",
                    ),
                    (
                        "min by (what) (lineside_gateway_certificate_remaining_seconds{$where})",
                        "gateways: {{what}}",
                    ),
                ),
                "s",
            ),
        ),
    ),
)

OF_GPU = "{{instance}} {{gpu}}"


def _gpu(metric: str, by: str = "instance,gpu") -> str:
    return _each(metric, by=by)


GPUS = (
    Row(
        "How near to what they can do",
        (
            Panel(
                "Saturation",
                ((_gpu("lineside_gpu_saturation_ratio"), OF_GPU),),
                "percentunit",
                help="docs/gpu.md: busy, times the higher of memory activity and power",
                most=1,
            ),
            Panel(
                "Utilization",
                ((_gpu("lineside_gpu_utilization_ratio"), OF_GPU),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Memory activity",
                ((_gpu("lineside_gpu_memory_activity_ratio"), OF_GPU),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Memory in use",
                ((_gpu("lineside_gpu_memory_ratio"), OF_GPU),),
                "percentunit",
                most=1,
            ),
            Panel(
                "Power",
                (
                    (_gpu("lineside_gpu_power_watts"), OF_GPU),
                    (_gpu("lineside_gpu_power_limit_watts"), f"{OF_GPU}: limit"),
                ),
                "watt",
            ),
            Panel(
                "Engines, by their busiest GPU",
                ((_each("lineside_engine_gpu_utilization_ratio"), "{{engine}}"),),
                "percentunit",
                help="where it is known which GPUs serve them",
                most=1,
            ),
        ),
    ),
    Row(
        "What holds them back",
        (
            Panel("Temperature", ((_gpu("lineside_gpu_temperature_celsius"), OF_GPU),), "celsius"),
            Panel(
                "Clock of the processors",
                (
                    (_gpu("lineside_gpu_sm_clock_hertz"), OF_GPU),
                    (_gpu("lineside_gpu_sm_clock_max_hertz"), f"{OF_GPU}: highest"),
                ),
                "hertz",
            ),
            Panel(
                "Why clocks are low",
                (
                    (
                        _gpu("lineside_gpu_throttled", "instance,gpu,reason") + " == 1",
                        f"{OF_GPU} {{{{reason}}}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "What is wrong with them",
        (
            Panel("Lost", ((_gpu("lineside_gpu_lost") + " == 1", OF_GPU),)),
            Panel(
                "Nodes that cannot be read",
                ((_each("lineside_gpu_available", by="instance") + " == 0", "{{instance}}"),),
            ),
            Panel(
                "Memory errors in an hour",
                (
                    (
                        "sum by (instance, gpu, kind)"
                        " (increase(lineside_gpu_ecc_errors_total{$where}[1h]))",
                        f"{OF_GPU} {{{{kind}}}}",
                    ),
                ),
            ),
            Panel("Processes", ((_gpu("lineside_gpu_processes"), OF_GPU),)),
            Panel(
                "Memory of partitions",
                (
                    (
                        _gpu("lineside_gpu_mig_memory_used_bytes", "instance,gpu,mig"),
                        f"{OF_GPU} {{{{mig}}}}",
                    ),
                ),
                "bytes",
            ),
            Panel(
                "Age of values",
                (
                    (
                        _gpu("lineside_gpu_age_seconds", "instance,gpu,read"),
                        f"{OF_GPU} {{{{read}}}}",
                    ),
                ),
                "s",
            ),
        ),
    ),
)
