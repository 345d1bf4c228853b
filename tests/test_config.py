"""What a coordinator's configuration may say; what it is told is in test_config_findings."""

import pytest

from coordinator.config import Config, EngineSpec, Timeouts
from lineside.schema import bound, split_address
from lineside.settings import read


def load(text: str) -> object:
    return read(Config, text.encode(), "c.yaml")


def test_a_small_configuration_gets_the_defaults() -> None:
    text = "transport: plaintext\nengines:\n- url: http://127.0.0.1:8000\n  rank: 1\n"
    assert load(text) == Config(
        transport="plaintext", engines=(EngineSpec(url="http://127.0.0.1:8000", rank=1),)
    )


def test_json_is_read_as_well() -> None:
    text = '{"transport": "plaintext", "http": "0.0.0.0:80", "timeouts": {"idle_s": 5}}'
    assert load(text) == Config(
        transport="plaintext", http="0.0.0.0:80", timeouts=Timeouts(idle_s=5.0)
    )


def test_secrets_are_not_shown() -> None:
    shown = Config(transport="plaintext", agent_token="s3cret", admin_token="t0ken").shown()
    assert (shown["agent_token"], shown["admin_token"]) == ("***", "***")
    assert Config(transport="plaintext").shown()["agent_token"] is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("127.0.0.1:80", ("127.0.0.1", 80), id="IPv4"),
        pytest.param("[::1]:80", ("::1", 80), id="IPv6"),
        pytest.param(":80", ("", 80), id="every interface"),
        pytest.param("127.0.0.1:0", ("127.0.0.1", 0), id="any port"),
    ],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["80", "host:", "host:http", "host:65536", "host:-1", "::1:80", "a b:1", "u@h:1", "h:1\n"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    found = read(Config, b"transport: plaintext", "c.yaml", {"LINESIDE_HTTP": text})
    assert isinstance(found, list)
    assert [finding.code for finding in found] == ["wrong-value"]


@pytest.mark.parametrize(
    ("address", "said"),
    [(":9001", "[::]:9001"), ("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:9001", "[::1]:9001")],
)
def test_an_address_without_a_host_is_every_interface_for_grpc_too(address: str, said: str) -> None:
    assert bound(address) == said
