"""Resources that a cluster must refuse, each for one reason, and the code that `lint` says."""

from typing import Any

API = "kinference.buoyant.io/v1alpha1"


def resource(kind: str, spec: Any, name: str = "r") -> dict[str, Any]:
    """Return a resource."""
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "namespace": "inference"},
        "spec": spec,
    }


def policy(**rule: Any) -> dict[str, Any]:
    """Return a policy of one rule."""
    return resource("InferencePolicy", {"rules": [{"name": "one", **rule}]})


def stage(**fields: Any) -> dict[str, Any]:
    """Return a policy with one stage."""
    return policy(route={"select": [fields]})


def provider(**fields: Any) -> dict[str, Any]:
    """Return a provider that is good but for these fields."""
    spec = {"type": "OpenAI", "models": [{"name": "m"}], **fields}
    return resource("InferenceProvider", spec)


KEY = {"secret": {"name": "s"}}
SIGNED = {"accessKey": {}}

REFUSED_BY_RULE: list[tuple[str, str, dict[str, Any]]] = [
    ("a rule that does nothing", "no-effect", policy()),
    ("a rule with an empty list of limits", "no-effect", policy(limits=[])),
    ("a rule that matches nothing", "no-effect", policy(matches=[], route={})),
    ("a route that is never used", "reject-and-route", policy(reject={"message": "no"}, route={})),
    ("a limit without a number", "empty-limit", policy(limits=[{"window": "1m"}])),
    (
        "two ways to rank",
        "several-rankings",
        stage(minimize="Cost", maximize="CachedTokens"),
    ),
    ("an order and a ranking", "several-rankings", stage(order=["a"], minimize="Cost")),
    ("a split without weight", "split-zero", stage(split=[{"backend": "a", "weight": 0}])),
    (
        "a share of two",
        "split-share",
        stage(split=[{"backend": "a", "model": "b", "weight": 1}]),
    ),
    ("a share of nothing", "split-share", stage(split=[{"weight": 1}])),
    ("no address", "no-base-url", provider(type="Databricks")),
    ("no region", "no-region", provider(type="Bedrock")),
    (
        "no region to sign for",
        "no-region",
        provider(type="Bedrock", baseURL="https://b.example/v1", credentials=SIGNED),
    ),
    ("a region for nobody", "provider-field", provider(region="us-east-1")),
    ("a version for nobody", "provider-field", provider(apiVersion="v1")),
    (
        "APIs that cannot be chosen",
        "provider-field",
        provider(type="Bedrock", region="us-east-1", apis=["openai-chat"]),
    ),
    ("a signature for nobody", "provider-field", provider(credentials=SIGNED)),
    ("two places of a key", "credentials", provider(credentials={**KEY, "file": "/k"})),
    ("no place of a key", "credentials", provider(credentials={})),
    ("neither pool nor provider", "backend-target", resource("GatewayBackend", {})),
    (
        "both pool and provider",
        "backend-target",
        resource("GatewayBackend", {"pool": "a", "provider": "b"}),
    ),
]
"""What it is, the code, the resource: by a rule in CEL."""

REFUSED_BY_SCHEMA: list[tuple[str, str, dict[str, Any]]] = [
    ("a field that there is not", "strict decoding", stage(minimise="Cost")),
    ("a word that there is not", "Unsupported value", stage(minimize="Kost")),
    ("no rules", "should have at least 1 items", resource("InferencePolicy", {"rules": []})),
    ("no name", "Required value", resource("InferencePolicy", {"rules": [{"route": {}}]})),
    (
        "a status that answers nothing",
        "should be greater than or equal to 400",
        policy(reject={"status": 200, "message": "no"}),
    ),
    ("no time", "should match", policy(limits=[{"window": "1x", "requests": 5}])),
    ("a control character", "should match", policy(matches=[{"model": "a\nb"}], route={})),
    ("no number", "must be of type integer", policy(route={"set": {"maxTokens": "many"}})),
    ("no models", "should have at least 1 items", provider(models=[])),
    (
        "a time of nothing",
        "should be greater than 0",
        provider(timeoutSeconds=0),
    ),
]
"""What it is, words of the answer, the resource: by types and bounds."""

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("an empty pool", resource("InferencePool", {})),
    ("a set of pods", resource("InferenceWorkerSet", {"selector": {"app": "vllm"}})),
    ("a backend", resource("GatewayBackend", {"pool": "glm", "failureMode": "Open"})),
    ("Bedrock, signed", provider(type="Bedrock", region="eu-west-1", credentials=SIGNED)),
    ("Bedrock behind a proxy", provider(type="Bedrock", baseURL="https://b.example/v1")),
    ("a version that is asked for", provider(type="Anthropic", apiVersion="2023-06-01")),
    (
        "any value that JSON has",
        policy(route={"set": {"parameters": {"n": 1, "stop": ["a"], "x": {"y": [None, 1.5]}}}}),
    ),
    ("a rule that only limits", policy(limits=[{"window": "1m", "requests": 5}])),
    (
        "a thousand rules",
        resource(
            "InferencePolicy", {"rules": [{"name": f"r{n}", "route": {}} for n in range(1000)]}
        ),
    ),
]
