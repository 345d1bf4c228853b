"""A coordinator with the rights of its ServiceAccount, and pods that come and go: run where the
cluster is, as a program. Prints what it measured, as JSON.

Pods are on a node that nobody runs, so that this program is their kubelet: it says when they are
ready, and where their servers are, which are real ones on loopback.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from coordinator.kube.api import JSON_PATCH, Api
from coordinator.kube.settings import Kubernetes
from coordinator.kube.transport import connected
from policies.crd import GROUP, VERSION
from tests.fakes import MODEL, FakeEngine
from tests.gateways import Running, coordinator
from tests.proxies import Proxy, proxy
from tests.waiting import until

NAMESPACE = "lineside"
NODE = "by-hand"
APP = "by-hand"
KINDS = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STRATEGIC = "application/strategic-merge-patch+json"

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


class Cluster:
    """The API server, with all rights."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def do(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> Any:
        answer = await self.api.ask(method, path, (), body, kind)
        assert answer.is_good or (method == "POST" and answer.status == 409), answer.reason
        return json.loads(answer.body)

    async def node(self) -> None:
        await self.do("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})

    async def pod(self, name: str, ip: str) -> None:
        container = {"name": "vllm", "image": "vllm"}
        spec = {"nodeName": NODE, "containers": [container], "terminationGracePeriodSeconds": 30}
        metadata = {"name": name, "labels": {"app": APP}}
        await self.do("POST", PODS, {"metadata": metadata, "spec": spec})
        await self.say(name, ip, True)

    async def say(self, name: str, ip: str, ready: bool) -> None:
        """Say what a kubelet would."""
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        body = {"status": {**status, "conditions": [condition]}}
        await self.do("PATCH", f"{PODS}/{name}/status", body, STRATEGIC)

    async def label(self, name: str, app: str) -> None:
        body = {"metadata": {"labels": {"app": app}}}
        await self.do("PATCH", f"{PODS}/{name}", body, STRATEGIC)

    async def delete(self, name: str, grace_s: int) -> None:
        await self.do("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": grace_s})

    async def make(self, plural: str, kind: str, name: str, spec: Any) -> Any:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await self.do("POST", f"{KINDS}/{plural}", body)


class Scene:
    """All that is there."""

    def __init__(
        self, cluster: Cluster, running: Running, way: Proxy, engines: Mapping[str, FakeEngine]
    ) -> None:
        self.cluster, self.running, self.way, self.engines = cluster, running, way, engines
        self.seen: dict[str, Any] = {}

    async def states(self) -> dict[str, str]:
        """Return each engine's address, and why it is away."""
        said = await self.running.debug("/debug/engines")
        return {each["endpoint"]: each["reason"] if each["away"] else "" for each in said}

    async def until_state(self, engine: FakeEngine, state: str | None) -> float:
        async def so() -> bool:
            return (await self.states()).get(engine.endpoint) == state

        return await until(so)


