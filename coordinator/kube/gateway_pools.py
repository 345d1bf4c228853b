"""The Gateway API's `InferencePool`s as pools of ours, which policies and doors know. Pure."""

from collections.abc import Iterable

from coordinator.kube.pods import Selection
from coordinator.rules import Resources
from policies.model import (
    API_VERSION,
    InferencePool,
    InferenceWorkerSet,
    Metadata,
    PoolSpec,
    WorkerSetSpec,
)

PREFIX = "gateway-pool/"
"""Of the worker sets that they come to; no resource's own name has a `/`."""


def with_gateway_pools(resources: Resources, pools: Iterable[Selection]) -> Resources:
    """Return resources with those pools beside them. A name that is taken stays whose it was."""
    taken = {each.metadata.name for each in (*resources.pools, *resources.providers)}
    sets, added = list(resources.worker_sets), list(resources.pools)
    for pool in pools:
        name = PREFIX + pool.name
        spec = WorkerSetSpec(selector=pool.labels)
        sets.append(
            InferenceWorkerSet(
                api_version=API_VERSION,
                metadata=Metadata(name=name, namespace=pool.namespace),
                spec=spec,
            )
        )
        if pool.name not in taken:
            taken.add(pool.name)
            metadata = Metadata(name=pool.name, namespace=pool.namespace)
            members = PoolSpec(worker_sets=(name,))
            added.append(InferencePool(api_version=API_VERSION, metadata=metadata, spec=members))
    return Resources(resources.policies, tuple(added), tuple(sets), resources.providers)


def is_gateway_pool(worker_set: InferenceWorkerSet) -> bool:
    """Whether a worker set stands for a pool of the Gateway API, which says where its pods
    listen.
    """
    return worker_set.metadata.name.startswith(PREFIX)
