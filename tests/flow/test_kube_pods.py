"""From a pod of a cluster to its cache: a whole coordinator, and the agents of two nodes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import coordinator.kube.cluster
import coordinator.kube.custom_resources
from agent.config import AgentConfig
from agent.main import run
from coordinator.kube.kept import SEEN
from coordinator.state.stores.sqlite import SqliteStore
from tests import simulated
from tests.gateways import Running
from tests.gateways import coordinator as a_coordinator
from tests.kube_http import serving
from tests.kube_memory import PODS, POLICIES, SETS, Server, pod
from tests.waiting import until

pytestmark = pytest.mark.flow


@asynccontextmanager
async def agent(coordinator: str, node: str) -> AsyncIterator[None]:
    config = AgentConfig(coordinators=(coordinator,), transport="plaintext", node=node)
    stop = asyncio.Event()
    listening: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run(config, stop, listening.set_result))
    try:
        yield
    finally:
        stop.set()
        await running


async def states(running: Running) -> list[tuple[str, bool, str]]:
    engines = await running.debug("/debug/engines")
    return [(each["node"], each["linked"], each["cache_state"]) for each in engines]


async def is_heard(running: Running, node: str) -> bool:
    """Whether an agent is connected, as coordinators find out once a second."""
    members = await running.debug("/debug/members")
    return node in [each["node"] for each in members["agents"]]


async def test_the_agent_of_a_pods_node_reads_its_cache(tmp_path: Path) -> None:
    server = Server()
    async with serving(server, tmp_path) as cluster:
        with simulated.engine() as listening:
            host, _, port = listening["http"].rpartition(":")
            server.put(SETS, "s", {"selector": {"app": "vllm"}, "ports": {"http": int(port)}})
            server.put(PODS, "p", **pod(ip=host, app="vllm"))
            async with a_coordinator(kubernetes=cluster) as running:
                async with agent(running.grpc, "node-b"):
                    await until(lambda: is_heard(running, "node-b"))
                    assert await states(running) == [("node-a", False, "connecting")]
                async with agent(running.grpc, "node-a"):

                    async def is_live() -> bool:
                        return await states(running) == [("node-a", True, "live")]

                    await until(is_live)
                    assert await running.ready()
                    server.drop(PODS, "p")

                    async def is_gone() -> bool:
                        return await states(running) == []

                    await until(is_gone)


NO = {"name": "no", "matches": [{"headers": {"x-team": "b"}}], "reject": {"message": "not you"}}
POLICY = {"rules": [NO, {"name": "all", "route": {}}]}


async def test_a_coordinator_starts_while_the_cluster_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Server()
    monkeypatch.setattr(coordinator.kube.cluster, "CHANGED_S", 0.1)
    monkeypatch.setattr(coordinator.kube.custom_resources, "KEPT_START_S", 0.1)
    async with serving(server, tmp_path) as cluster:
        kept: dict[str, Any] = {"kubernetes": cluster, "store": f"sqlite:{tmp_path / 'state.db'}"}
        with simulated.engine() as listening:
            host, _, port = listening["http"].rpartition(":")
            server.put(SETS, "s", {"selector": {"app": "vllm"}, "ports": {"http": int(port)}})
            server.put(PODS, "p", **pod(ip=host, app="vllm"))
            server.put(POLICIES, "no", POLICY)
            async with a_coordinator(**kept):

                async def is_kept() -> bool:
                    store = SqliteStore(str(tmp_path / "state.db"))
                    try:
                        return await store.get(SEEN) is not None
                    finally:
                        await store.close()

                await until(is_kept)
            server.away = True
            async with a_coordinator(**kept) as running, agent(running.grpc, "node-a"):

                async def is_live() -> bool:
                    return await states(running) == [("node-a", True, "live")]

                await until(is_live)  # the agent is known by the pods that are kept
                state = await running.debug("/readyz")
                codes = [text.partition(":")[0] for text in state["degraded"]]
                assert state["ready"] and any("from the store" in text for text in codes), codes
                metrics = await running.metrics()
                assert metrics['lineside_degraded{reason="resources_kept"}'] == 1.0
                assert metrics["lineside_kubernetes_kept_age_seconds"] < 10
                body = {"prompt": "Hello", "max_tokens": 1, "model": simulated.MODEL}
                served, *_ = await running.post("/v1/completions", body)
                guarded, *_ = await running.post("/v1/completions", body, {"x-team": "b"})
                assert (served, guarded) == (200, 403)
                server.away = False

                async def is_whole() -> bool:
                    return (await running.debug("/readyz"))["degraded"] == []

                await until(is_whole)
