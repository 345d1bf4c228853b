"""Settings of the simulated engine: options, defaults, what is refused."""

import argparse
from collections.abc import Sequence

import pytest

from simulate.config import BadConfig, Config, add_arguments, from_arguments
from simulate.publisher import Addresses


def parsed(*arguments: str) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(arguments))


def test_no_options_give_the_defaults() -> None:
    assert parsed() == Config()
    assert (Config().max_model_len, Config().host) == (32_768, "127.0.0.1")


def test_options_are_named_like_the_fields() -> None:
    config = parsed(
        *("--port", "0", "--lora", "a", "--lora", "b", "--byte-hashes"),
        *("--served-model-name", "m", "--base-step-s", "0.001", "--blocks", "3000"),
    )
    expected = Config(
        port=0,
        lora=("a", "b"),
        byte_hashes=True,
        served_model_name=("m",),
        base_step_s=0.001,
        blocks=3000,
    )
    assert config == expected
    assert config.names() == ("m",)
    assert (config.limits().blocks, config.speeds().base_step_s) == (3000, 0.001)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--port", "70000"], "port", id="no such port"),
        pytest.param(["--blocks", "64"], "max-model-len", id="one request would not fit"),
        pytest.param(["--lora", "tiny-qwen3"], "name of its own", id="one name twice"),
        pytest.param(
            ["--sliding-window", "64", "--blocks", "3000"], "4097 blocks", id="two groups need both"
        ),
        pytest.param(
            ["--sliding-window", "64", "--offload-blocks", "1"], "together", id="not simulated"
        ),
        pytest.param(
            ["--data-parallel-size", "2", "--kv-folder", "/x"], "one rank", id="sockets for ranks"
        ),
        pytest.param(
            ["--data-parallel-size", "2", "--kv-connect", "ipc://x"], "tcp", id="no port to count"
        ),
    ],
)
def test_bad_settings_are_refused(arguments: Sequence[str], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        parsed(*arguments)


def test_ranks_publish_on_the_ports_that_follow_where_ports_are_given() -> None:
    config = parsed("--data-parallel-size", "2", "--kv-port", "5557")
    assert config.addresses(1) == Addresses(host="127.0.0.1", port=5558, replay_port=0)
    config = parsed("--data-parallel-size", "2", "--kv-connect", "tcp://c:5557")
    assert [config.addresses(rank).connect for rank in (0, 1)] == ["tcp://c:5557", "tcp://c:5558"]
