"""Where each type of provider is asked, and in which API."""

from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from coordinator.apis import Api
from coordinator.candidates import Provider, spoken
from coordinator.providers.dialects import TRANSLATED, Dialect, root_of
from lineside.ids import EngineId
from policies.backends import ModelSpec, ProviderSpec, SpokenApi
from tests.scene import view

AZURE, BRICKS = "https://n.openai.azure.com", "https://d.example"
EU = "https://bedrock-runtime.eu-west-1.amazonaws.com"


def spec(type_: Any, **fields: Any) -> ProviderSpec:
    return ProviderSpec(type=type_, models=(ModelSpec(name="m"),), **fields)


@pytest.mark.parametrize(
    ("said", "api", "url"),
    [
        (spec("OpenAI"), "openai-chat", "https://api.openai.com/v1/chat/completions"),
        (spec("OpenAI"), "openai-responses", "https://api.openai.com/v1/responses"),
        (spec("OpenAI"), "anthropic-messages", "https://api.openai.com/v1/chat/completions"),
        (spec("OpenAI", base_url="http://a:1/"), "openai-embeddings", "http://a:1/v1/embeddings"),
        (spec("OpenAI", base_url="http://a/p"), "openai-completions", "http://a/p/completions"),
        (
            spec("OpenAI", base_url="http://a/v1", apis=("anthropic-messages",)),
            "openai-chat",
            "http://a/v1/messages",
        ),
        (spec("AzureOpenAI", base_url=AZURE), "openai-chat", f"{AZURE}/openai/v1/chat/completions"),
        (
            spec("AzureOpenAI", base_url=f"{AZURE}/openai/v1/", api_version="preview"),
            "openai-responses",
            f"{AZURE}/openai/v1/responses?api-version=preview",
        ),
        (
            spec("AzureOpenAI", base_url=f"{AZURE}/openai", api_version="2024-10-21"),
            "openai-chat",
            f"{AZURE}/openai/deployments/a.b%2Fc-v2%3A0/chat/completions?api-version=2024-10-21",
        ),
        (
            spec("Databricks", base_url=BRICKS),
            "openai-chat",
            f"{BRICKS}/serving-endpoints/chat/completions",
        ),
        (
            spec("Databricks", base_url=f"{BRICKS}/serving-endpoints/"),
            "openai-embeddings",
            f"{BRICKS}/serving-endpoints/embeddings",
        ),
        (
            spec("Databricks", base_url=f"{BRICKS}/mlflow/v1"),
            "openai-chat",
            f"{BRICKS}/mlflow/v1/chat/completions",
        ),
        (spec("Anthropic"), "anthropic-messages", "https://api.anthropic.com/v1/messages"),
        (spec("Anthropic"), "openai-chat", "https://api.anthropic.com/v1/messages"),
        (
            spec("Anthropic", base_url="http://a/anthropic/v1"),
            "anthropic-messages",
            "http://a/anthropic/v1/messages",
        ),
        (
            spec("Bedrock", region="eu-west-1"),
            "openai-chat",
            f"{EU}/model/a.b%2Fc-v2%3A0/converse",
        ),
        (
            spec("Bedrock", base_url="http://a"),
            "anthropic-messages",
            "http://a/model/a.b%2Fc-v2%3A0/converse",
        ),
    ],
)
def test_a_client_s_request_goes_to_the_path_of_the_provider_s_api(
    said: ProviderSpec, api: str, url: str
) -> None:
    dialect = Dialect.of(said)
    there = dialect.spoken(Api(api))
    assert there is not None
    assert root_of(said) + dialect.path(there, "a.b/c-v2:0", streams=False) == url


def test_a_stream_of_bedrock_has_a_path_of_its_own() -> None:
    dialect = Dialect.of(spec("Bedrock", region="eu-west-1"))
    assert dialect.path(Api.BEDROCK_CONVERSE, "m", streams=True) == "/model/m/converse-stream"


@pytest.mark.parametrize(
    ("type_", "served"),
    [
        ("OpenAI", "chat completions responses embeddings messages"),
        ("AzureOpenAI", "chat completions responses embeddings messages"),
        ("Databricks", "chat completions responses embeddings messages"),
        ("Anthropic", "chat responses messages"),
        ("Bedrock", "chat responses messages"),
    ],
)
def test_what_a_type_cannot_be_asked_is_none_of_its(type_: str, served: str) -> None:
    dialect = Dialect.of(spec(type_, base_url="https://a.example"))
    asked = [api for api in Api if api is not Api.BEDROCK_CONVERSE and dialect.spoken(api)]
    assert {api.value.partition("-")[2] for api in asked} == set(served.split())


