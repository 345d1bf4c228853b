"""What a configuration may say, and how it is told what is wrong."""

import pytest

from coordinator.config import Config, EngineSpec, InvalidConfig, load, split_address


def test_a_small_configuration_gets_the_defaults() -> None:
    text = "transport: plaintext\nengines:\n- url: http://127.0.0.1:8000\n  rank: 1\n"
    assert load(text) == Config(
        transport="plaintext", engines=(EngineSpec(url="http://127.0.0.1:8000", rank=1),)
    )


def test_json_is_read_as_well() -> None:
    assert load('{"transport": "plaintext", "http": "0.0.0.0:80"}').http == "0.0.0.0:80"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "line 1: not valid YAML or JSON", id="not YAML"),
        pytest.param("[]", "the configuration must be a mapping of settings", id="a list"),
        pytest.param("{}", "missing required field `transport`", id="transport not named"),
        pytest.param("transport: tls", "Invalid enum value 'tls'", id="another transport"),
        pytest.param(
            "{transport: plaintext, engine: []}", "did you mean `engines`?", id="a misspelt field"
        ),
        pytest.param(
            "{transport: plaintext, engines: [{url: 'http://a:1', replays: x}]}",
            "unknown field `replays` - at `$.engines[0]`; did you mean `replay`?",
            id="a misspelt field further in",
        ),
        pytest.param(
            "{transport: plaintext, engines: [{url: 'a:1'}]}",
            "`url` must be http://HOST:PORT - at `$.engines[0]`",
            id="no scheme",
        ),
        pytest.param(
            "{transport: plaintext, engines: [{url: 'http://a:1'}, {url: 'http://a:1/'}]}",
            "is named twice",
            id="the same server twice",
        ),
        pytest.param("{transport: plaintext, http: '80'}", "`http` must be HOST:PORT", id="port"),
        pytest.param("{transport: plaintext, store: etcd}", "`store` must be", id="store"),
        pytest.param("{transport: plaintext, stride: 0}", "`stride` must be above 0", id="zero"),
    ],
)
def test_a_bad_configuration_is_refused_as_a_whole(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        load(text)
    assert message in str(error.value)


def test_secrets_are_not_shown() -> None:
    shown = Config(transport="plaintext", agent_token="s3cret", admin_token="t0ken").shown()
    assert (shown["agent_token"], shown["admin_token"]) == ("***", "***")
    assert Config(transport="plaintext").shown()["agent_token"] is None


def test_addresses() -> None:
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address(":80") == ("", 80)
