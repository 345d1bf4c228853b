"""Writes deletion costs by a ServiceAccount's rights: `cost_scene KUBECONFIG NAME=TOKENS ...`.

Run where the cluster is. Prints for how long the writer wants to wait, and what came of its writes.
All pods of hollow nodes have the same address, so each gets its name for one.
"""

import asyncio
import json
import random
import sys
from dataclasses import replace

from coordinator.kube.deletion_costs import DeletionCosts
from coordinator.kube.mirror import Mirror
from coordinator.kube.pods import Pod
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected
from lineside.clock import SystemClock


async def written(kubeconfig: str, worths: dict[str, tuple[int | None, int]]) -> list[object]:
    """Look twice: the second time nothing has changed."""
    said = Kubernetes(access="kubeconfig", kubeconfig=kubeconfig, namespaces=("lineside",))
    api = await connected(said)
    mirror = Mirror(api, said.namespaces, SystemClock(), random.Random())
    await mirror.prime()

    def pods() -> list[Pod]:
        return [replace(pod, ip=pod.name) for pod in mirror.pods()]

    costs = DeletionCosts(api, SystemClock(), lambda: True, pods, lambda: worths)
    waits = [await costs.look(), await costs.look()]
    await api.close()
    return [waits, dict(costs.counts)]


if __name__ == "__main__":
    pairs = (word.split("=") for word in sys.argv[2:])
    worths = {f"{name}:8000": (int(tokens), 0) for name, tokens in pairs}
    print(json.dumps(asyncio.run(written(sys.argv[1], worths))))
