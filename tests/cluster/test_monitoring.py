"""Alerts and dashboards through a real Prometheus, which scrapes real processes."""

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import simulated
from tests.generators import manifests
from tests.nvml.library import built, environment

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "deploy" / "charts" / "lineside" / "files" / "alerts.yaml"
PAGES = manifests().pages
GPU = (
    "GPU-a FakeH200 total_mib=143771 used_mib=100000 gpu=90 mem=50 temp=71 power_mw=560000"
    " limit_mw=700000 sm=1755 sm_max=1980 mem_clock=3201 reasons=0x40 ecc_fixed=5 ecc_bad=1 mig=1"
    " parts=2 processes=2\n"
)


FIRES: dict[str, dict[str, str]] = {
    "LinesideCoordinatorNotReady": {'lineside_ready{instance="c"}': "0x120"},
    "LinesideNoCoordinator": {'up{instance="c"}': "1x120"},
    "LinesideEngineAway": {'lineside_engine_away{engine="e"}': "1x120"},
    "LinesideEngineFailing": {'lineside_engine_failing{engine="e"}': "1x120"},
    "LinesideCacheUnknown": {'lineside_engine_cache_state{engine="e",state="lost"}': "1x120"},
    "LinesideEngineMispredicted": {'lineside_engine_mispredicted{engine="e"}': "1x120"},
    "LinesideEngineSilent": {'lineside_agent_silent_tokens{engine="e"}': "5000x120"},
    "LinesideCachedTokensWrong": {
        'lineside_cached_tokens_error_total{direction="too_many"}': "0+6000x120",
        'lineside_cached_tokens_total{source="predicted"}': "0+9000x120",
    },
    "LinesideRefusals": {
        'lineside_refusals_total{reason="no_engine_ready"}': "0+60x120",
        'lineside_requests_total{api="openai-chat",end="stop"}': "0+600x120",
    },
    "LinesideLoopLag": {'lineside_loop_lag_seconds{instance="c"}': "0.5x120"},
    "LinesideStoreAway": {'lineside_store_away{instance="c"}': "1x120"},
    "LinesideKubernetesAway": {'lineside_kubernetes_away{instance="c"}': "1x120"},
    "LinesideResourcesRefused": {'lineside_kubernetes_refused_objects{instance="c"}': "1x120"},
    "LinesideProviderOut": {'lineside_provider_cooldown{provider="p",cause="busy"}': "1x120"},
    "LinesideGatewayMisroutes": {'lineside_envoy_served_total{as="elsewhere"}': "0+60x120"},
    "LinesideIndexOver": {'lineside_index_state{state="over"}': "1x120"},
    "LinesideReleasesApart": {
        'lineside_build_info{version="0.1.0"}': "1x120",
        'lineside_build_info{version="0.2.0"}': "1x120",
    },
    "LinesideCertificateEnds": {
        'lineside_certificate_remaining_seconds{what="certificate"}': "8640000x120",
        'lineside_gateway_certificate_remaining_seconds{what="certificate"}': "86400x120",
    },
    "LinesideClockOff": {'lineside_clock_seconds{instance="c"}': "600+60x120"},
    "LinesideAgentStreamDown": {'lineside_agent_stream_up{coordinator="c"}': "0x120"},
    "LinesideScrapeIncomplete": {'lineside_agent_scrape_missing_series{engine="e"}': "2x120"},
    "LinesideGpuLost": {'lineside_gpu_lost{gpu="0",uuid="u"}': "1x120"},
    "LinesideGpuUnreadable": {'lineside_gpu_available{instance="a"}': "1x30 0x90"},
    "LinesideGpuMemoryErrors": {
        'lineside_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "0x30 1+1x90"
    },
    "LinesideGpuHeldBack": {'lineside_gpu_throttled{gpu="0",reason="hw_thermal"}': "1x120"},
}
"""Series, a sample a minute, that make each alert fire."""

HEALTHY = {
    'lineside_ready{instance="c"}': "1x120",
    'lineside_engine_away{engine="e"}': "0x120",
    'lineside_engine_failing{engine="e"}': "0x120",
    'lineside_engine_cache_state{engine="e",state="lost"}': "0x120",
    'lineside_engine_cache_state{engine="e",state="live"}': "1x120",
    'lineside_engine_mispredicted{engine="e"}': "0x120",
    'lineside_agent_silent_tokens{engine="e"}': "0x120",
    'lineside_cached_tokens_error_total{direction="too_many"}': "0+60x120",
    'lineside_cached_tokens_total{source="predicted"}': "0+9000x120",
    'lineside_refusals_total{reason="no_engine_ready"}': "0x120",
    'lineside_refusals_total{reason="bad_request"}': "0+600x120",
    'lineside_requests_total{api="openai-chat",end="stop"}': "0+600x120",
    'lineside_loop_lag_seconds{instance="c"}': "0.002x120",
    'lineside_store_away{instance="c"}': "0x120",
    'lineside_kubernetes_away{instance="c"}': "0x120",
    'lineside_kubernetes_refused_objects{instance="c"}': "0x120",
    'lineside_degraded{reason="resources_rejected"}': "0x120",
    'lineside_provider_cooldown{provider="p",cause="busy"}': "0x120",
    'lineside_envoy_served_total{as="picked"}': "0+60x120",
    'lineside_envoy_served_total{as="elsewhere"}': "0x120",
    'lineside_index_state{state="over"}': "0x120",
    'lineside_index_unclosed_total{instance="c"}': "0x120",
    'lineside_build_info{version="0.1.0"}': "1x120",
    'lineside_certificate_remaining_seconds{what="certificate"}': "8640000x120",
    'lineside_gateway_certificate_remaining_seconds{what="certificate"}': "8640000x120",
    'lineside_clock_seconds{instance="c"}': "1+60x120",
    'lineside_agent_stream_up{coordinator="c"}': "1x120",
    'lineside_agent_scrape_missing_series{engine="e"}': "0x120",
    'lineside_gpu_lost{gpu="0",uuid="u"}': "0x120",
    'lineside_gpu_available{instance="a"}': "1x120",
    'lineside_gpu_available{instance="b"}': "0x120",
    'lineside_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': "3x120",
    'lineside_gpu_ecc_errors_total{gpu="0",kind="corrected"}': "0+1x120",
    'lineside_gpu_throttled{gpu="0",reason="hw_thermal"}': "0x120",
    'lineside_gpu_throttled{gpu="0",reason="sw_power_cap"}': "1x120",
}
"""The same while nothing is wrong."""


