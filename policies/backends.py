"""The structs of what computes requests: models, engines, pools, and providers. Values only.

Their fields are ours to define (docs/policies.md, docs/providers.md); see `model` for the kinds.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, field

from policies.strict import Labels, Number, Strict, Unshown
from policies.words import Exact, Glob, ModelWord, Name


class Price(Strict, frozen=True, kw_only=True):
    """Money for a million tokens. `None`: not known; zero is zero."""

    input: Number | None = None
    cached_input: Number | None = None
    output: Number | None = None


class ModelSpec(Strict, frozen=True, kw_only=True):
    """One model that a pool or a provider serves."""

    name: ModelWord
    """What policies and records call it. A pool's engines serve it under this name."""
    upstream: Name | None = None
    """What a provider calls it, where that differs."""
    aliases: tuple[ModelWord, ...] = ()
    classes: tuple[ModelWord, ...] = ()
    labels: Labels = field(default_factory=dict)
    price: Price | None = None


class EngineAddress(Strict, frozen=True, kw_only=True):
    """A vLLM server outside Kubernetes, as `lineside up --engine` names it."""

    url: Name


Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]


class Ports(Strict, frozen=True, kw_only=True):
    """Where each of the selected pods listens."""

    http: Port = 8000
    """Of its HTTP server."""
    events: Port | None = None
    """Of its KV events (ZMQ). `None`: what the server says, else 5557."""
    replay: Port | None = None
    """Of its replay socket. `None`: what the server says, else 5558."""


class WorkerSetSpec(Strict, frozen=True, kw_only=True):
    """vLLM servers that are alike: pods by their labels, or a list of addresses."""

    selector: Labels | None = None
    """Labels of pods in the resource's namespace. Has no effect outside Kubernetes."""
    ports: Ports = field(default_factory=Ports)
    tokenizer: Name | None = None
    """Of the selected pods: a directory, or ORG/NAME at a model hub. `None`: what the server names
    as its model."""
    engines: tuple[EngineAddress, ...] = ()
    labels: Labels = field(default_factory=dict)
    price: Price | None = None


class Saturation(Strict, frozen=True, kw_only=True):
    """From where on an engine counts as saturated; any bound that is reached does."""

    queued_prompts: Annotated[int, Meta(ge=0)] | None = 4
    kv_cache_usage: Annotated[float, Meta(ge=0, le=1)] | None = 0.95


class PoolSpec(Strict, frozen=True, kw_only=True):
    """Engines that serve the same models; several worker sets make one pool."""

    worker_sets: tuple[Glob, ...] = ()
    """Names of worker sets. None at all: every engine that serves one of its models."""
    models: tuple[ModelSpec, ...] = ()
    labels: Labels = field(default_factory=dict)
    saturation: Saturation = field(default_factory=Saturation)


class SecretKey(Strict, frozen=True, kw_only=True):
    """A key of a Kubernetes Secret in the provider's namespace."""

    name: Name
    key: Name = "key"


class AccessKey(Strict, frozen=True, kw_only=True):
    """An AWS access key, with which each request is signed."""

    file: Annotated[Name, Unshown] | None = None
    """As the AWS tools write it. `None`: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if any,
    `AWS_SESSION_TOKEN` of the environment."""
    profile: Name = "default"
    """The file's section."""


class Credentials(Strict, frozen=True, kw_only=True):
    """Where a provider's key is read: one of these; never the key itself."""

    file: Annotated[Name, Unshown] | None = None
    """Holds an API key in one line; read again when it changes."""
    variable: Annotated[Name, Unshown] | None = None
    """Of the environment; holds an API key."""
    secret: SecretKey | None = None
    """Not read yet (lint says so)."""
    access_key: AccessKey | None = None
    """Bedrock only."""


ProviderType: TypeAlias = Literal["OpenAI", "Anthropic", "Bedrock", "Databricks", "AzureOpenAI"]
SpokenApi: TypeAlias = Literal[
    "openai-chat",
    "openai-completions",
    "openai-responses",
    "openai-embeddings",
    "anthropic-messages",
]
APIS: tuple[SpokenApi, ...] = get_args(SpokenApi)
"""Those that requests come in: there are no others."""
NEVER_STREAMED = frozenset[SpokenApi]({"openai-embeddings"})


class ProviderSpec(Strict, frozen=True, kw_only=True):
    """A third party that computes requests."""

    type: ProviderType
    """What it speaks, and how it wants to be asked."""
    base_url: Annotated[str, Meta(pattern=r"^https?://\S+\Z", title="a URL")] | None = field(
        default=None, name="baseURL"
    )
    """Where its API begins. `None`: where its type's always does."""
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}\Z", title="a region")] | None = None
    """Bedrock's."""
    api_version: Annotated[str, Meta(pattern=r"^[\w.-]{1,32}\Z", title="a version")] | None = None
    """Azure OpenAI's `api-version`, Anthropic's `anthropic-version`. `None`: Azure's `v1` paths,
    which need none; Anthropic's `2023-06-01`."""
    apis: Annotated[tuple[SpokenApi, ...], Meta(min_length=1)] | None = None
    """APIs that it speaks itself. `None`: those of its type. Requests in others are translated,
    where that loses nothing."""
    credentials: Credentials | None = None
    models: Annotated[tuple[ModelSpec, ...], Meta(min_length=1)]
    labels: Labels = field(default_factory=dict)
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] | None = field(
        default=None, name="timeoutSeconds"
    )
    """For one whole answer. `None`: the gateway's own timeouts alone."""

    @property
    def root(self) -> str:
        """Where its API begins, without a slash at the end; empty: nobody can know."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        if self.type == "Bedrock" and self.region is not None:
            return f"https://bedrock-runtime.{self.region}.amazonaws.com"
        return ROOTS.get(self.type, "")


ROOTS: Mapping[ProviderType, str] = {
    "OpenAI": "https://api.openai.com/v1",
    "Anthropic": "https://api.anthropic.com",
}
"""Where providers are that have one address for all."""


class BackendSpec(Strict, frozen=True, kw_only=True):
    """What a gateway's route points to: a pool or a provider."""

    pool: Exact | None = None
    provider: Exact | None = None
    failure_mode: Literal["Closed", "Open"] = "Closed"
