"""Names and readings of the endpoint-picker contract (Gateway API Inference Extension). Pure.

Every reading takes a gateway that says nothing, or something else, for one that has nothing to say.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from coordinator.doors.envoy.messages import Headers

DESTINATION = "x-gateway-destination-endpoint"
"""The header, and the key in `NAMESPACE`, that names the endpoints: some gateways read one of the
two, some the other."""

NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
UPSTREAM = "upstream.address"
"""The attribute in which any Envoy can say where a request went."""

ASKED_FOR = "test-epp-endpoint-selection"
SHOWN_AS = "x-conformance-test-served-endpoint"
"""Of the conformance suite: the endpoints that a test wants, and where the answer shows them."""

DECISION = "x-lineside-decision"
"""Ours: the record of a request, on it for a filter that only watches, and on its answer."""

ENGINE = "x-lineside-engine"
"""Ours: who serves a request, on its answer."""

CONTROL = frozenset(
    {
        DESTINATION,
        SUBSET,
        SERVED,
        DECISION,
        "x-gateway-inference-fairness-id",
        "x-gateway-inference-objective",
        "x-gateway-model-name-rewrite",
        "x-llm-d-inference-fairness-id",
        "x-llm-d-inference-objective",
        "x-llm-d-model-name-rewrite",
    }
)
"""Headers that are meant for pickers, and end here."""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"


def value(headers: Headers, name: str) -> str | None:
    """Return a header's first value."""
    return next((value for key, value in headers if key == name), None)


def listed(text: str) -> tuple[str, ...]:
    """Return what a list with commas names."""
    return tuple(entry for entry in (part.strip() for part in text.split(",")) if entry)


def subset(metadata: Mapping[str, Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the endpoints, or hosts, that may be chosen; `None`: all of them."""
    hint = metadata.get(SUBSET_NAMESPACE, {}).get(SUBSET)
    if hint is None:
        return None
    entries = hint if isinstance(hint, list) else [hint]
    return frozenset(name for entry in entries if isinstance(entry, str) for name in listed(entry))


def served(metadata: Mapping[str, Mapping[str, Any]], attributes: Mapping[str, Any]) -> str | None:
    """Return the endpoint that the gateway says the answer comes from."""
    said = metadata.get(NAMESPACE, {}).get(SERVED) or attributes.get(UPSTREAM)
    return said if isinstance(said, str) and said else None


def host(endpoint: str) -> str:
    """Return an endpoint without its port, and an address without its brackets."""
    name = endpoint.rpartition(":")[0] if endpoint[-1:] != "]" else endpoint
    return (name or endpoint).removeprefix("[").removesuffix("]")


def allows(hint: frozenset[str], endpoint: str) -> bool:
    """Whether a subset holds an endpoint: by name, or as a port of a host."""
    return endpoint in hint or host(endpoint) in hint


def is_address(endpoint: str) -> bool:
    """Whether an endpoint is named by address, as gateways compare it, and not by host name."""
    try:
        ip_address(host(endpoint))
    except ValueError:
        return False
    return True