def test_alerts_fire_and_are_silent_while_nothing_is_wrong(tmp_path: Path) -> None:
    def firing(series: dict[str, str], name: str, expected: int) -> dict[str, Any]:
        # Without an alert there is no series, so that nothing is compared with nothing.
        of = f'{{alertname="{name}",alertstate="firing"}}' if name else '{alertstate="firing"}'
        samples = [{"value": 1, "labels": "{}"}] if expected else []
        return {
            "interval": "1m",
            "input_series": [{"series": k, "values": v} for k, v in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"count(ALERTS{of}) > bool 0",
                    "eval_time": "100m",
                    "exp_samples": samples,
                }
            ],
        }

    tests = [firing(series, name, 1) for name, series in FIRES.items()]
    said = {"rule_files": [str(ALERTS)], "tests": [*tests, firing(HEALTHY, "", 0)]}
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(said))
    for words in (("check", "rules", ALERTS), ("test", "rules", file)):
        done = subprocess.run(("promtool", *words), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_series_that_make_it_fire() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert [rule["alert"] for group in groups for rule in group["rules"]] == list(FIRES)


@contextmanager
def running(
    *words: str | Path, environ: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def announced(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    said: dict[str, str] = json.loads(process.stdout.readline())["listening"]
    return said


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has scraped a coordinator and an agent with GPUs."""
    folder = tmp_path_factory.mktemp("monitoring")
    state = folder / "gpus"
    state.write_text(GPU)
    with ExitStack() as stack:
        engine = stack.enter_context(simulated.engine())
        coordinator = folder / "coordinator.json"
        settings: dict[str, Any] = {"transport": "plaintext", "node": "n"}
        listeners = dict.fromkeys(("http", "grpc", "admin"), "127.0.0.1:0")
        engines = [{"url": f"http://{engine['http']}", "gpus": ["GPU-a"]}]
        coordinator.write_text(json.dumps({**settings, **listeners, "engines": engines}))
        python = (sys.executable, "-m")
        first = stack.enter_context(running(*python, "coordinator.main", "--config", coordinator))
        where = announced(first)
        agent = folder / "agent.json"
        agent.write_text(json.dumps({**settings, "coordinators": [where["grpc"]]}))
        environ = environment(built(folder), state)
        second = stack.enter_context(
            running(*python, "agent.main", "--config", agent, environ=environ)
        )
        targets = [where["admin"], announced(second)["metrics"]]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = folder / "prometheus.yaml"
        scrapes = {"job_name": "lineside", "static_configs": [{"targets": targets}]}
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(ALERTS)],
                    "scrape_configs": [scrapes],
                }
            )
        )
        address = f"127.0.0.1:{port}"
        words = ("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
        stack.enter_context(running(*words, f"--web.listen-address={address}"))
        ask(address, where["http"])
        until_scraped(address)
        yield address


def ask(address: str, gateway: str) -> None:
    """Send some requests, so that counters are there."""
    body = {"model": simulated.MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(3):
        request = urllib.request.Request(
            f"http://{gateway}/v1/chat/completions",
            data=json.dumps({**body, "max_tokens": 4, "stream": True}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()


def query(address: str, path: str, **said: str) -> Any:
    url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(said)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def until_scraped(address: str) -> None:
    until = time.monotonic() + 40
    while time.monotonic() < until:
        try:
            if query(address, "query", query="lineside_engine_gpu_utilization_ratio")["result"]:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError("Prometheus has scraped nothing after 40 s")


QUERIES = [
    (title, panel.title, expression)
    for title, rows in PAGES.DASHBOARDS.values()
    for row in rows
    for panel in row.panels
    for expression in PAGES.expressions([type(row)(row.title, (panel,))])
]
EMPTY = {
    "Caches that are not live",
    "Away, asleep, failing",
    "Faults",
    "Cooling down",
    "In flight",  # of providers: there are none
    "Served around",
    "Certificates hold",
    "Lost",
    "Nodes that cannot be read",
    "Refusals by reason",
}
"""What shows nothing while nothing is wrong."""


def test_every_query_of_the_dashboards_is_answered(prometheus: str) -> None:
    time.sleep(3)  # two scrapes, for rates
    silent = {
        panel
        for _, panel, expression in QUERIES
        if not query(prometheus, "query", query=expression.replace("[5m]", "[10s]"))["result"]
    }
    assert silent <= EMPTY


def test_the_alerts_are_loaded_and_two_of_them_wait_to_fire(prometheus: str) -> None:
    groups = query(prometheus, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"} and len(rules) > 20
    assert not [rule["name"] for rule in rules if rule.get("lastError")]
    waiting = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert waiting == {"LinesideGpuHeldBack"}
