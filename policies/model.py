"""The five kinds of resource and the parts of a policy, as strict structs. Pure; values only.

A struct says what a field may hold; what fields mean together is `lint`'s, what they do is
`evaluate`'s. Fields are written in camel case in documents. Only the policy's fields are published;
those of the other kinds are ours (docs/policies.md).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from policies.backends import BackendSpec as BackendSpec
from policies.backends import Credentials as Credentials
from policies.backends import EngineAddress as EngineAddress
from policies.backends import ModelSpec as ModelSpec
from policies.backends import PoolSpec as PoolSpec
from policies.backends import Price as Price
from policies.backends import ProviderSpec as ProviderSpec
from policies.backends import Saturation as Saturation
from policies.backends import WorkerSetSpec as WorkerSetSpec
from policies.strict import Labels as Labels
from policies.strict import Number as Number
from policies.strict import Strict as Strict
from policies.strict import Unshown as Unshown
from policies.words import Exact, Glob, ResourceName
from policies.words import Name as Name  # read as ours by those who have structs of their own

API_VERSION: Final = "kinference.buoyant.io/v1alpha1"


class BackendType(Enum):
    """Where a request is computed: by an engine of ours, or by somebody else."""

    LOCAL = "Local"
    PROVIDER = "Provider"


class Measure(Enum):
    """What candidates are ranked by. `CACHED_TOKENS` is worth maximising, the others minimising."""

    PREDICTED_TTFT = "PredictedTTFT"
    PREDICTED_E2E = "PredictedE2E"
    QUEUED_PROMPTS = "QueuedPrompts"
    RUNNING_PROMPTS = "RunningPrompts"
    UNCACHED_TOKENS = "UncachedTokens"
    CACHED_TOKENS = "CachedTokens"
    KV_CACHE_USAGE = "KVCacheUsage"
    GPU_UTILIZATION = "GPUUtilization"
    COST = "Cost"
    FRESHNESS = "Freshness"


class Threshold(Strict, frozen=True, kw_only=True):
    """Bounds on a number; all that are given must hold."""

    greater_than: Number | None = None
    at_least: Number | None = None
    less_than: Number | None = None
    at_most: Number | None = None


class Tags(Strict, frozen=True, kw_only=True):
    """Tags that a request has, in three-valued logic."""

    all: tuple[Name, ...] = ()
    any: tuple[Name, ...] = ()
    none: tuple[Name, ...] = ()


class PoolState(Strict, frozen=True, kw_only=True):
    """The state of the pools that serve the requested model, or of the one that is named."""

    name: Exact | None = None
    saturated: bool


class Match(Strict, frozen=True, kw_only=True):
    """What a request must be; all fields that are given must hold."""

    model: Glob | None = None
    """The requested name, or an alias or class of the model that it means."""
    tag: Name | None = None
    tags: Tags | None = None
    tenant: Glob | None = None
    headers: Mapping[Name, Annotated[Glob, Unshown]] | None = None
    """By lower-case name."""
    api: Glob | None = None
    """As records name it: `openai-chat`, `openai-completions`."""
    stream: bool | None = None
    input_tokens: Threshold | None = None
    pool: PoolState | None = None


class ModelSelector(Strict, frozen=True, kw_only=True):
    """Models of which at least one list names the model, and all labels are the model's."""

    names: tuple[Glob, ...] | None = None
    """Names and aliases."""
    classes: tuple[Glob, ...] | None = None
    labels: Labels | None = None


class BackendSelector(Strict, frozen=True, kw_only=True):
    """Backends; all fields that are given must hold."""

    type: BackendType | None = None
    names: tuple[Glob, ...] | None = None
    """A provider's name; a local one's pool, worker set or engine."""
    labels: Labels | None = None


class Consider(Strict, frozen=True, kw_only=True):
    """Candidates; all fields that are given must hold. A list of these is their union."""

    models: ModelSelector | None = None
    backend: BackendSelector | None = None
    pools: tuple[Glob, ...] | None = None


class Drop(Strict, frozen=True, kw_only=True):
    """Candidates to drop; all fields that are given must hold. An unknown number does not drop."""

    backend: BackendSelector | None = None
    models: ModelSelector | None = None
    pools: tuple[Glob, ...] | None = None
    queued_prompts: Threshold | None = None
    running_prompts: Threshold | None = None
    kv_cache_usage: Threshold | None = None
    """From 0 to 1."""
    gpu_utilization: Threshold | None = None
    """From 0 to 1."""
    predicted_ttft: Threshold | None = field(default=None, name="predictedTTFT")
    """Seconds."""
    predicted_e2e: Threshold | None = field(default=None, name="predictedE2E")
    """Seconds."""
    uncached_tokens: Threshold | None = None
    cost: Threshold | None = None
    """Money for the whole request, in the unit of the prices."""
    freshness: Threshold | None = None
    """Seconds since the engine was last heard of."""


class Exclude(Strict, frozen=True, kw_only=True):
    """Candidates that do not get the request. With an `if` it is a guard: see `evaluate`."""

    name: Name
    if_: Match | None = field(default=None, name="if")
    drop: Drop


class Share(Strict, frozen=True, kw_only=True):
    """One side of a split: a backend's name or a model's, never both."""

    backend: Exact | None = None
    model: Exact | None = None
    weight: Annotated[int, Meta(ge=0, le=1_000_000)]


