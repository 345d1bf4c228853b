"""An API server over HTTP: one in memory, or handlers of a test, and a kubeconfig that names it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from coordinator.kube.api import ApiAway
from coordinator.kube.settings import Kubernetes
from tests.kube_memory import Server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(folder: Path, url: str, **user: Any) -> str:
    file = folder / "kubeconfig"
    said = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {"token": "t0ken"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(said))
    return str(file)


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    """Answer every request by `handler`; yield where."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(server: Server, folder: Path) -> AsyncIterator[Kubernetes]:
    """Serve what is in memory; yield the settings that lead there."""

    async def answer(request: web.Request) -> web.StreamResponse:
        query = list(request.query.items())
        if "watch" in request.query:
            return await _watched(server, request)
        body = json.loads(await request.read() or b"null")
        try:
            said = await server.ask(request.method, request.path, query, body)
        except ApiAway:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=said.status, body=said.body)

    async with listening(answer) as url:
        file = await asyncio.to_thread(kubeconfig, folder, url)
        yield Kubernetes(access="kubeconfig", kubeconfig=file, namespaces=("n",))


async def _watched(server: Server, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    async for line in server.watch(request.path, list(request.query.items()), 60.0):
        await response.write(line + b"\n")
    return response
