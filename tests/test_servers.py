"""From what a server says to the engines behind it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.config import EngineSpec
from coordinator.engines import Engine, ServedModel
from coordinator.servers import Away, Found, Source, engines_of, found_in, located, read_models
from lineside.ids import EngineId, GroupId, ModelName, NodeId

CASES = Path(__file__).parent / "cases" / "http"
NODE = NodeId("n")


def body(name: str) -> bytes:
    return json.dumps(json.loads((CASES / f"{name}.json").read_text())["body"]).encode()


def sources(name: str) -> dict[int, Source]:
    return msgspec.json.decode(body(name), type=dict[int, Source], strict=False)


def found(name: str = "get_models", said: dict[int, Source] | None = None) -> Found:
    answer = found_in(read_models(body(name)), "0.32.0", said)
    assert isinstance(answer, Found)
    return answer


def engines(spec: dict[str, Any] | None = None, said: Found | None = None) -> tuple[Engine, ...]:
    whole = EngineSpec(**{"url": "http://10.0.0.1:8000", **(spec or {})})
    return engines_of(whole, said or found(), NODE, stride=4)


def test_a_captured_server_becomes_an_engine() -> None:
    assert engines(said=found(said=sources("get_kv_event_sources"))) == (
        Engine(
            id=EngineId("10.0.0.1:8000"),
            base_url="http://10.0.0.1:8000",
            endpoint="10.0.0.1:8000",
            group=GroupId("<work>/model"),
            models=(ServedModel(ModelName("tiny-qwen3"), None, 1024),),
            node=NODE,
            rank=None,
            version="0.32.0",
            events="tcp://127.0.0.1:40801",
            replay="tcp://127.0.0.1:39419",
        ),
    )


def test_an_adapter_is_known_by_its_parent() -> None:
    (engine,) = engines(said=found("get_models_with_lora"))
    assert engine.group == "<work>/model"
    assert engine.models == (
        ServedModel(ModelName("tiny-qwen3"), None, 1024),
        ServedModel(ModelName("sql-adapter"), "sql-adapter", 1024),
    )


def test_each_rank_is_an_engine() -> None:
    said = found(said=sources("get_kv_event_sources_dp2"))
    assert [(e.id, e.rank, e.events) for e in engines(said=said)] == [
        ("10.0.0.1:8000/0", 0, "tcp://127.0.0.1:43449"),
        ("10.0.0.1:8000/1", 1, "tcp://127.0.0.1:38713"),
    ]
    assert [(e.id, e.rank) for e in engines({"rank": 1}, said)] == [("10.0.0.1:8000/1", 1)]


@pytest.mark.parametrize(
    ("spec", "said", "addresses"),
    [
        pytest.param(
            {}, None, ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"), id="nothing known: defaults"
        ),
        pytest.param({}, {}, ("", ""), id="the server names no source"),
        pytest.param(
            {},
            {0: Source(enable_kv_cache_events=False, endpoint="tcp://*:1")},
            ("", ""),
            id="events are off",
        ),
        pytest.param(
            {}, {0: Source(publisher="null", endpoint="tcp://*:1")}, ("", ""), id="no publisher"
        ),
        pytest.param(
            {},
            {0: Source(endpoint="tcp://*:7", replay_endpoint="tcp://*:8")},
            ("tcp://10.0.0.1:7", "tcp://10.0.0.1:8"),
            id="a wildcard is the server's host",
        ),
        pytest.param(
            {}, {0: Source(endpoint="ipc:///run/kv")}, ("ipc:///run/kv", ""), id="a local socket"
        ),
        pytest.param(
            {"kv": "tcp://h:1"},
            {0: Source(endpoint="tcp://*:7", replay_endpoint="tcp://*:8")},
            ("tcp://h:1", "tcp://10.0.0.1:8"),
            id="what is given goes first, the server is asked for the rest",
        ),
        pytest.param(
            {"kv": "tcp://h:5567"},
            None,
            ("tcp://h:5567", "tcp://h:5568"),
            id="events given and nothing said: replay is the next port, as in vLLM's examples",
        ),
        pytest.param({"kv": "ipc:///kv"}, None, ("ipc:///kv", ""), id="a local socket is given"),
        pytest.param(
            {"kv": "tcp://h:1"},
            {0: Source(endpoint="tcp://*:7")},
            ("tcp://h:1", ""),
            id="the server says that it replays nothing",
        ),
        pytest.param(
            {"kv": "tcp://h:1", "replay": "tcp://h:2"}, None, ("tcp://h:1", "tcp://h:2"), id="both"
        ),
        pytest.param(
            {"replay": "tcp://h:2"},
            {0: Source(endpoint="tcp://*:7")},
            ("tcp://10.0.0.1:7", "tcp://h:2"),
            id="a replay socket beside the server's word",
        ),
    ],
)
def test_event_addresses(
    spec: dict[str, str], said: dict[int, Source] | None, addresses: tuple[str, str]
) -> None:
    (engine,) = engines(spec, found(said=said))
    assert (engine.events, engine.replay) == addresses


def test_a_given_port_counts_up_with_the_rank() -> None:
    said = found(said=sources("get_kv_event_sources_dp2"))
    assert [e.events for e in engines({"kv": "tcp://h:7"}, said)] == ["tcp://h:7", "tcp://h:8"]
    assert [e.events for e in engines({"kv": "tcp://h:7", "rank": 1}, said)] == ["tcp://h:7"]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", "tcp://host:5557"),
        ("tcp://0.0.0.0:5557", "tcp://host:5557"),
        ("tcp://[::]:5557", "tcp://host:5557"),
        ("tcp://:5557", "tcp://host:5557"),
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("ipc:///tmp/kv", "ipc:///tmp/kv"),
        ("", ""),
    ],
)
def test_an_endpoint_for_everyone_is_at_the_servers_host(endpoint: str, expected: str) -> None:
    assert located(endpoint, "host") == expected


def test_a_tokenizer_comes_with_a_local_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    said = Found(models=(), root=str(tmp_path))
    assert [e.tokenizer for e in engines(said=said)] == [str(tmp_path)]
    assert [e.tokenizer for e in engines({"tokenizer": "/other"}, said)] == ["/other"]
    assert [e.tokenizer for e in engines()] == [None]


def test_a_server_without_a_model_is_away() -> None:
    assert found_in([], "0.32.0", None) == Away("it serves no model")