async def come_and_go(s: Scene) -> None:
    """Readiness, labels, the way out of a pod, with a request in flight."""
    one = s.engines["one"]
    ip = "127.0.0.2"
    s.seen["in"] = await s.until_state(one, "")
    (engine,) = await s.running.debug("/debug/engines")
    s.seen["engine"] = {name: engine[name] for name in ("endpoint", "node", "model")}
    s.seen["answer"] = (await s.running.post("/v1/chat/completions", ASK))[0]
    pools = await s.running.debug("/debug/pools")
    s.seen["pools"] = {each["name"]: len(each["engines"]) for each in pools}
    for thing in ("engines", "pools", "policies"):
        s.seen[f"get {thing}"] = await asyncio.to_thread(got, s.running, thing)
    await s.cluster.say("one", ip, False)
    s.seen["unready"] = await s.until_state(one, "its pod is not ready")
    s.seen["refused"] = (await s.running.post("/v1/chat/completions", ASK))[0]
    await s.cluster.say("one", ip, True)
    s.seen["ready"] = await s.until_state(one, "")
    await s.cluster.label("one", "other")
    s.seen["unlabelled"] = await s.until_state(one, None)
    await s.cluster.label("one", APP)
    s.seen["labelled"] = await s.until_state(one, "")
    one.words, one.between_s = 20, 0.1
    stream = asyncio.create_task(streamed(s.running))
    async with asyncio.timeout(5):
        while not await s.running.inflight() or not sum(await s.running.inflight()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await s.cluster.delete("one", 30)
    s.seen["terminating"] = await s.until_state(one, "its pod is terminating")
    s.seen["streamed"] = await stream
    await s.cluster.delete("one", 0)
    s.seen["deleted"] = await s.until_state(one, None)


def got(running: Running, thing: str) -> str:
    """Return what the command line shows."""
    program = Path(sys.executable).with_name("lineside")
    words = (program, "get", thing, "--admin", running.admin)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


async def streamed(running: Running) -> int:
    """Return how many words came of an answer that takes a while; -1: it broke off."""
    body = ASK | {"stream": True}
    async with running.session.post(running.http + "/v1/chat/completions", json=body) as answer:
        text = (await answer.read()).decode()
    return text.count('"content":"w') if text.rstrip().endswith("[DONE]") else -1


async def lose_sight(s: Scene) -> None:
    """A pod is deleted while the watch is disconnected."""
    two = s.engines["two"]
    await s.cluster.pod("two", "127.0.0.3")
    s.seen["second in"] = await s.until_state(two, "")
    s.way.is_shut = True
    s.way.cut()

    async def away() -> bool:
        said = await s.running.debug("/readyz")
        return any("the cluster cannot be read" in each for each in said["degraded"])

    s.seen["away"] = await until(away)
    await s.cluster.delete("two", 0)
    before = s.way.shut_out

    async def has_looked_in_vain() -> bool:
        return s.way.shut_out >= before + 3

    await until(has_looked_in_vain)
    s.seen["known meanwhile"] = await s.states()
    s.seen["served meanwhile"] = (await s.running.post("/v1/chat/completions", ASK))[0]
    s.way.is_shut = False
    s.seen["deleted out of sight"] = await s.until_state(two, None)


async def apply_badly(s: Scene) -> None:
    """A policy that lint refuses: its status, and an event."""
    rule = {"name": "r", "route": {}}
    await s.cluster.make("inferencepolicies", "InferencePolicy", "bad", {"rules": [rule, rule]})

    async def said() -> bool:
        status = (await s.cluster.do("GET", f"{KINDS}/inferencepolicies/bad")).get("status", {})
        s.seen["conditions"] = {
            each["type"]: [each["status"], each["reason"], each["message"]]
            for each in status.get("conditions", ())
        }
        return bool(s.seen["conditions"])

    s.seen["said"] = await until(said)

    async def told() -> bool:
        listed = await s.cluster.do("GET", f"/api/v1/namespaces/{NAMESPACE}/events")
        s.seen["events"] = [
            [each["type"], each["reason"], each["message"]]
            for each in listed["items"]
            if each["involvedObject"].get("name") == "bad"
        ]
        return len(s.seen["events"]) == 2

    await until(told)


async def overreach(s: Scene, mine: Api) -> None:
    """What the coordinator's ServiceAccount may not do."""
    asked = {
        "read secrets": ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None),
        "read pods elsewhere": ("GET", "/api/v1/namespaces/default/pods", None),
        "read nodes": ("GET", "/api/v1/nodes", None),
        "delete pods": ("DELETE", f"{PODS}/one", None),
        "change a policy": ("PATCH", f"{KINDS}/inferencepolicies/bad", []),
        "write policies": ("POST", f"{KINDS}/inferencepolicies", {}),
    }
    s.seen["may"] = {}
    for what, (method, path, body) in asked.items():
        kind = JSON_PATCH if method == "PATCH" else "application/json"
        s.seen["may"][what] = (await mine.ask(method, path, (), body, kind)).status
    settings = {"access": "kubeconfig", "kubeconfig": sys.argv[2], "namespaces": ("default",)}
    try:
        async with asyncio.timeout(30), coordinator(kubernetes=Kubernetes(**settings)):
            s.seen["without rights"] = "it started"
    except OSError as error:
        s.seen["without rights"] = str(error)


def rerouted(kubeconfig: str, server: str) -> str:
    """Return a kubeconfig with another address of the server."""
    config = json.loads(Path(kubeconfig).read_text())
    config["clusters"][0]["cluster"]["server"] = server
    made = Path(kubeconfig).with_name("rerouted")
    made.write_text(json.dumps(config))
    return str(made)


async def scene(admin: str, mine: str) -> dict[str, Any]:
    """Run all acts; return what was seen."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(await connected(Kubernetes(access="kubeconfig", kubeconfig=admin)))
        stack.push_async_callback(cluster.api.close)
        own = await connected(Kubernetes(access="kubeconfig", kubeconfig=mine))
        stack.push_async_callback(own.close)
        engines = {"one": FakeEngine(sources=None), "two": FakeEngine(sources=None)}
        await engines["one"].start(0, "127.0.0.2")
        port = int(engines["one"].url.rpartition(":")[2])
        await engines["two"].start(port, "127.0.0.3")
        for each in engines.values():
            stack.push_async_callback(each.stop)
        await cluster.node()
        spec = {"selector": {"app": APP}, "ports": {"http": port}}
        await cluster.make("inferenceworkersets", "InferenceWorkerSet", "set", spec)
        await cluster.make("inferencepools", "InferencePool", "pool", {"workerSets": ["set"]})
        await cluster.pod("one", "127.0.0.2")
        way = await stack.enter_async_context(proxy("https://127.0.0.1:6443"))
        through = rerouted(mine, way.url)
        settings = Kubernetes(access="kubeconfig", kubeconfig=through, namespaces=(NAMESPACE,))
        running = await stack.enter_async_context(coordinator(kubernetes=settings))
        s = Scene(cluster, running, way, engines)
        await come_and_go(s)
        await lose_sight(s)
        await apply_badly(s)
        await overreach(s, own)
        return s.seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(scene(*sys.argv[1:3]))))
