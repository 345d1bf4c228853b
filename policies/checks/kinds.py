"""The kinds beside policies: what their fields mean together. Pure."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from lineside.schema import Path
from policies.checks.codes import Found
from policies.checks.words import quoted
from policies.model import (
    BackendSpec,
    Credentials,
    GatewayBackend,
    InferencePool,
    InferenceProvider,
    ModelSpec,
    ProviderSpec,
    Resource,
)

_VERSIONED = frozenset({"AzureOpenAI", "Anthropic"})
"""Types of provider that are told which version of their API is meant."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?)(:\d{1,5})?\Z", re.ASCII)
"""An address, or a name that DNS can hold, and a port."""


def check_kind(resource: Resource) -> Iterator[Found]:
    """Check a resource that is not a policy."""
    match resource:
        case InferenceProvider(spec=spec):
            yield from _provider(spec)
            yield from _models(spec.models)
        case InferencePool(spec=spec):
            yield from _models(spec.models)
        case GatewayBackend(spec=spec):
            yield from _backend(spec)


def _provider(spec: ProviderSpec) -> Iterator[Found]:
    if not spec.root and spec.type != "Bedrock":
        message = f"a provider of type {quoted(spec.type)} has an address of its own"
        yield Found(("spec", "type"), "no-base-url", message, "name it in `baseURL`")
    if spec.base_url is not None and (why := _unusable(spec.base_url)):
        yield Found(("spec", "baseURL"), "address", f"`baseURL` {why}")
    yield from _of_type(spec)
    if spec.credentials is not None:
        yield from _credentials(("spec", "credentials"), spec)


def _of_type(spec: ProviderSpec) -> Iterator[Found]:
    """Find fields that a type lacks, or has no use for."""
    is_bedrock, key = spec.type == "Bedrock", spec.credentials and spec.credentials.access_key
    if is_bedrock and spec.region is None and (spec.base_url is None or key is not None):
        message = "a provider of type `Bedrock` is in one region"
        yield Found(("spec", "type"), "no-region", message, "name it: `region: us-east-1`")
    unfit = {
        "region": spec.region is not None and not is_bedrock,
        "apiVersion": spec.api_version is not None and spec.type not in _VERSIONED,
        "apis": spec.apis is not None and is_bedrock,
    }
    for field in (name for name, is_there in unfit.items() if is_there):
        message = f"`{field}` means nothing for a provider of type {quoted(spec.type)}"
        yield Found(("spec", field), "provider-field", message)
    if key is not None and not is_bedrock:
        message = f"a provider of type {quoted(spec.type)} takes an API key, and signs nothing"
        yield Found(("spec", "credentials", "accessKey"), "provider-field", message)


def _unusable(url: str) -> str:
    """Say what is wrong with an address, without it: it may hold a password. Empty: nothing."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if "@" in parts.netloc:
        return "holds credentials"
    if not host or port == 0 or not _HOST.match(parts.netloc) or not url.isprintable():
        return "names no host that can be reached"
    return "has a query or a fragment" if "?" in url or "#" in url else ""


def _credentials(path: Path, spec: ProviderSpec) -> Iterator[Found]:
    said = spec.credentials or Credentials()
    ways = {
        "file": said.file,
        "variable": said.variable,
        "secret": said.secret,
        "accessKey": said.access_key,
    }
    given = [f"`{name}`" for name, way in ways.items() if way is not None]
    if len(given) != 1:
        listed = " and ".join(given) or "none of them"
        message = f"a key is read from one of {', '.join(f'`{name}`' for name in ways)}, and "
        message += f"{listed} {'are' if len(given) > 1 else 'is'} given"
        yield Found(path, "credentials", message)
    if said.secret is not None:
        message = "a key in a Secret is not read yet, so the provider is asked without one"
        yield Found((*path, "secret"), "secret-not-read", message)


def _models(models: Sequence[ModelSpec]) -> Iterator[Found]:
    names = [model.name for model in models]
    for place, name in enumerate(names):
        if name in names[:place]:
            message = f"model {quoted(name)} is there twice"
            yield Found(("spec", "models", place, "name"), "duplicate-name", message)


def _backend(spec: BackendSpec) -> Iterator[Found]:
    if (spec.pool is None) == (spec.provider is None):
        both = "neither a pool nor a provider" if spec.pool is None else "both"
        message = f"a gateway backend is a pool or a provider, and this one names {both}"
        yield Found(("spec",), "backend-target", message)