class Stage(Strict, frozen=True, kw_only=True):
    """Candidates that are tried together. It has at most one of the ways to rank them."""

    type: BackendType | None = None
    names: tuple[Glob, ...] | None = None
    labels: Labels | None = None
    models: ModelSelector | None = None
    minimize: Measure | None = None
    maximize: Measure | None = None
    order: tuple[Exact, ...] | None = None
    """Backends' names, best first. One that is not named is not in the stage."""
    split: tuple[Share, ...] | None = None
    """Shares of conversations. What no share names is not in the stage."""


class OnEmpty(Enum):
    """What happens when no candidate is left."""

    REJECT = "Reject"
    NEXT_RULE = "NextRule"


class SetFields(Strict, frozen=True, kw_only=True):
    """Bounded rewrites of the request."""

    max_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """At most so many tokens of output, whatever the client asks for."""
    defaults: Mapping[Name, Any] | None = None
    """Parameters of the body that the client may set otherwise."""
    parameters: Mapping[Name, Any] | None = None
    """Parameters of the body that the client may not."""
    headers: Mapping[Name, Annotated[str, Unshown]] | None = None
    """Headers to add for the backend."""


class Route(Strict, frozen=True, kw_only=True):
    """Where requests go."""

    consider: tuple[Consider, ...] | None = None
    """Replaces the candidates: whatever serves the requested model, engines and providers."""
    exclude: tuple[Exclude, ...] = ()
    select: tuple[Stage, ...] = ()
    """Tried in order; none: all candidates by predicted time to first token."""
    on_empty: OnEmpty = OnEmpty.REJECT
    set: SetFields | None = None


class Reject(Strict, frozen=True, kw_only=True):
    """An answer instead of a route."""

    status: Annotated[int, Meta(ge=400, le=599)] = 403
    message: Annotated[str, Meta(min_length=1, max_length=1000)]


class Limit(Strict, frozen=True, kw_only=True):
    """A limit on requests that match. Parsed and linted; not yet enforced (lint says so)."""

    name: Name | None = None
    per: Literal["tenant", "model", "tenant-model"] = "tenant"
    window: Annotated[str, Meta(pattern=r"^[1-9]\d{0,5}(s|m|h|d)\Z", title="a time as in `1m`")]
    requests: Annotated[int, Meta(ge=1)] | None = None
    input_tokens: Annotated[int, Meta(ge=1)] | None = None
    output_tokens: Annotated[int, Meta(ge=1)] | None = None
    uncached_tokens: Annotated[int, Meta(ge=1)] | None = None
    total_tokens: Annotated[int, Meta(ge=1)] | None = None
    burst: Annotated[int, Meta(ge=1)] | None = None
    concurrent: Annotated[int, Meta(ge=1)] | None = None
    on_store_loss: Literal["Open", "Closed"] = "Closed"


class Rule(Strict, frozen=True, kw_only=True):
    """What to do with the requests that one of `matches` describes; without it, with all."""

    name: Name
    matches: tuple[Match, ...] | None = None
    route: Route | None = None
    reject: Reject | None = None
    limits: tuple[Limit, ...] = ()


class Mode(Enum):
    """Whether a policy decides, or is only recorded."""

    ENFORCE = "Enforce"
    SHADOW = "Shadow"


class PolicySpec(Strict, frozen=True, kw_only=True):
    """The rules of a policy."""

    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Higher comes first."""
    mode: Mode = Mode.ENFORCE
    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=1000)]


class Metadata(Strict, frozen=True, kw_only=True):
    """Who a resource is. Fields that a cluster adds are dropped before this is read."""

    name: ResourceName
    namespace: ResourceName = "default"
    labels: Labels = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class Resource(Strict, frozen=True, omit_defaults=False, kw_only=True):
    """What every kind has. Written with its `kind`, though that is a default."""

    api_version: Literal["kinference.buoyant.io/v1alpha1"]
    metadata: Metadata

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class InferencePolicy(Resource, frozen=True, kw_only=True):
    """Rules that say where requests go."""

    kind: Literal["InferencePolicy"] = "InferencePolicy"
    spec: PolicySpec


class InferencePool(Resource, frozen=True, kw_only=True):
    """A set of engines, and the names of what they serve."""

    kind: Literal["InferencePool"] = "InferencePool"
    spec: PoolSpec


class InferenceWorkerSet(Resource, frozen=True, kw_only=True):
    """Engines that are alike."""

    kind: Literal["InferenceWorkerSet"] = "InferenceWorkerSet"
    spec: WorkerSetSpec


class InferenceProvider(Resource, frozen=True, kw_only=True):
    """A third party."""

    kind: Literal["InferenceProvider"] = "InferenceProvider"
    spec: ProviderSpec


class GatewayBackend(Resource, frozen=True, kw_only=True):
    """What a gateway's route points to."""

    kind: Literal["GatewayBackend"] = "GatewayBackend"
    spec: BackendSpec


KINDS: Mapping[str, type[Resource]] = {
    kind.__name__: kind
    for kind in (
        InferencePolicy,
        InferencePool,
        InferenceProvider,
        InferenceWorkerSet,
        GatewayBackend,
    )
}
