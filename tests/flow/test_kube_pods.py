"""From a pod of a cluster to its cache: a whole coordinator, and the agents of two nodes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

import coordinator.build
from agent.config import AgentConfig
from agent.main import run
from coordinator.kube.api import Api
from coordinator.kube.settings import Kubernetes
from tests import simulated
from tests.gateways import Running, until
from tests.gateways import coordinator as a_coordinator
from tests.kube_memory import PODS, SETS, Server, pod

pytestmark = pytest.mark.flow

CLUSTER = Kubernetes(access="in-cluster", namespaces=("n",))


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


async def test_the_agent_of_a_pods_node_reads_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    async def connected(settings: Kubernetes) -> Api:
        return server

    monkeypatch.setattr(coordinator.build, "connected", connected)
    with simulated.engine() as listening:
        host, _, port = listening["http"].rpartition(":")
        server.put(SETS, "s", {"selector": {"app": "vllm"}, "ports": {"http": int(port)}})
        server.put(PODS, "p", **pod(ip=host, app="vllm"))
        async with a_coordinator(kubernetes=CLUSTER) as running:
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
