"""What coordinators and agents may do in a cluster: what they need, and what is too much. Pure.

The chart's roles grant the needs and no more; tests hold both against each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from policies.crd import GROUP, NAMINGS

POOLS = "inference.networking.k8s.io"
"""The Gateway API Inference Extension's group."""


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """One right. `why` says what does not work without it."""

    verb: str
    resource: str
    group: str = ""
    why: str = ""

    def __str__(self) -> str:
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {name}"


def of_coordinators(
    *, reads_cluster: bool = True, reviews_tokens: bool = True, writes_costs: bool = False
) -> Iterator[Need]:
    """Yield what a coordinator needs: to read its cluster, and to check agents' tokens."""
    if reads_cluster:
        yield from _of_resources()
    if writes_costs:
        yield Need("patch", "pods", "", "no pod gets its deletion cost")
    if reviews_tokens:
        why = "agents cannot prove which node is theirs"
        yield Need("create", "tokenreviews", "authentication.k8s.io", why)


def _of_resources() -> Iterator[Need]:
    for naming in NAMINGS.values():
        for verb in ("get", "list", "watch"):
            yield Need(verb, naming.plural, GROUP, "resources of this kind are not seen")
        yield Need("patch", f"{naming.plural}/status", GROUP, "their status says nothing")
    for verb in ("list", "watch"):
        yield Need(verb, "pods", "", "engines' pods are not found")
        yield Need(verb, "inferencepools", POOLS, "pools of the Inference Extension are not read")
    yield Need("create", "events", "", "findings are in the status alone")


TOO_MUCH = (
    Need("list", "secrets", "", "whoever takes the process over reads every key"),
    Need("create", "pods", "", "whoever takes the process over runs what they like"),
    Need("create", "pods/exec", "", "whoever takes the process over is in every container"),
)
"""What neither a coordinator nor an agent has any use for."""
