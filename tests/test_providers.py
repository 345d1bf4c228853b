"""Providers' keys: whose they are, and what becomes of them when a file or a provider changes."""

import os
from pathlib import Path

from coordinator.candidates import Provider
from coordinator.providers import ProviderKeys
from lineside.ids import EngineId
from policies.model import (
    Credentials,
    InferenceProvider,
    Metadata,
    ModelSpec,
    ProviderSpec,
)

ACME = Provider(EngineId("acme"), "http://a", "a")


def provider(credentials: Credentials, base_url: str = "http://a") -> InferenceProvider:
    return InferenceProvider(
        api_version="kinference.buoyant.io/v1alpha1",
        metadata=Metadata(name="acme"),
        spec=ProviderSpec(
            type="OpenAI",
            base_url=base_url,
            credentials=credentials,
            models=(ModelSpec(name="m"),),
        ),
    )


def sent(keys: ProviderKeys) -> str | None:
    return keys.headers(ACME, streams=False).get("authorization")


def test_a_key_that_cannot_be_read_any_more_stays(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    file.write_text("one\n")
    acme = provider(Credentials(file=str(file)))
    keys.read([acme])
    file.unlink()
    keys.read([acme])
    assert sent(keys) == "Bearer one"


def test_a_key_does_not_follow_its_provider_to_another_address(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    file.write_text("one\n")
    keys.read([provider(Credentials(file=str(file)))])
    file.unlink()
    keys.read([provider(Credentials(file=str(file)), "http://b")])
    assert sent(keys) is None


def test_a_request_on_its_way_to_where_a_provider_was_gets_no_key_of_where_it_is(
    tmp_path: Path,
) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    file.write_text("two\n")
    keys.read([provider(Credentials(file=str(file)), "http://b/v1")])
    assert sent(keys) is None
    there = Provider(EngineId("acme"), "http://b", "b")
    assert keys.headers(there, streams=False)["authorization"] == "Bearer two"


def test_a_key_is_not_used_in_the_place_of_another_that_is_missing(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    file.write_text("one\n")
    keys.read([provider(Credentials(file=str(file)))])
    keys.read([provider(Credentials(file=str(tmp_path / "other")))])
    assert sent(keys) is None
    keys.read([provider(Credentials(file=str(file)))])
    keys.read([provider(Credentials(variable="NOT_THERE"))])
    assert sent(keys) is None


def test_a_pipe_is_no_key_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe, keys = tmp_path / "key", ProviderKeys({})
    os.mkfifo(pipe)
    keys.read([provider(Credentials(file=str(pipe)))])
    assert sent(keys) is None
