"""Builds the agent from its settings and runs it; alone reads argv and the environment."""

import argparse
import asyncio
import gc
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from agent.assignment import AssignedEngine
from agent.checkpoint import Checkpoints
from agent.config import AgentConfig
from agent.coordinators import Coordinators, addresses_of
from agent.dialling import Dialling
from agent.gpu import GpuReader
from agent.kubelet import Kubelet
from agent.metrics import AgentMetrics, watch_lag
from agent.node import Node
from agent.report import Reporter
from agent.scrape import Pauses
from agent.sequence import Place
from agent.subscriber import Subscriber
from lineside import launch, logs, process
from lineside.clock import Clock, SystemClock
from lineside.core_log import CoreLog
from lineside.ids import NodeId
from lineside.schema import split_address

STOP_S = 5.0
"""What the whole agent gets to end in after a signal; then it ends anyhow. A thread that a
checkpoint's disk holds up cannot be cancelled, and would keep the agent for as long as the disk.
"""

COLLECT = (10_000, 10, 100)
"""Thresholds of the garbage collector. An engine's blocks are a million objects that come and go,
and nothing in them is garbage before it is freed: to look through them is work for nothing.
"""

CLOSE_S = 1.0
"""What a request to the listener gets to end in when the agent stops."""

log = logs.get("agent.main")


class _Stopped(Exception):
    """Ends the task group, and with it every task of the process."""


async def run(config: AgentConfig, stop: asyncio.Event, announce: process.Announce) -> None:
    """Report until `stop` is set. The first part to fail stops the rest.

    Raises `OSError` where the listener's address cannot be had, or a certificate not be used.
    """
    clock, registry, life = SystemClock(), _registry(), secrets.token_hex(8)
    dialling = Dialling.of(config)
    listener = _bind(config.metrics)
    try:
        # One connection to each server is kept, and no more: it is scraped by one task.
        connector = aiohttp.TCPConnector(limit_per_host=1)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as tasks,
        ):
            kubelet = Kubelet(config.pod_resources, clock) if config.pod_resources else None
            node = _node(config, tasks, session, clock, kubelet)
            if kubelet is not None:
                tasks.create_task(kubelet.run(), name="kubelet")

            def stream_to(address: str, host: str) -> Reporter:
                line = dialling.to(address, host)
                return Reporter(line, NodeId(config.node), life, node, clock)

            lookup = addresses_of if config.resolve else None
            coordinators = Coordinators(config.coordinators, tasks, stream_to, clock, lookup)
            tasks.create_task(coordinators.run(), name="coordinators")
            streams = coordinators.streams
            metrics = AgentMetrics(registry, node, streams, dialling.remaining, clock, kubelet)
            tasks.create_task(watch_lag(metrics, clock), name="loop lag")
            troubles = partial(_troubles, dialling, kubelet)
            async with _serving(_application(registry, node, streams, troubles), listener):
                announce({"metrics": _address(listener, config.metrics)})
                await stop.wait()
            log.info("stopping")
            await node.save()
            raise _Stopped
    except* _Stopped:
        pass


def _node(
    config: AgentConfig,
    tasks: asyncio.TaskGroup,
    session: aiohttp.ClientSession,
    clock: Clock,
    kubelet: Kubelet | None,
) -> Node:
    return Node(
        tasks=tasks,
        clock=clock,
        session=session,
        subscribe=_subscriber,
        read_gpus=GpuReader().read,
        pauses=Pauses(config.scrape_busy_s, config.scrape_idle_s),
        checkpoints=Checkpoints(Path(config.checkpoint_dir)) if config.checkpoint_dir else None,
        owners=kubelet.owners if kubelet is not None else None,
    )


def _subscriber(engine: AssignedEngine, place: Place | None) -> Subscriber:
    return Subscriber(
        engine.events, engine.replay, bind=engine.events_bind, topic=engine.topic, place=place
    )


def _troubles(dialling: Dialling, kubelet: Kubelet | None) -> Iterator[tuple[str, str]]:
    yield from dialling.troubles()
    if kubelet is not None:
        yield from kubelet.troubles()


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def _application(
    registry: CollectorRegistry,
    node: Node,
    streams: Callable[[], Mapping[str, bool]],
    troubles: Callable[[], Iterable[tuple[str, str]]],
) -> web.Application:
    """Return the listener's routes. Nothing they answer names a prompt, a key or a token."""

    async def listed(_: web.Request) -> web.Response:
        return web.Response(text="Lineside, an agent: /healthz /readyz /metrics\n")

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = []
        if not any(streams().values()):
            reasons.append("no coordinator is connected")
        if not node.assigned:
            reasons.append("no assignment has arrived yet")
        degraded = [text for _, text in troubles()]
        state = {"ready": not reasons, "reasons": reasons, "degraded": degraded}
        return web.json_response(state, status=503 if reasons else 200)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(registry), headers={"content-type": content_type})

    app = web.Application()
    app.router.add_get("/", listed)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def _bind(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise process.cannot_listen(address, error) from error


def _address(listener: socket.socket, configured: str) -> str:
    return f"{configured.rpartition(':')[0]}:{listener.getsockname()[1]}"


@asynccontextmanager
async def _serving(app: web.Application, listener: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
        listener.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent with these options."""
    parser = argparse.ArgumentParser(prog="lineside agent")
    launch.add_arguments(parser, AgentConfig)
    return start(parser.parse_args(argv))


def start(arguments: argparse.Namespace) -> int:
    """Run an agent; return 0, 1 for findings in its settings, 3 if it could not run."""
    config = launch.configured(AgentConfig, arguments, os.environ)
    if isinstance(config, int):
        return config
    CoreLog().open()  # why TLS fails is found out and told in words: see `agent.handshake`
    logs.setup(config.log_level)
    log.info("starting", config=config.masked())
    gc.set_threshold(*COLLECT)
    return process.serve(partial(run, config), end_within_s=STOP_S)


if __name__ == "__main__":
    sys.exit(main())
