"""Pods that kubelets run, as the coordinator's ServiceAccount sees them: run where the cluster is.

Prints those that are labelled as the one that a worker set selects, as JSON.

All pods of hollow nodes have the same address, so they come to one server.
"""

import asyncio
import json
import random
import sys

from coordinator.kube.mirror import Mirror
from coordinator.kube.pods import Roster, Selection
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected
from lineside.clock import SystemClock

SELECTION = Selection("hollow", "lineside", {"app": "hollow-vllm"}, (8000,))


async def found(kubeconfig: str) -> list[list[str | bool]]:
    """Return address, node and name of each pod, and whether it is ready."""
    said = Kubernetes(access="kubeconfig", kubeconfig=kubeconfig, namespaces=("lineside",))
    api = await connected(said)
    mirror = Mirror(api, said.namespaces, SystemClock(), random.Random())
    await mirror.prime()
    await api.close()
    pods = {pod.uid: pod for pod in mirror.pods()}
    (of_one,) = Roster().servers([SELECTION], pods.values()).values()
    alike = [each for each in pods.values() if each.labels == pods[of_one.pod.uid].labels]
    return [[pod.ip, pod.node, pod.name, pod.is_ready] for pod in alike]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(found(sys.argv[1]))))
