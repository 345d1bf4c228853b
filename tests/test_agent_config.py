"""The agent's configuration: what is read, and what is refused with which words."""

import pytest

from agent.config import AgentConfig, ConfigError, address_of, parse


def test_yaml_and_json_are_read() -> None:
    expected = AgentConfig(coordinators=("c:9002",), transport="plaintext", node="n1")
    assert parse(b"coordinators: ['c:9002']\ntransport: plaintext\nnode: n1\n") == expected
    assert parse(b'{"coordinators":["c:9002"],"transport":"plaintext","node":"n1"}') == expected


@pytest.mark.parametrize(
    ("document", "error"),
    [
        pytest.param(
            b"coordinators: ['c:1']",
            "Object missing required field `transport`",
            id="plaintext has to be asked for by name",
        ),
        pytest.param(
            b"coordinators: ['c:1']\ntransport: tls",
            "Invalid enum value 'tls' - at `$.transport`",
            id="another transport",
        ),
        pytest.param(
            b"coordinators: []\ntransport: plaintext",
            "Expected `array` of length >= 1 - at `$.coordinators`",
            id="nobody to report to",
        ),
        pytest.param(
            b"coordinators: [c]\ntransport: plaintext", "`c` is not HOST:PORT", id="no port"
        ),
        pytest.param(
            b"coordinators: ['c:1']\ntransport: plaintext\nmetrcs: ':1'",
            "Object contains unknown field `metrcs`",
            id="a misspelt field",
        ),
        pytest.param(b"", "Expected `object`, got `null`", id="nothing"),
    ],
)
def test_what_cannot_be_used_is_refused(document: bytes, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(document)
    assert str(refused.value) == error


def test_broken_yaml_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match="line 1, column"):
        parse(b"coordinators: ]")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("127.0.0.1:0", ("127.0.0.1", 0), id="any port"),
        pytest.param(":9091", ("", 9091), id="every interface"),
        pytest.param("[::1]:9091", ("::1", 9091), id="IPv6"),
    ],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["9091", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        address_of(text)


def test_the_token_is_never_shown() -> None:
    config = AgentConfig(coordinators=("c:1",), transport="plaintext", token="hunter2")
    assert config.masked()["token"] == "***"
