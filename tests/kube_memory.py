"""An API server in memory: keeps objects by the path of their collection, and tells watches."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator
from typing import Any

from coordinator.kube.api import JSON, Answer, ApiAway, Body, Query
from policies.crd import NAMINGS

GATEWAY = "/apis/inference.networking.k8s.io/v1/namespaces/n/inferencepools"
PODS = "/api/v1/namespaces/n/pods"


class Server:
    """An API server that keeps objects by the path of their collection, and tells watches."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Any]] = {}
        self.missing: set[str] = set()
        self.away = False
        self.slow_s = 0.0
        self.statuses: dict[str, Any] = {}
        self._revision = 1
        self._events: list[tuple[int, str, bytes]] = []

    def put(self, path: str, name: str, spec: Any = None, **more: Any) -> None:
        self._revision += 1
        there = self.collections.setdefault(path, {})
        before = there.get(name)
        metadata = {
            "name": name,
            "namespace": "n",
            "uid": name,
            "generation": before["metadata"]["generation"] + 1 if before else 1,
            "resourceVersion": str(self._revision),
            **more.pop("metadata", {}),
        }
        there[name] = {"metadata": metadata, "spec": spec, **more}
        self._tell(path, "MODIFIED" if before else "ADDED", there[name])

    def drop(self, path: str, name: str) -> None:
        self._revision += 1
        gone = self.collections[path].pop(name)
        gone["metadata"]["resourceVersion"] = str(self._revision)
        self._tell(path, "DELETED", gone)

    def _tell(self, path: str, type: str, found: Any) -> None:
        line = json.dumps({"type": type, "object": found}).encode()
        self._events.append((self._revision, path, line))

    async def ask(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Body | None = None,
        content_type: str = JSON,
    ) -> Answer:
        await asyncio.sleep(self.slow_s)
        if self.away:
            raise ApiAway("cannot connect")
        if method == "PATCH":
            assert isinstance(body, list)
            collection, _, name = path.removesuffix("/status").rpartition("/")
            found = copy.deepcopy(self.collections[collection][name])
            self.statuses[name] = found["status"] = body[1]["value"]
            return Answer(200, json.dumps(found).encode())
        if method == "POST":
            return Answer(201, b"{}")
        if path in self.missing:
            return Answer(404, b"{}")
        items = list(self.collections.get(path, {}).values())
        listed = {"metadata": {"resourceVersion": str(self._revision)}, "items": items}
        return Answer(200, json.dumps(listed).encode())

    async def watch(self, path: str, query: Query, idle_s: float) -> AsyncGenerator[bytes, None]:
        yield b""
        after = int(dict(query)["resourceVersion"])
        while True:
            for revision, where, line in list(self._events):
                if where == path and revision > after:
                    after = revision
                    yield line
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        pass


def ours(kind: str) -> str:
    return f"/apis/kinference.buoyant.io/v1alpha1/namespaces/n/{NAMINGS[kind].plural}"


POLICIES, SETS, POOLS = ours("InferencePolicy"), ours("InferenceWorkerSet"), ours("InferencePool")


def pod(ready: bool = True, ip: str = "10.0.0.1", **labels: str) -> dict[str, Any]:
    """Return what a pod of one node is made of."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"labels": labels},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "podIP": ip, "conditions": [condition]},
    }
