"""Settings of the simulated engine: options, defaults, what is refused."""

import argparse
from collections.abc import Sequence

import pytest

from simulate.config import BadConfig, Config, add_arguments, from_arguments


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
    ],
)
def test_bad_settings_are_refused(arguments: Sequence[str], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        parsed(*arguments)
