"""What command lines of pods say of vLLM."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.kube.flags import Flags, flags_of, is_vllm

EVENTS = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'
READ = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557"}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param({}, Flags(), id="nothing said"),
        pytest.param(
            {"args": ["serve", "m", "--enable-prefix-caching", "--port", "9000"]},
            Flags(prefix_caching=True, port=9000),
            id="a switch and a value of its own",
        ),
        pytest.param(
            {"args": ["--no-enable-prefix-caching", "--block_size=32", "--disable-log-stats"]},
            Flags(prefix_caching=False, block_size=32, log_stats=False),
            id="a switch off, an underscore",
        ),
        pytest.param(
            {"args": [f"--kv-events-config={EVENTS}", "--enable-prompt-tokens-details"]},
            Flags(events=READ, details=True),
            id="events after an equals sign",
        ),
        pytest.param(
            {"args": ["--kv-events-config", EVENTS]}, Flags(events=READ), id="events as a word"
        ),
        pytest.param(
            {
                "args": [
                    "--kv-events-config.enable_kv_cache_events",
                    "true",
                    "--kv-events-config.endpoint=tcp://*:1",
                ]
            },
            Flags(events={"enable_kv_cache_events": "true", "endpoint": "tcp://*:1"}),
            id="events key by key",
        ),
        pytest.param(
            {"args": ["--kv-events-config={oops"]},
            Flags(events_error="it is no JSON"),
            id="events that cannot be read",
        ),
        pytest.param(
            {"args": ["--kv-events-config=[]"]},
            Flags(events_error="it is no JSON object"),
            id="events that are a list",
        ),
        pytest.param(
            {"command": ["/bin/sh", "-c", f"exec vllm serve m --kv-events-config '{EVENTS}'"]},
            Flags(events=READ),
            id="a line for a shell",
        ),
        pytest.param(
            {
                "args": ["--block-size", "$(SIZE)", "--api-key=$(KEY)"],
                "env": [{"name": "SIZE", "value": "16"}, {"name": "KEY", "valueFrom": {}}],
            },
            Flags(block_size=16, has_key=True),
            id="variables",
        ),
        pytest.param(
            {"args": [], "env": [{"name": "VLLM_API_KEY", "valueFrom": {}}]},
            Flags(has_key=True),
            id="a key from a secret",
        ),
        pytest.param(
            {"args": ["--config", "/c.yaml", "-dp", "2", "--prefix-caching-hash-algo", "xxhash"]},
            Flags(from_file=True, ranks=2, hash_algorithm="xxhash"),
            id="a file, ranks, an algorithm",
        ),
    ],
)
def test_words_are_read_as_vllm_reads_them(container: dict[str, Any], expected: Flags) -> None:
    assert flags_of(container) == expected


@pytest.mark.parametrize(
    ("events", "publishes"),
    [
        (None, False),
        ({}, False),
        ({"enable_kv_cache_events": True}, True),
        ({"enable_kv_cache_events": "true"}, True),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
        ({"enable_kv_cache_events": False, "publisher": "zmq"}, False),
    ],
)
def test_events_have_to_be_asked_for(events: dict[str, Any] | None, publishes: bool) -> None:
    assert Flags(events=events).publishes is publishes


def test_the_example_s_server_has_all_that_lineside_needs() -> None:
    path = Path(__file__).parent.parent / "deploy" / "examples" / "vllm.yaml"
    (server,) = yaml.safe_load_all(path.read_text())
    (container,) = server["spec"]["template"]["spec"]["containers"]
    flags = flags_of(container)
    assert is_vllm(container)
    assert flags.publishes and flags.prefix_caching and flags.details and flags.log_stats
    assert flags.events is not None and flags.events["replay_endpoint"] == "tcp://*:5558"
    assert (flags.port, flags.has_key) == (8000, True)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"image": "vllm/vllm-openai:v0.32.0"}, True),
        ({"image": "r/x@sha256:vllm", "command": ["python"]}, False),
        ({"image": "r/server:1", "command": ["vllm", "serve"]}, True),
        ({"image": "r/server:1", "command": ["python", "-m", "vllm.entrypoints.x"]}, True),
        ({"image": "envoy:1"}, False),
    ],
)
def test_vllm_is_known_by_its_image_or_command(container: dict[str, Any], expected: bool) -> None:
    assert is_vllm(container) is expected
