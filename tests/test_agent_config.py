"""What an agent's configuration may say; what it is told is in test_config_findings."""

import pytest

from agent import config
from agent.config import AgentConfig
from coordinator import engines
from lineside.settings import read

EXPECTED = AgentConfig(coordinators=("c:9002",), transport="plaintext", node="n1")


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("coordinators: ['c:9002']\ntransport: plaintext\nnode: n1\n", id="YAML"),
        pytest.param('{"coordinators":["c:9002"],"transport":"plaintext","node":"n1"}', id="JSON"),
    ],
)
def test_yaml_and_json_are_read(document: str) -> None:
    assert read(AgentConfig, document.encode(), "a.yaml") == EXPECTED


def test_the_token_is_never_shown() -> None:
    config = AgentConfig(coordinators=("c:1",), transport="plaintext", token="hunter2")
    assert config.masked()["token"] == "***"


def test_both_processes_call_the_same_load_stale() -> None:
    assert config.STALE_AFTER_S == engines.STALE_AFTER_S
