"""Which collections of a cluster are read, and where they are. Pure; a table."""

from dataclasses import dataclass

from coordinator.kube.settings import EVERY
from policies.crd import GROUP, NAMINGS, VERSION

POD = "Pod"

GATEWAY_POOL = "inference.networking.k8s.io/InferencePool"
"""Of the Gateway API's inference extension; our own kind has the same name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind, as it is asked for."""

    name: str
    api: str
    """Path of its group and version."""
    plural: str

    def collection(self, namespace: str) -> str:
        """Return the path of all its objects in a namespace."""
        inside = "" if namespace == EVERY else f"/namespaces/{namespace}"
        return f"{self.api}{inside}/{self.plural}"

    def object(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection(namespace)}/{name}"


OURS = tuple(
    Kind(name, f"/apis/{GROUP}/{VERSION}", naming.plural) for name, naming in NAMINGS.items()
)
PODS = Kind(POD, "/api/v1", "pods")
EVENTS = Kind("Event", "/api/v1", "events")
GATEWAY_POOLS = Kind(GATEWAY_POOL, "/apis/inference.networking.k8s.io/v1", "inferencepools")

READ = (*OURS, PODS, GATEWAY_POOLS)

BY_NAME = {kind.name: kind for kind in READ}
