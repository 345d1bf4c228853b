"""How each type of provider wants to be asked: which APIs, at which paths, with which key. Pure.

One `Dialect` for each provider, made when resources change. What a body must be is `translate`'s,
what a key is `providers`'; nothing here sees either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from coordinator.apis import Api
from policies.backends import ProviderSpec, ProviderType

ANTHROPIC_VERSION = "2023-06-01"
"""What is said to Anthropic where the resource says nothing."""

_UNDATED = frozenset({None, "preview", "latest"})
"""Versions of Azure OpenAI's API that are asked for at its `v1` paths, by model."""

_OPENAI = frozenset(
    {Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS, Api.OPENAI_RESPONSES, Api.OPENAI_EMBEDDINGS}
)
_NATIVE: Mapping[ProviderType, frozenset[Api]] = {
    "OpenAI": _OPENAI,
    "AzureOpenAI": _OPENAI,
    "Databricks": _OPENAI - {Api.OPENAI_RESPONSES},
    "Anthropic": frozenset({Api.ANTHROPIC_MESSAGES}),
    "Bedrock": frozenset({Api.BEDROCK_CONVERSE}),
}
"""What each type of provider speaks itself, unless its resource says otherwise."""

TRANSLATED: Mapping[Api, tuple[Api, ...]] = {
    Api.OPENAI_CHAT: (Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE),
    Api.ANTHROPIC_MESSAGES: (Api.OPENAI_CHAT, Api.BEDROCK_CONVERSE),
    Api.OPENAI_RESPONSES: (Api.OPENAI_CHAT, Api.ANTHROPIC_MESSAGES, Api.BEDROCK_CONVERSE),
}
"""What a client's API can be put into, best first. The others are one provider's own or nothing."""

_PATHS: Mapping[Api, str] = {
    Api.OPENAI_CHAT: "chat/completions",
    Api.OPENAI_COMPLETIONS: "completions",
    Api.OPENAI_RESPONSES: "responses",
    Api.OPENAI_EMBEDDINGS: "embeddings",
    Api.ANTHROPIC_MESSAGES: "messages",
}
"""Below the root of an API."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One provider's."""

    type: ProviderType = "OpenAI"
    native: frozenset[Api] = _OPENAI
    api_version: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, spec: ProviderSpec) -> "Dialect":
        """Return what a resource says."""
        native = _NATIVE[spec.type]
        if spec.apis is not None:
            native = frozenset(Api(name) for name in spec.apis)
        elif spec.type == "AzureOpenAI" and spec.api_version not in _UNDATED:
            native -= {Api.OPENAI_RESPONSES}  # no deployment has a path for it
        return cls(spec.type, native, spec.api_version, spec.region)

    def spoken(self, api: Api) -> Api | None:
        """Return the API in which a client's request is put to it; `None`: in none."""
        if api in self.native:
            return api
        return next((other for other in TRANSLATED.get(api, ()) if other in self.native), None)

    def path(self, api: Api, model: str, streams: bool) -> str:
        """Return where a request goes, below `root_of`, quoted. `model`: the provider's name."""
        if self.type == "Bedrock":
            return f"/model/{quote(model, safe='')}/converse{'-stream' if streams else ''}"
        if self.type != "AzureOpenAI":
            return f"/{_PATHS[api]}"
        if self.api_version in _UNDATED:
            query = f"?api-version={self.api_version}" if self.api_version else ""
            return f"/v1/{_PATHS[api]}{query}"
        deployment = quote(model, safe="")
        return f"/deployments/{deployment}/{_PATHS[api]}?api-version={self.api_version}"

    @property
    def count_path(self) -> str | None:
        """Return where it counts a message's tokens, below `root_of`; `None`: nowhere."""
        is_asked = Api.ANTHROPIC_MESSAGES in self.native and self.type not in (
            "Bedrock",
            "AzureOpenAI",
        )
        return f"/{_PATHS[Api.ANTHROPIC_MESSAGES]}/count_tokens" if is_asked else None

    def kept(self, api: Api) -> tuple[str, ...]:
        """Return which of a client's headers it is sent: they say what its API is to be like."""
        if api is not Api.ANTHROPIC_MESSAGES or api not in self.native:
            return ()
        return ("anthropic-beta",) if self.api_version else ("anthropic-beta", "anthropic-version")

    def headers(self, key: str | None) -> dict[str, str]:
        """Return what says who asks, and in which version of the API."""
        if self.type == "Anthropic":
            named = {"anthropic-version": self.api_version or ANTHROPIC_VERSION}
            return named if key is None else named | {"x-api-key": key}
        if key is None:
            return {}
        return (
            {"api-key": key} if self.type == "AzureOpenAI" else {"authorization": f"Bearer {key}"}
        )


def root_of(spec: ProviderSpec) -> str:
    """Return what a provider's paths are below: people write more of it, or less."""
    root = spec.root
    match spec.type:
        case "Bedrock":
            return root
        case "AzureOpenAI":
            return root.removesuffix("/v1").removesuffix("/openai") + "/openai"
        case "Anthropic":
            return root.removesuffix("/v1") + "/v1"
        case "Databricks" if not root.endswith("/v1"):
            return root.removesuffix("/serving-endpoints") + "/serving-endpoints"
        case _:
            return root if urlsplit(root).path else f"{root}/v1"
