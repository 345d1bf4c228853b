"""What the doctor reads of objects, by kind: an object that is not made so is left out. Pure.

An API server checks its own kinds; one that is aggregated, or a proxy in between, need not.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

Json = dict[str, Any]


class Metadata(Struct):
    """What all objects have."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Placed(Metadata, kw_only=True):
    """What all have that are in a namespace."""

    namespace: str


class Shape(Struct):
    """Any object."""

    metadata: Metadata
    spec: Json = {}
    status: Json = {}


class Variable(Struct):
    """One of a container's."""

    name: str
    value: str = ""


class Port(Struct, rename="camel"):
    """One of a container's."""

    container_port: int
    name: str = ""


class Container(Struct):
    """One of a pod's."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []
    ports: list[Port] = []


class Volume(Struct, rename="camel"):
    """One of a pod's."""

    name: str
    config_map: Json = {}
    secret: Json = {}


class PodSpec(Struct):
    """What runs."""

    containers: list[Container]
    volumes: list[Volume] = []

    def __post_init__(self) -> None:
        """Refuse a pod in which nothing runs."""
        if not self.containers:
            raise ValueError("no container")


class PodStatus(Struct, rename="camel"):
    """How it is."""

    phase: str = ""
    conditions: list[Json] = []
    init_container_statuses: list[Json] = []
    container_statuses: list[Json] = []


class Pod(Struct):
    """A pod."""

    metadata: Placed
    spec: PodSpec
    status: PodStatus = field(default_factory=PodStatus)


class SetSpec(Struct):
    """Whom it selects."""

    selector: dict[str, str] = {}


class WorkerSet(Struct):
    """An `InferenceWorkerSet`."""

    metadata: Placed
    spec: SetSpec = field(default_factory=SetSpec)


class Condition(Struct):
    """One of a status."""

    type: str
    status: str


class Conditions(Struct):
    """A status."""

    conditions: list[Condition] = []


class Version(Struct):
    """One of a kind."""

    name: str


class Versions(Struct):
    """What a kind is, by version."""

    group: str = ""
    versions: list[Version] = []


class Definition(Struct):
    """A kind's definition."""

    metadata: Metadata
    spec: Versions = field(default_factory=Versions)
    status: Conditions = field(default_factory=Conditions)


class Expression(Struct):
    """A part of a selector."""

    key: str
    operator: str
    values: list[str] = []


class Selector(Struct, rename="camel"):
    """Which pods, or namespaces."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []


class Peer(Struct, rename="camel"):
    """Who may."""

    pod_selector: Selector = field(default_factory=Selector)
    namespace_selector: Selector = field(default_factory=Selector)


class PolicyPort(Struct, rename="camel"):
    """Where to."""

    port: int | str = 0
    end_port: int = 0


class Rule(Struct):
    """Who may go where."""

    peers: list[Peer] = field(default_factory=list, name="from")
    ports: list[PolicyPort] = []


class PolicySpec(Struct, rename="camel"):
    """What comes into which pods."""

    pod_selector: Selector = field(default_factory=Selector)
    policy_types: list[str] = []
    ingress: list[Rule] = []


class NetworkPolicy(Struct):
    """A network policy."""

    metadata: Placed
    spec: PolicySpec = field(default_factory=PolicySpec)


def readable(found: object, shape: type[Struct]) -> Json | None:
    """Return an object without its nulls, which mean nothing; `None`: it is not of that shape."""
    try:
        plain = _without_nulls(found)
        msgspec.convert(plain, shape)
    except (msgspec.ValidationError, RecursionError):
        return None
    return {"spec": {}, **plain}


def _without_nulls(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _without_nulls(each) for name, each in found.items() if each is not None}
    if isinstance(found, list):
        return [_without_nulls(each) for each in found]
    return found