def test_what_a_provider_speaks_itself_is_not_translated() -> None:
    apis: tuple[SpokenApi, ...] = ("openai-chat", "anthropic-messages")
    dialect = Dialect.of(spec("OpenAI", apis=apis))
    for api in (Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES):
        assert dialect.spoken(api) is api
    assert dialect.spoken(Api.OPENAI_RESPONSES) is Api.OPENAI_CHAT
    assert dialect.spoken(Api.OPENAI_COMPLETIONS) is None


def test_an_engine_is_asked_what_the_client_asked() -> None:
    engine, acme = view("a").engine, Provider(EngineId("p"), "", "", dialect=Dialect("Bedrock"))
    assert [spoken(engine, api) for api in Api] == list(Api)
    assert spoken(acme, Api.OPENAI_CHAT) is Api.OPENAI_CHAT  # as made by hand: OpenAI's


def test_nothing_is_translated_from_what_no_client_speaks() -> None:
    assert Api.BEDROCK_CONVERSE not in TRANSLATED


def test_no_deployment_of_azure_has_a_path_for_responses() -> None:
    dated = Dialect.of(spec("AzureOpenAI", base_url=AZURE, api_version="2024-10-21"))
    assert dated.spoken(Api.OPENAI_RESPONSES) is Api.OPENAI_CHAT


def _asked(call: Callable[[httpx2.Client], object]) -> httpx2.Request:
    """Return what a client would send."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        call(http)
    return seen[0]


HELLO: Any = [{"role": "user", "content": "hi"}]


def _openai(base_url: str | None = None) -> Callable[[httpx2.Client], object]:
    return lambda http: openai.OpenAI(
        base_url=base_url, api_key="K", http_client=http
    ).chat.completions.create(model="m", messages=HELLO)


def _azure(http: httpx2.Client) -> object:
    client = openai.AzureOpenAI(
        azure_endpoint=AZURE, api_version="2024-10-21", api_key="K", http_client=http
    )
    return client.chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize(
    ("said", "theirs", "named"),
    [
        pytest.param(spec("OpenAI"), _openai(), ["authorization"], id="OpenAI"),
        pytest.param(
            spec("Databricks", base_url=BRICKS),
            _openai(f"{BRICKS}/serving-endpoints"),
            ["authorization"],
            id="Databricks",
        ),
        pytest.param(
            spec("AzureOpenAI", base_url=AZURE, api_version="2024-10-21"),
            _azure,
            ["api-key"],
            id="Azure",
        ),
    ],
)
def test_a_provider_is_asked_where_and_as_its_own_client_asks(
    said: ProviderSpec, theirs: Callable[[httpx2.Client], object], named: list[str]
) -> None:
    request = _asked(theirs)
    dialect = Dialect.of(said)
    api = dialect.spoken(Api.OPENAI_CHAT)
    assert api is not None
    assert root_of(said) + dialect.path(api, "m", streams=False) == str(request.url)
    assert dialect.headers("K") == {name: request.headers[name] for name in named}


def test_anthropic_is_asked_where_its_own_client_asks() -> None:
    """It may name a newer version than what chats are translated to; its own clients say which."""
    request = _asked(
        lambda http: anthropic.Anthropic(api_key="K", http_client=http).messages.create(
            model="m", messages=HELLO, max_tokens=1
        )
    )
    said = spec("Anthropic")
    dialect = Dialect.of(said)
    path = dialect.path(Api.ANTHROPIC_MESSAGES, "m", streams=False)
    assert root_of(said) + path == str(request.url)
    assert "anthropic-version" in request.headers
    assert dialect.kept(Api.ANTHROPIC_MESSAGES) == ("anthropic-beta", "anthropic-version")


@pytest.mark.parametrize(
    ("said", "api", "kept"),
    [
        (spec("Anthropic"), Api.OPENAI_CHAT, ()),
        (spec("Anthropic", api_version="v"), Api.ANTHROPIC_MESSAGES, ("anthropic-beta",)),
        (spec("OpenAI"), Api.ANTHROPIC_MESSAGES, ()),
        (spec("Bedrock", region="r"), Api.ANTHROPIC_MESSAGES, ()),
    ],
)
def test_clients_say_what_an_api_is_to_be_like_where_it_is_theirs(
    said: ProviderSpec, api: Api, kept: tuple[str, ...]
) -> None:
    assert Dialect.of(said).kept(api) == kept
