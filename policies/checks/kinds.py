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

SERVED_TYPES = frozenset({"OpenAI", "Databricks", "AzureOpenAI"})
"""Types of provider that speak OpenAI's API."""

BASES = {"OpenAI": "https://api.openai.com"}
"""Where providers are that have one address for all."""

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
    if spec.type not in SERVED_TYPES:
        message = f"providers of type {quoted(spec.type)} get no requests yet"
        yield Found(("spec", "type"), "not-yet-served", message)
    elif spec.base_url is None and spec.type not in BASES:
        message = f"a provider of type {quoted(spec.type)} has an address of its own"
        yield Found(("spec", "type"), "no-base-url", message, "name it in `baseURL`")
    if spec.base_url is not None and (why := _unusable(spec.base_url)):
        yield Found(("spec", "baseURL"), "address", f"`baseURL` {why}")
    if spec.credentials is not None:
        yield from _credentials(("spec", "credentials"), spec.credentials)


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


def _credentials(path: Path, credentials: Credentials) -> Iterator[Found]:
    if (credentials.file is None) == (credentials.variable is None):
        both = "neither" if credentials.file is None else "both"
        message = f"a key is read from `file` or from `variable`, and {both} is given"
        yield Found(path, "credentials", message)


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
