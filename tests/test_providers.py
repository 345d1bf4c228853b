"""Providers' keys: whose they are, and what becomes of them when a file or a provider changes."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Signer

from coordinator.apis import Api
from coordinator.candidates import Provider
from coordinator.providers.dialects import Dialect, root_of
from coordinator.providers.keys import ProviderKeys
from lineside.ids import EngineId
from policies.backends import AccessKey, SecretKey
from policies.model import (
    Credentials,
    InferenceProvider,
    Metadata,
    ModelSpec,
    ProviderSpec,
)

ACME = Provider(EngineId("acme"), "http://a/v1", "a")


def provider(
    credentials: Credentials | None, base_url: str = "http://a", **fields: Any
) -> InferenceProvider:
    return InferenceProvider(
        api_version="kinference.buoyant.io/v1alpha1",
        metadata=Metadata(name="acme"),
        spec=ProviderSpec(
            **{"type": "OpenAI"} | fields,
            base_url=base_url,
            credentials=credentials,
            models=(ModelSpec(name="m"),),
        ),
    )


def sent(keys: ProviderKeys, to: Provider = ACME) -> str | None:
    return keys.headers(to, "http://a/v1/chat/completions", b"{}").get("authorization")


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
    assert sent(keys, Provider(EngineId("acme"), "http://b/v1", "b")) == "Bearer two"


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


def asked(keys: ProviderKeys, resource: InferenceProvider) -> dict[str, str]:
    """Return what a provider is sent beside what every one is."""
    spec = resource.spec
    target = Provider(EngineId("acme"), root_of(spec), "a", dialect=Dialect.of(spec))
    keys.read([resource])
    headers = keys.headers(target, "http://a/x", b"{}", "text/event-stream")
    usual = {"content-type": "application/json", "accept-encoding": "identity"}
    usual["accept"] = "text/event-stream"
    assert headers.items() >= usual.items()
    return {name: value for name, value in headers.items() if name not in usual}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"type": "OpenAI"}, {"authorization": "Bearer k"}, id="OpenAI"),
        pytest.param({"type": "Databricks"}, {"authorization": "Bearer k"}, id="Databricks"),
        pytest.param({"type": "AzureOpenAI"}, {"api-key": "k"}, id="Azure OpenAI"),
        pytest.param(
            {"type": "Anthropic"},
            {"x-api-key": "k", "anthropic-version": "2023-06-01"},
            id="Anthropic",
        ),
        pytest.param(
            {"type": "Anthropic", "api_version": "2099-01-01"},
            {"x-api-key": "k", "anthropic-version": "2099-01-01"},
            id="Anthropic, another version",
        ),
        pytest.param(
            {"type": "Bedrock", "region": "eu-west-1"},
            {"authorization": "Bearer k"},
            id="Bedrock with an API key",
        ),
    ],
)
def test_each_type_is_shown_its_key_where_it_looks(
    fields: dict[str, Any], expected: dict[str, str]
) -> None:
    resource = provider(Credentials(variable="K"), **fields)
    assert asked(ProviderKeys({"K": "k"}), resource) == expected


AWS_FILE = (
    "[other]\naws_access_key_id=no\n[eu]\naws_access_key_id = AKID\naws_secret_access_key = S3\n"
)
ENVIRON = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "S3"}


@pytest.mark.parametrize("token", [None, "tok"])
@pytest.mark.parametrize("in_file", [True, False], ids=["from a file", "from the environment"])
def test_requests_to_bedrock_are_signed(tmp_path: Path, in_file: bool, token: str | None) -> None:
    file, keys = tmp_path / "aws", ProviderKeys({})
    if in_file:
        file.write_text(AWS_FILE + (f"aws_session_token = {token}\n" if token else ""))
        source = AccessKey(file=str(file), profile="eu")
    else:
        keys = ProviderKeys(ENVIRON | ({"AWS_SESSION_TOKEN": token} if token else {}))
        source = AccessKey()
    signing = provider(Credentials(access_key=source), type="Bedrock", region="eu-west-1")
    target = Provider(EngineId("acme"), "http://a", "a", dialect=Dialect.of(signing.spec))
    keys.read([signing])
    url = "http://a/model/x.y-v2%3A0/converse"
    headers = keys.headers(target, url, b'{"a": 1}')
    again = AWSRequest("POST", url, {"content-type": "application/json"}, b'{"a": 1}')
    again.context["timestamp"] = headers["x-amz-date"]
    again.headers["X-Amz-Date"] = headers["x-amz-date"]
    if token:
        again.headers["X-Amz-Security-Token"] = token
    signer = SigV4Auth(Signer("AKID", "S3", token), "bedrock", "eu-west-1")
    signature = signer.signature(
        signer.string_to_sign(again, signer.canonical_request(again)), again
    )
    assert headers["authorization"].endswith(f"Signature={signature}")
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert headers.get("x-amz-security-token") == token


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        pytest.param(Credentials(variable="NONE"), "`NONE` is not in the environment", id="unset"),
        pytest.param(Credentials(variable="ODD"), "`ODD` holds no key", id="two lines"),
        pytest.param(
            Credentials(secret=SecretKey(name="s")),
            "a key in a Secret is not read yet",
            id="a Secret",
        ),
        pytest.param(
            Credentials(access_key=AccessKey()),
            "`AWS_ACCESS_KEY_ID` or `AWS_SECRET_ACCESS_KEY` is not in the environment",
            id="no access key in the environment",
        ),
        pytest.param(
            Credentials(access_key=AccessKey(file="{folder}/none")),
            "`credentials.accessKey.file` cannot be read: No such file or directory",
            id="no such file",
        ),
        pytest.param(
            Credentials(access_key=AccessKey(file="{folder}/aws", profile="gone")),
            "`credentials.accessKey.file` holds no access key in that profile",
            id="no such profile",
        ),
        pytest.param(
            Credentials(access_key=AccessKey(file="{folder}/odd")),
            "`credentials.accessKey.file` holds no access key in that profile",
            id="no file of that kind",
        ),
        pytest.param(
            Credentials(access_key=AccessKey(file="{folder}")),
            "`credentials.accessKey.file` is no regular file",
            id="a folder",
        ),
    ],
)
def test_why_a_key_is_missing_is_said_without_what_was_found(
    tmp_path: Path, credentials: Credentials, why: str
) -> None:
    (tmp_path / "aws").write_text(AWS_FILE)
    (tmp_path / "odd").write_text("sk-secret-in-one-line\n")
    if (said := credentials.access_key) is not None and said.file is not None:
        at = said.file.format(folder=tmp_path)
        credentials = Credentials(access_key=AccessKey(file=at, profile=said.profile))
    keys = ProviderKeys({"ODD": "one\ntwo"})
    keys.read([provider(credentials, type="Bedrock", region="eu-west-1")])
    assert keys.problems == {"acme": why}


def test_a_key_that_comes_is_no_problem_any_more(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    acme = provider(Credentials(file=str(file)))
    keys.read([acme])
    assert list(keys.problems) == ["acme"]
    file.write_text("one")
    keys.read([acme])
    assert (keys.problems, sent(keys)) == ({}, "Bearer one")


def test_a_key_is_missing_until_it_was_read_and_then_no_more(tmp_path: Path) -> None:
    file, keys = tmp_path / "key", ProviderKeys({})
    needing, acme = replace(ACME, needs_key=True), provider(Credentials(file=str(file)))
    assert keys.missing(needing) == "it was not looked for yet"
    keys.read([acme])
    assert keys.missing(needing) == "`credentials.file` cannot be read: No such file or directory"
    file.write_text("one")
    keys.read([acme])
    assert keys.missing(needing) is None
    file.unlink()
    keys.read([acme])
    assert (keys.missing(needing), list(keys.problems)) == (None, ["acme"])  # it stays in force


def test_a_provider_that_names_no_credentials_misses_none(tmp_path: Path) -> None:
    keys = ProviderKeys({})
    keys.read([provider(Credentials(variable="NOT_THERE"))])
    keys.read([provider(None)])
    assert (keys.missing(ACME), keys.problems) == (None, {})


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_bedrock_is_asked_where_and_as_its_own_client_asks(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the library's client, which is stopped before it sends."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now)
    model = "arn:aws:bedrock:eu-west-1::foundation-model/x.y-v2:0"
    theirs = _as_the_client_asks(model, streams)
    acme = provider(Credentials(access_key=AccessKey()), EU, type="Bedrock", region="eu-west-1")
    target = Provider(EngineId("acme"), root_of(acme.spec), "a", dialect=Dialect.of(acme.spec))
    url = target.base_url + target.dialect.path(Api.BEDROCK_CONVERSE, model, streams)
    keys = ProviderKeys(ENVIRON)
    keys.read([acme])
    ours = keys.headers(target, url, theirs.body)
    assert url == theirs.url
    for name in ("authorization", "x-amz-date", "content-type"):
        said = theirs.headers[name]
        assert ours[name] == (said.decode() if isinstance(said, bytes) else said)


EU = "https://bedrock-runtime.eu-west-1.amazonaws.com"


class _Stopped(Exception):
    """Ends a call of the library's client."""


def _as_the_client_asks(model: str, streams: bool) -> Any:
    client = botocore.session.Session().create_client(
        "bedrock-runtime", "eu-west-1", aws_access_key_id="AKID", aws_secret_access_key="S3"
    )
    seen = []

    def stop(request: Any, **_: Any) -> None:
        seen.append(request)
        raise _Stopped

    client.meta.events.register("before-send.bedrock-runtime.*", stop)
    ask = client.converse_stream if streams else client.converse
    with pytest.raises(_Stopped):
        ask(modelId=model, messages=[{"role": "user", "content": [{"text": "hi"}]}])
    (request,) = seen
    return request
